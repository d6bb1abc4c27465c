"""Files from outside → plain values. What cannot be read leaves a note and stops nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from antishortcut.errors import printable
from antishortcut.files import content
from antishortcut.folder import LOG, shallow
from antishortcut.log import thinned

LARGEST = 32 * 2**20  # bytes of a JSON file that is read whole
MANY = 2_000  # lines of metrics.jsonl above which only some of the steps are read
KEPT = 480  # of them, evenly spread; every evaluation is read
HUGE = 1e150  # larger numbers are somebody's mistake, and sums of their squares overflow
BINS = 120  # points of a loss curve; a run logs thousands
ODD = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
# what files that are JSON, but not ours, can lead to

T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True)
class Aside:
    """A run folder or a file that is not shown, and why."""

    run: str
    state: str


class Notes:
    """What could not be read."""

    def __init__(self) -> None:
        self.found: list[Aside] = []

    def add(self, name: str, why: str) -> None:
        note = Aside(readable(name), readable(why))
        if note not in self.found:  # a file may be read for two things
            self.found.append(note)

    def attempt(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        """What `read` gives; where it fails `otherwise`, with a note. What is not there needs no note."""
        try:
            return read()
        except FileNotFoundError:
            return otherwise
        except ODD as error:
            self.add(name, f"skipped: {said(error)}")
            return otherwise


def said(error: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(error).split())[:200]
    if isinstance(error, OSError):
        return error.strerror or text
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"


def number(value: Any) -> float | None:
    """A finite number, or None: NaN has no place in JSON nor in a mean."""
    plain = type(value) is float or type(value) is int  # asked a million times; a bool is no number
    return float(value) if plain and -HUGE <= value <= HUGE else None


def numbers(value: Any, most: int) -> tuple[float, ...]:
    """A list of finite numbers, no longer than `most`."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"expected a list of at most {most} numbers")
    found = tuple(x for raw in value if (x := number(raw)) is not None)
    if len(found) != len(value):
        raise ValueError("a list has an entry that is no finite number")
    return found


def tree(path: Path) -> Row:
    """The JSON object in a file."""
    data = content(path, LARGEST)
    found = parse(data)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return dict(_clean(shallow(found), data))


def parse(data: bytes) -> Any:
    """JSON, also with the NaN and Infinity of Python's own writer."""
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise ValueError("not JSON; restore or remove it") from None


def readable(value: Any) -> Any:
    """With words of one printable line each: what draws pictures ends the whole process at a letter no XML may have."""
    if isinstance(value, str):
        return value if value.isprintable() else printable(" ".join(value.split()))
    if isinstance(value, list):
        return [readable(each) for each in value]
    return {readable(key): readable(each) for key, each in value.items()} if isinstance(value, dict) else value


def _is_shallow(value: Any) -> bool:
    try:
        return bool(shallow(value) is value)
    except ValueError:
        return False


def _clean(found: Any, data: bytes) -> Any:
    """The same, where there can be anything to mend: all that is not plain is escaped in JSON, or not ASCII."""
    return readable(found) if b"\\" in data or not data.isascii() else found


def history(path: Path) -> list[Row]:
    """Logged rows up to the first that is damaged (a kill cuts the last one short).

    Of a long file all evaluations and every n-th step: 240 epochs hold thousands, a curve has BINS points.
    """
    try:
        lines = thinned(path, MANY, KEPT, b'"scores"', LOG)
    except OSError:
        return []
    plain = all(b"\\" not in line and line.isascii() for line in lines)
    rows = [row for row in _rows(lines) if isinstance(row, dict)]
    return rows if plain else [readable(row) for row in rows if _is_shallow(row)]


def _rows(lines: Sequence[bytes]) -> list[Any]:
    try:
        return list(orjson.loads(b"[" + b",".join(lines) + b"]"))  # one call is twice as fast as one a line
    except ValueError:
        rows = []
        for line in lines:
            try:
                rows.append(parse(line))
            except ValueError:
                break
        return rows


def curve(rows: list[Row], judge: Any, score: str = "accuracy") -> tuple[tuple[float, float], ...]:
    """(epoch, score) on the set that was scored during training."""
    found = [(number(row.get("epoch")), _score(row, score)) for row in rows if "set" in row and row["set"] == judge]
    return tuple((epoch, value) for epoch, value in found if epoch is not None and value is not None)


def _score(row: Row, score: str) -> float | None:
    scores = row.get("scores")
    return number(scores.get(score)) if isinstance(scores, dict) else None


def reached(rows: list[Row], key: str) -> float:
    """The last epoch or step that was logged."""
    return next((value for row in reversed(rows) if (value := number(row.get(key))) is not None), 0.0)


def terms(rows: list[Row], epochs: float) -> tuple[tuple[float, str, float], ...]:
    """(epoch, term, mean): the loss terms over at most BINS equal parts of the training, each at its end."""
    sums: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        logged, epoch = row.get("terms"), number(row.get("epoch"))
        if isinstance(logged, dict) and epoch is not None:
            part = math.ceil(epoch / epochs * BINS)
            for term, raw in logged.items():
                if (value := number(raw)) is not None:
                    sums.setdefault((term, part), []).append(value)
    return tuple((part * epochs / BINS, term, math.fsum(values) / len(values)) for (term, part), values in sums.items())
