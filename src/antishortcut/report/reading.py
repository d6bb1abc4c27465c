"""Files of run folders → plain values. A file that cannot be read leaves a one-line note and stops nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from antishortcut.errors import printable
from antishortcut.fileio import content
from antishortcut.run_dir import LOG, shallow

LARGEST = 32 * 2**20  # bytes of a JSON file
MANY = 2_000  # lines of metrics.jsonl; of a longer file all evaluations and every n-th step are read
HUGE = 1e150  # the squares of larger numbers overflow
BINS = 120  # points of a loss curve
ODD = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
# what JSON of an unexpected form can raise

T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True)
class Aside:
    """A run folder or a file that is not shown, and why."""

    run: str
    state: str


class Notes:
    """Files that could not be read."""

    def __init__(self) -> None:
        self.found: list[Aside] = []

    def add(self, name: str, why: str) -> None:
        note = Aside(readable(name), readable(why))
        if note not in self.found:  # a file may be read for two things
            self.found.append(note)

    def attempt(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        """The result of `read`; if it fails `otherwise`, with a note. A missing file needs no note."""
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
    plain = type(value) is float or type(value) is int  # called a million times; a bool is no number
    return float(value) if plain and -HUGE <= value <= HUGE else None


def numbers(value: Any, most: int) -> tuple[float, ...]:
    """A list of finite numbers, no longer than `most`."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"expected a list of at most {most} numbers")
    result = tuple(x for raw in value if (x := number(raw)) is not None)
    if len(result) != len(value):
        raise ValueError("a list has an entry that is no finite number")
    return result


def tree(path: Path) -> Row:
    """The JSON object in a file."""
    result = parse(content(path, LARGEST))
    if not isinstance(result, dict):
        raise ValueError("not a JSON object")
    return dict(readable(shallow(result)))


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
    """With printable text only: vl_convert aborts the whole process at a character that XML does not allow."""
    if isinstance(value, str):
        return value if value.isprintable() else printable(" ".join(value.split()))
    if isinstance(value, list):
        return [readable(each) for each in value]
    return {readable(key): readable(each) for key, each in value.items()} if isinstance(value, dict) else value


def history(path: Path) -> list[Row]:
    """Logged rows up to the first damaged one (a kill cuts the last one short)."""
    try:
        lines = content(path, LOG).splitlines()
    except OSError:
        return []
    every = -(-len(lines) // MANY)
    rows: list[Row] = []
    for left, line in zip(range(len(lines) - 1, -1, -1), lines, strict=True):
        if left % every == 0 or b'"scores"' in line:
            try:
                row = parse(line)
            except ValueError:
                break
            rows += [row] if isinstance(row, dict) else []
    return rows


def curve(rows: list[Row], judge: Any, score: str = "accuracy") -> tuple[tuple[float, float], ...]:
    """(epoch, score) on the set that was scored during training."""
    points = []
    for row in rows:
        if "set" in row and row["set"] == judge and isinstance(row.get("scores"), dict):
            points.append((number(row.get("epoch")), number(row["scores"].get(score))))
    return tuple((epoch, value) for epoch, value in points if epoch is not None and value is not None)


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
                    sums.setdefault((readable(term), part), []).append(value)
    return tuple((part * epochs / BINS, term, math.fsum(values) / len(values)) for (term, part), values in sums.items())
