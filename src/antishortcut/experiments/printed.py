"""Every number the paper prints, with its place, as printed.csv has them: tables first, then text and captions.

Tables 1–8 and figures are the paper's, S-… its supplement's. A range is two numbers, from and to. What the text repeats
from a table is there again, with the place that repeats it. A note says where a number contradicts others, the text or
arithmetic; the number itself stays as printed.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Printed(NamedTuple):
    place: str  # "Table 1", "S-Table 3, caption", "Sec. 6.4", "S-Sec. A.7"
    row: str  # as a run is named; else teacher, student, protocol, paper, a data set, a state
    column: str  # a pair, or what the number is said of
    measure: str
    mean: float
    std: float | None = None
    best: bool = False  # the table marks it so
    note: str = ""  # what it contradicts


def of_run(pair: str, name: str) -> list[Printed]:
    """What is printed of a row of a pair, tables first."""
    return [number for number in PRINTED if (number.column, number.row) == (pair, name)]


def find(place: str, row: str, column: str, measure: str) -> Printed:
    """The one number of that place; the first when the text repeats it there."""
    return next(number for number in PRINTED if number[:4] == (place, row, column, measure))


def _read() -> Iterator[Printed]:
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            std = float(line["std"]) if line["std"] else None
            where = line["place"], line["row"], line["column"], line["measure"]
            yield Printed(*where, float(line["mean"]), std, line["best"] == "best", line["note"])


PRINTED: tuple[Printed, ...] = tuple(_read())
