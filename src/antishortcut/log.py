"""The log of a run, metrics.jsonl: a line a row, in the order of steps. No torch."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from antishortcut.errors import UserError
from antishortcut.files import plain

BLOCK = 2**12  # bytes that are read at a time when the beginning of a line is looked for
LONGEST = 2**20  # bytes of a line; one that is longer is damaged, and no reason to hold it


Mark = tuple[int, int]  # bytes from the beginning of a log, and their checksum


class Log:
    """Rows are added to the end, read one after another, and cut off after a step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark: Mark = (0, 0)  # of all that was added since the last cut, written or not
        self._unwritten: list[bytes] = []

    def add(self, row: dict[str, Any]) -> None:
        """To what `write` writes."""
        line = json.dumps(row).encode() + b"\n"
        self._unwritten.append(line)
        self.mark = (self.mark[0] + len(line), zlib.crc32(line, self.mark[1]))

    def write(self) -> None:
        """Put on the disk what was added: all of it, or nothing and an OSError."""
        if not self._unwritten:
            return
        with self.path.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            left = memoryview(b"".join(self._unwritten))
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(before)  # no half line in the middle
                raise
        self._unwritten.clear()

    def sync(self) -> None:
        """What was written survives a power cut."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Up to a line that was cut short by a kill, or is damaged."""
        if not self.path.exists():
            return
        try:
            plain(self.path)
            with self.path.open("rb") as file:
                for line in file:
                    row = _row(line)
                    if row is None:
                        return
                    yield row
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror}); remove it") from None

    def begins(self, mark: Mark) -> bool:
        """Whether the first bytes are still those of a mark. A log that is gone or empty was given up by somebody."""
        try:
            plain(self.path)
            with self.path.open("rb") as file:
                return os.fstat(file.fileno()).st_size == 0 or _marked(file, mark[0]) == mark
        except FileNotFoundError:
            return True
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror}); remove it") from None

    def cut(self, step: int, mark: Mark | None = None) -> None:
        """Forget the rows after `step`, or after the bytes of a mark, and half a line at the end."""
        self.path.touch()
        plain(self.path)
        with self.path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            kept = _end(file, step) if mark is None else min(mark[0], size)
            if kept < size:
                file.truncate(kept)
                os.fsync(file.fileno())
            self.mark = _marked(file, kept)


def thinned(path: Path, many: int, kept: int, always: bytes, most: int) -> list[bytes]:
    """Lines of a log; of more than `many` only some `kept`, evenly spread to the last, and those with `always` in them.

    It is read twice and never held whole; a line that is too long is empty here. More than `most` bytes, or what is not
    a plain file, is an OSError.
    """
    plain(path)
    if path.stat().st_size > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MB", str(path))
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
        file.seek(0)
        if lines <= many:
            return list(_lines(file))
        every, last = -(-lines // kept), lines - 1
        return [line for at, line in enumerate(_lines(file)) if (last - at) % every == 0 or always in line]


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Those that follow, each that is too long as an empty one."""
    while line := file.readline(LONGEST):
        whole = line
        while len(line) == LONGEST and not line.endswith(b"\n"):
            whole, line = b"", file.readline(LONGEST)
        yield whole


def _marked(file: IO[bytes], size: int) -> Mark:
    """The mark of so many bytes, or of as many as there are."""
    found, read = 0, 0
    file.seek(0)
    while read < size and (block := file.read(min(size - read, 2**20))):
        found, read = zlib.crc32(block, found), read + len(block)
    return read, found


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _end(file: IO[bytes], step: int) -> int:
    """Where the last line ends whose step is not after this one. Steps rise, so half of what is left is put aside."""
    low, high = 0, 0 if step < 0 else file.seek(0, os.SEEK_END)  # lines before low stay, lines from high on go
    while low < high:
        start = _start(file, low, (low + high) // 2)
        file.seek(start)
        line = file.readline()
        if line.endswith(b"\n") and _within(line, step):
            low = start + len(line)
        else:  # later, half, or damaged
            high = start
    return low


def _start(file: IO[bytes], low: int, at: int) -> int:
    """Where the line begins that this byte is of; a line begins at `low`."""
    while at > low:
        begin = max(at - BLOCK, low)
        file.seek(begin)
        newline = file.read(at - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        at = begin
    return low


def _within(line: bytes, step: int) -> bool:
    row = _row(line)
    return row is not None and isinstance(at := row.get("step"), int) and at <= step
