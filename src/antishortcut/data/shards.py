"""wds:PATTERN, images in tar shards as webdataset writes them. They are read in place, nothing is unpacked.

    wds:photos/train-{0000..0127}.tar

The headers of a shard are read once, and where its images lie is saved in the user's cache. From then on every image is
one read at its place, so order, splits, limits, resuming and several processes are those of files on disk. Shards may
lie on a web server.
"""

import glob
import hashlib
import io
import itertools
import json
import os
import re
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import IO, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from antishortcut.data.image_io import REQUESTS
from antishortcut.data.readers import CLASSES, SUFFIXES, RawDataset, by_split, lines, number_labels, split_of
from antishortcut.errors import UserError, first_line
from antishortcut.fileio import atomic_write, expanded, near_folder, plain
from antishortcut.progress import ProgressBar
from antishortcut.types import FileSet, PackedImage

WEB = ("http://", "https://")
VERSION = 1  # of the saved index
MOST = 100_000  # shards
LARGEST_IMAGE, LARGEST_LABEL = 2**28, 2**20  # bytes
BLOCK = 512  # bytes of a header in a tar file
_HINT = "make it again with webdataset or tar"
_LABEL = "a sample is KEY.jpg (or png, …) and KEY.cls, or KEY.json with a label"


@dataclass(frozen=True)
class Shard:
    """A tar file, on disk or on a web server."""

    place: str  # a path or an address
    name: str  # below the folder that all shards share
    size: int  # bytes
    time: int  # when it was modified, in nanoseconds

    def __str__(self) -> str:
        return self.place

    @property
    def remote(self) -> bool:
        return self.place.startswith(WEB)

    def open(self) -> IO[bytes]:
        return io.BufferedReader(RemoteFile(self.place, self.size), BUFFER) if self.remote else open(self.place, "rb")

    def read(self, at: int, size: int) -> bytes:
        if self.remote:
            part = fetch(self.place, at, size)
            if (part.total, part.time) != (self.size, self.time):
                raise UserError(f"{self.place} has changed on its server; give the same command again")
            return part.data
        with open(self.place, "rb", buffering=0) as file:
            facts = os.fstat(file.fileno())
            if (facts.st_size, facts.st_mtime_ns) != (self.size, self.time):  # another image may lie there now
                raise UserError(f"{self.place} has changed since it was opened; give the same command again")
            file.seek(at)
            return file.read(size)


class Sample(NamedTuple):
    """An image of a shard."""

    name: str
    at: int  # its first byte
    size: int
    label: str  # a number or the name of a class


def list_shards(pattern: str) -> RawDataset:
    """The images of wds:PATTERN, or of the shards in a folder.

    A shard whose name or folder has the word train, val or test is of that split, any other is for training.
    """
    shards = _shards(_places(pattern))
    with ThreadPoolExecutor(REQUESTS) as threads, ProgressBar("reading the index of shards", len(shards)) as bar:
        samples = []
        for number, listed in enumerate(threads.map(index_of, shards), start=1):
            samples.append(listed)
            bar.update(number, {})
    splits: dict[str, list[PackedImage]] = {}
    labels: dict[str, list[str]] = {}
    for shard, listed in zip(shards, samples, strict=True):
        split = split_of(re.split(r"[^a-z]+", shard.name.lower())) or "train"
        splits.setdefault(split, []).extend(PackedImage(shard, one.name, one.at, one.size) for one in listed)
        labels.setdefault(split, []).extend(one.label for one in listed)
    if "train" not in splits:
        raise UserError(f"wds:{pattern}: all shards are named {' or '.join(splits)}, so there are none to train on")
    remedy = f"name all classes in {CLASSES} beside the shards, one a line"
    classes, label = number_labels(labels, _classes(shards[0]), f"wds:{pattern}", remedy)
    return by_split({split: FileSet(tuple(images), label[split]) for split, images in splits.items()}, classes)


def expand_braces(text: str) -> Iterator[str]:
    """As shells and webdataset do: {000..127} counts, {train,val} are alternatives; they nest."""
    start = text.find("{")
    if start < 0:
        yield text
        return
    options, depth, last = list[str](), 0, start + 1
    for at, letter in enumerate(text[start:], start=start):
        depth += (letter == "{") - (letter == "}")
        if (letter == "," and depth == 1) or depth == 0:
            options.append(text[last:at])
            last = at + 1
        if depth == 0:
            break
    else:
        raise UserError(f"wds:{text}: a brace is not closed; shards are counted like {{000..127}}")
    counted: Iterable[str] = options
    if len(options) == 1:
        bounds = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", options[0])
        if bounds is None or int(bounds[1]) > int(bounds[2]):
            raise UserError(f"wds:{text}: {{{options[0]}}} is not a range; shards are counted like {{000..127}}")
        counted = (f"{number:0{len(bounds[1])}d}" for number in range(int(bounds[1]), int(bounds[2]) + 1))
    for option in counted:
        for middle in expand_braces(option):
            yield from (f"{text[:start]}{middle}{end}" for end in expand_braces(text[last:]))


