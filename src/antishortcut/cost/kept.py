"""runs/steps.json: what steps were measured, on which machine. A damaged file, or entry, counts as not measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from antishortcut.cost.groups import Group, Size
from antishortcut.errors import UserError
from antishortcut.folder import read_json, write_json
from antishortcut.run import Settings

NAME = "steps.json"
Kind = TypeVar("Kind", bound=Settings)


class Machine(Settings):
    """What else a step's cost depends on."""

    device: str  # its maker's name
    threads: int
    precision: str
    torch: str

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.device}, {threads}, {self.precision}, torch {self.torch}"


class Timing(Settings):
    group: Group
    machine: Machine
    seconds: float = Field(gt=0)  # of a step: the median
    steps: int = Field(ge=1)  # that were measured
    share: float = Field(1.0, ge=0, le=1)  # of the time a core worked on them; less on a machine busy with other things
    at: str  # when


@dataclass(frozen=True)
class Book:
    """What is known so far."""

    timings: tuple[Timing, ...] = ()  # the newest last
    sizes: Mapping[str, Size] | None = None  # of folders of images, by the data set's name

    @property
    def counted(self) -> Mapping[str, Size]:
        return self.sizes or {}

    def latest(self, keys: Collection[str]) -> Machine | None:
        """The machine on which a step of these groups was measured last."""
        own = [timing.machine for timing in self.timings if timing.group.key in keys]
        return own[-1] if own else None

    def of(self, machine: Machine) -> dict[str, Timing]:
        """Steps measured there, by group."""
        return {timing.group.key: timing for timing in self.timings if timing.machine == machine}


def read_book(runs: Path) -> Book:
    try:
        tree = read_json(runs / NAME)
    except UserError:
        tree = None
    if not isinstance(tree, dict):
        return Book()
    timings, sizes = tree.get("timings"), tree.get("sizes")
    entries = [_valid(Timing, entry) for entry in timings] if isinstance(timings, list) else []
    known = {name: _valid(Size, size) for name, size in sizes.items()} if isinstance(sizes, dict) else {}
    return Book(
        tuple(entry for entry in entries if entry is not None),
        {name: size for name, size in known.items() if size is not None},
    )


def add_timing(runs: Path, timing: Timing) -> None:
    """In place of an older one of the same group and machine."""
    book = read_book(runs)
    others = [t for t in book.timings if (t.group.key, t.machine) != (timing.group.key, timing.machine)]
    _write(runs, Book((*others, timing), book.sizes))


def add_size(runs: Path, name: str, size: Size) -> None:
    book = read_book(runs)
    _write(runs, Book(book.timings, {**book.counted, name: size}))


def _write(runs: Path, book: Book) -> None:
    timings = [timing.model_dump(mode="json") for timing in book.timings]
    write_json(runs / NAME, {"timings": timings, "sizes": {n: s.model_dump() for n, s in book.counted.items()}})


def _valid(kind: type[Kind], value: Any) -> Kind | None:
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None
