"""Read and write files: nothing half-written under a real name, no pipe or device where a file should be."""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import IO

from antishortcut.errors import UserError

TEXT = 64 * 2**20  # bytes of the largest text file that is read whole
PAGE_FORMATS = ("JPEG", "PNG")  # of the pictures in a report
# what Pillow may open: left to itself it runs Ghostscript on a PostScript file, whatever that is named
IMAGE_FORMATS = (*PAGE_FORMATS, "BMP", "WEBP", "PPM", "TIFF", "GIF")


@contextmanager
def atomic_path(path: Path, parents: bool = True) -> Iterator[Path]:
    """An empty temporary file in the same folder, which replaces `path` when the block ends and is removed on an error.

    Without `parents` only the folder itself is created: a run folder whose disk was unmounted must not come back.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    path.parent.mkdir(parents=parents, exist_ok=True)
    try:
        with temporary.open("xb") as file:
            with suppress(OSError):  # without locks nothing is swept either
                fcntl.flock(file, fcntl.LOCK_EX)
            yield temporary
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


@contextmanager
def atomic_write(path: Path, parents: bool = True) -> Iterator[IO[bytes]]:
    """A binary file that replaces `path` when the block ends, whole or not at all."""
    with atomic_path(path, parents) as temporary, temporary.open("wb") as file:
        yield file


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed processes; one that is still being written is locked."""
    for part in folder.glob("**/.*.part"):
        if part.is_file():  # a pipe would be waited for
            with suppress(OSError), part.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()


def refuse_links(folder: Path, *names: str) -> None:
    """Raise if one of these entries of a folder that is written to, or any of them, is a link: it may lead anywhere."""
    for path in [folder / name for name in names] or [*folder.iterdir(), *folder.glob("artifacts/*")]:
        if path.is_symlink():
            raise UserError(f"{path} is a link; nothing is written through links: remove it, or move its target here")


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """A new folder that replaces `path` when the block ends; after an error `path` is as it was.

    It is written beside `path` as `.name.antishortcut-new`, a name that nobody else gives. The folder that is replaced
    is `.name.antishortcut-old` between two renames.
    """
    path = path.absolute()
    if path.exists() and not path.is_dir():  # a device or a pipe would be moved away
        raise UserError(f"{path} is no folder; name another one as --out")
    new, old = _beside(path)
    first = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        recover_dir(path)
        new.mkdir()
        yield new
        if path.exists():
            os.replace(path, old)
        os.replace(new, path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error}); name another folder as --out") from error
    finally:
        recover_dir(path)
        if first and path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()


def recover_dir(path: Path) -> None:
    """Undo what a killed process left: a replaced folder comes back, an unfinished new one goes."""
    new, old = _beside(path)
    if old.is_dir() and not path.exists():
        os.replace(old, path)
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(f".{path.name}.antishortcut-new"), path.with_name(f".{path.name}.antishortcut-old")


def content(path: str | Path, most: int | None = TEXT) -> bytes:
    """The bytes of a plain file; anything else, or more than `most` bytes, is an OSError."""
    plain(path)
    if most is not None and os.stat(path).st_size > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MB", str(path))
    return Path(path).read_bytes()


def text(path: str | Path, most: int = TEXT) -> str:
    """The text of a plain file; what is not UTF-8 is a UnicodeDecodeError, a ValueError."""
    return content(path, most).decode("utf-8-sig")  # Windows puts a mark first


def sha256(path: str | Path) -> str:
    """The checksum of a plain file of any size."""
    plain(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(path: str | Path) -> None:
    """Refuse what is not a plain file: reading a pipe may wait forever."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "a folder, not a file" if path.is_dir() else "not a plain file", str(path))


def near_folder(path: str | Path) -> str:
    """A hint naming folders similar to a path that does not exist, or an empty string."""
    place = expanded(path)
    while not place.parent.is_dir():
        place = place.parent
    close = get_close_matches(place.name, [folder.name for folder in sorted(place.parent.glob("*/"))])
    return f"; did you mean {' or '.join(str(place.parent / name) for name in close)}?" if close else ""


def expanded(path: str | Path) -> Path:
    """A path with ~ or ~user expanded; an unknown user is a UserError."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no home folder {Path(path).parts[0]}; write the whole path") from None