def _places(pattern: str) -> list[str]:
    """The paths or addresses that a pattern stands for, or all tar files in a folder and in the folders below it."""
    scheme = re.match(r"([a-z0-9+]+):", pattern)
    if scheme and not pattern.startswith(WEB):
        why = "runs a command, which a data set may not" if scheme[1] == "pipe" else "is not read"
        raise UserError(f"wds:{pattern}: {scheme[1]}: {why}; shards are files, or at http:// or https://")
    folder = expanded(pattern)
    if not scheme and folder.is_dir():
        places = sorted(str(path) for path in (*folder.glob("*.tar"), *folder.glob("*/*.tar")))
        if not places:
            raise UserError(f"no shards (*.tar) in {folder}")
        return places
    places = list(itertools.islice(expand_braces(pattern), MOST + 1))
    if len(places) > MOST:
        raise UserError(f"wds:{pattern} stands for more than {MOST:,} shards")
    if scheme is None:
        paths = [str(expanded(place)) for place in places]
        places = [each for path in paths for each in (sorted(glob.glob(path)) if glob.has_magic(path) else [path])]
    if not places:
        raise UserError(f"wds:{pattern}: there is no such shard{near_folder(Path(pattern).parent)}")
    return list(dict.fromkeys(places))


def _shards(places: Sequence[str]) -> list[Shard]:
    """With size and time. Names are what is below the folder that all of them share."""
    folders = [place.split("/")[:-1] for place in places]
    depth = len(list(itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))))

    def look(place: str) -> Shard:
        name = "/".join(place.split("/")[depth:])
        if place.startswith(WEB):
            part = fetch(place, 0, 1)
            return Shard(place, _unsigned(name), part.total, part.time)
        try:
            plain(place)
            facts = os.stat(place)
        except OSError as error:
            raise UserError(f"no shard {place} ({error.strerror}); the pattern names all of them") from None
        return Shard(place, name, facts.st_size, facts.st_mtime_ns)

    with ThreadPoolExecutor(REQUESTS) as threads:
        return list(threads.map(look, places))


def _unsigned(address: str) -> str:
    """Without what follows a question mark, such as a signature that is another one tomorrow."""
    return address.partition("?")[0]


def _classes(shard: Shard) -> Sequence[str]:
    """The names in classes.txt beside the shards, or none."""
    if shard.remote:
        place = f"{_unsigned(shard.place).rpartition('/')[0]}/{CLASSES}"
        try:
            return [line.strip() for line in fetch(place, 0, LARGEST_LABEL).data.decode().splitlines() if line.strip()]
        except (UserError, ValueError):
            return ()
    path = Path(shard.place).parent / CLASSES
    return lines(path, "one class name a line") if path.exists() else ()


# --- The index of a shard ---


def index_of(shard: Shard) -> list[Sample]:
    """Its images, from the user's cache if it has not changed since."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    place = _unsigned(shard.place) if shard.remote else os.path.abspath(shard.place)
    key = hashlib.sha256(f"{place}\0{shard.size}\0{shard.time}".encode(errors="surrogateescape")).hexdigest()[:24]
    saved = home / "antishortcut" / "shards" / f"{key}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):  # absent, damaged, or of another version
        content = json.loads(saved.read_bytes())
        if content["version"] == VERSION:
            return [Sample(str(name), int(at), int(size), str(label)) for name, at, size, label in content["samples"]]
    try:
        samples = list(_read_index(shard))
    except UserError:
        raise
    except Exception as error:  # a damaged tar file can raise anything
        raise UserError(f"the shard {shard} is no plain tar file, or damaged ({first_line(error)}); {_HINT}") from None
    if not samples:
        raise UserError(f"the shard {shard} has no images; {_LABEL}")
    with suppress(OSError), atomic_write(saved) as file:  # a full or read-only disk: read again next time
        file.write(json.dumps({"version": VERSION, "samples": samples}).encode())
    return samples


def _read_index(shard: Shard) -> Iterator[Sample]:
    """Samples in order: members that follow each other and have the same name up to its first dot."""
    with shard.open() as file, tarfile.open(fileobj=file, mode="r:") as tar:
        members = _members(shard, tar, file)
        for key, parts in itertools.groupby(members, key=lambda member: _split_name(member.name)[0]):
            yield _sample(shard, key, file, list(parts))


def _members(shard: Shard, tar: tarfile.TarFile, file: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """The plain files. Hidden files, which macOS adds, and webdataset's own (__…__) do not count."""
    for member in tar:
        if member.isdir() or re.match(r"(.*/)?\.[^/]*$|__[^/]*__($|/)", member.name):
            continue
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            raise UserError(f"the shard {shard}: {member.name!r} is a link or no plain file; {_HINT}")
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise UserError(f"the shard {shard}: the name {member.name!r} leads out of it; {_HINT}")
        yield member
    file.seek(tar.offset)  # tarfile takes a damaged header for the end, which is a block of zeros
    if file.read(BLOCK) != bytes(BLOCK):
        raise UserError(f"the shard {shard} is damaged or cut short after {tar.offset:,} bytes; {_HINT}")


