"""Every number the paper prints, with its place. Tables 1–8 and figures are the paper's, S-… its supplement's.

`PRINTED` holds them in order; `of_run(pair, name)` gives those of one row, for a table of ours beside theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from antishortcut.paper.contradictions import CONTRADICTIONS
from antishortcut.paper.printed_prose import PROSE
from antishortcut.paper.printed_tables import GRIDS


class Printed(NamedTuple):
    place: str  # "Table 1", "S-Table 3, caption", "Sec. 6.4", "S-Sec. A.7"
    row: str  # as a run is named; else teacher, student, protocol, paper, a data set, a state
    column: str  # a pair, or what the number is said of
    measure: str
    mean: float
    std: float | None = None
    best: bool = False  # the table marks it so
    note: str = ""  # a contradiction, from contradictions.py

    @property
    def key(self) -> str:
        return f"{self.place}|{self.row}|{self.column}|{self.measure}"


def of_run(pair: str, name: str) -> list[Printed]:
    """What is printed of a row of a pair, tables first."""
    return [number for number in PRINTED if (number.column, number.row) == (pair, name)]


def find(place: str, row: str, column: str, measure: str) -> Printed:
    """The one number of that place; the first when the text repeats it there."""
    for number in PRINTED:
        if number[:4] == (place, row, column, measure):
            return number
    raise KeyError(f"nothing is printed at {place}|{row}|{column}|{measure}")


def _grids() -> Iterator[Printed]:
    for place, measure, columns, text in GRIDS:
        names = columns.split()
        for line in text.strip().splitlines():
            row, *cells = line.split()
            for column, cell in zip(names, cells, strict=True):
                if cell != "-":
                    yield _noted(place, row, column, measure, cell)


def _prose() -> Iterator[Printed]:
    for line in PROSE.strip().splitlines():
        place, row, column, measure, cell = (word.strip() for word in line.split(" | "))
        yield _noted(place, row, column, measure, cell)


def _noted(place: str, row: str, column: str, measure: str, cell: str) -> Printed:
    mean, _, std = cell.rstrip("*").partition("±")
    plain = Printed(place, row, column, measure, float(mean), float(std) if std else None, cell.endswith("*"))
    notes = [text for pattern, text in CONTRADICTIONS.items() if fnmatchcase(plain.key, pattern)]
    return plain._replace(note="; ".join(notes))


PRINTED: tuple[Printed, ...] = (*_grids(), *_prose())
