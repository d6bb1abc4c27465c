"""Files that somebody brought, read with care: no pipe that never ends, no device, nothing larger than expected."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import zipfile
from difflib import get_close_matches
from pathlib import Path
from typing import IO

from antishortcut.errors import WORD, UserError

TEXT = 64 * 2**20  # bytes of the largest text file that is read whole


def content(path: str | Path, most: int | None = TEXT) -> bytes:
    """The bytes of a plain file; anything else, or more than `most` of them, is an OSError that says so."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a name with a zero byte", str(path))
    with open(path, "rb", opener=_at_once) as file:
        found = os.fstat(file.fileno())
        _refuse(found, path)
        if most is not None and found.st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most >> 20} MB", str(path))
        return file.read() if most is None else file.read(min(found.st_size + 1, most))


def sha256(path: str | Path) -> str:
    """The checksum of a plain file of any size."""
    plain(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text(path: str | Path, most: int = TEXT) -> str:
    """The text of a plain file; what is not UTF-8 is a UnicodeDecodeError, a ValueError."""
    return content(path, most).decode("utf-8")


def plain(path: str | Path) -> None:
    """Refuse what is not a plain file before a library opens it, and waits."""
    _refuse(os.stat(path), path)


def stored(file: str | Path | IO[bytes]) -> None:
    """Refuse an archive with packed members: torch.save packs none, and a few bytes may unpack to any number."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist()):
                raise ValueError("an archive with packed members, which torch.save does not write")


def programs(file: str | Path) -> bool:
    """Whether an archive holds code beside tensors, as TorchScript does."""
    return any("/code/" in name for name in _members(file))


def arrays(file: str | Path) -> bool:
    """Whether it is an archive of numpy arrays alone."""
    names = _members(file)
    return bool(names) and all(name.endswith(".npy") for name in names)


def _members(file: str | Path) -> list[str]:
    """Names in an archive; none where it is no archive, or a damaged one."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return []


def _at_once(path: str, flags: int) -> int:
    """Open without waiting, as a pipe would for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _refuse(found: os.stat_result, path: str | Path) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a plain file", str(path))


def near_folder(path: str | Path) -> str:
    """A hint that names the folders whose names are nearest to a path that is not there; nothing where none is near."""
    place = expanded(path)
    while not place.parent.is_dir() and place != place.parent:
        place = place.parent
    try:
        beside = {entry.name.lower(): entry for entry in sorted(place.parent.iterdir()) if entry.is_dir()}
    except OSError:
        return ""
    close = get_close_matches(place.name.lower()[:WORD], beside, n=3, cutoff=0.6)
    return "; did you mean " + " or ".join(str(beside[name]) for name in close) + "?" if close else ""


def expanded(path: str | Path) -> Path:
    """A path with its ~ or ~user spelt out; that of nobody here is a UserError."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user, or one without a home
        raise UserError(f"{path}: there is no home folder {Path(path).parts[0]}; write the whole path") from None