def _split_name(name: str) -> tuple[str, str]:
    """Key and suffix: photos/7.seg.png is photos/7 and seg.png."""
    folder, slash, file = name.rpartition("/")
    key, _, suffix = file.partition(".")
    return f"{folder}{slash}{key}", suffix.lower()


def _sample(shard: Shard, key: str, file: IO[bytes], members: Sequence[tarfile.TarInfo]) -> Sample:
    parts = {_split_name(member.name)[1]: member for member in members}
    images = [suffix for suffix in parts if f".{suffix}" in SUFFIXES]
    named = next((suffix for suffix in ("cls", "json") if suffix in parts), None)
    if len(images) != 1 or named is None or len(parts) != len(members):
        has = ", ".join(member.name for member in members[:4])
        raise UserError(f"the shard {shard}: {key!r} has {has}; {_LABEL}")
    image, label = parts[images[0]], parts[named]
    if image.size > LARGEST_IMAGE or label.size > LARGEST_LABEL:
        large = image if image.size > LARGEST_IMAGE else label
        raise UserError(f"the shard {shard}: {large.name!r} has {large.size:,} bytes, too many for {key}; {_LABEL}")
    file.seek(label.offset_data)
    text = file.read(label.size)
    try:
        word = json.loads(text)["label"] if named == "json" else text.decode("utf-8-sig").strip()
        if not isinstance(word, int | str) or isinstance(word, bool) or word == "":
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"the shard {shard}: {label.name!r} has no label, a number or a name; {_LABEL}") from None
    return Sample(image.name, image.offset_data, image.size, str(word))


# --- Files on a web server, read in parts: HTTP Range requests, by the standard library alone ---

TRIES, WAIT = 5, 0.5  # how often a request is made; seconds after the first failure, then twice as long each time
TIMEOUT = 30.0  # seconds
BUFFER = 2**13  # bytes: between two images of a shard lie a label and headers


class Part(NamedTuple):
    """Some bytes of a file."""

    data: bytes
    total: int  # bytes of the whole file
    time: int  # when it was modified, in nanoseconds; 0 if the server does not say


def fetch(url: str, start: int, size: int) -> Part:
    """The bytes from `start` on, at most `size`. A server that fails for a moment is asked again."""
    request = Request(url, headers={"Range": f"bytes={start}-{start + size - 1}"})
    for attempt in range(TRIES):
        if attempt:
            time.sleep(WAIT * 2 ** (attempt - 1))
        try:
            with urlopen(request, timeout=TIMEOUT) as answer:
                if answer.status != 206:
                    raise UserError(f"the server of {url} sends whole files only (no Range requests); download it")
                total = int(answer.headers["Content-Range"].rpartition("/")[2])
                data = answer.read(size)
                if len(data) != min(size, total - start):
                    raise URLError("the answer is cut short")
                changed = answer.headers["Last-Modified"]
                return Part(data, total, int(parsedate_to_datetime(changed).timestamp() * 1e9) if changed else 0)
        except HTTPError as error:
            reason = f"{error.code} {error.reason}"
            if error.code < 500 and error.code != 429:  # 429: too many requests
                break
        except (OSError, HTTPException) as error:
            reason = first_line(error)
        except (TypeError, AttributeError, ValueError) as error:  # headers that are missing or no numbers
            if isinstance(error, UserError):
                raise
            reason = "its answer is not one to a Range request"
            break
    raise UserError(f"cannot read {url} ({reason}); check the address and the network")


class RemoteFile(io.RawIOBase):
    """A file on a web server that can be read at any place."""

    def __init__(self, url: str, size: int) -> None:
        self.url, self.size, self.at = url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = min(len(buffer), self.size - self.at)
        if size <= 0:
            return 0
        buffer[:size] = fetch(self.url, self.at, size).data
        self.at += size
        return size
