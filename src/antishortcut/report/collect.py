"""Run folders → plain values. Whatever is wrong with one run is said beside it and stops nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antishortcut.errors import UserError
from antishortcut.folder import Folder, read_json
from antishortcut.run import Run

SHOWN = ("accuracy", "shape_bias")  # of a score file; one that has neither shows its first FEW numbers
FEW = 3
MECHANISM = ("cos_final", "cos_early", "projection")
RANDOM = "mechanism random"  # how far a random direction projects on the shortcut eigenspace
BINS = 120  # points of a loss curve; a run logs thousands
FIRST = ("ce", "kd")  # baselines come first, the others by name


@dataclass(frozen=True)
class Student:
    """A finished run: its numbers by name, and how they came about."""

    path: str  # below the reported folder
    method: str  # the run's name, with its suite where there are several
    run: Run
    judge: str  # the set that was scored during training
    values: dict[str, float]  # "last", "best", "<set> <score>"
    view: str | None  # how the mechanism's features were compared: raw or aligned
    seconds: float | None
    execution: dict[str, Any]
    versions: dict[str, Any]
    curve: tuple[tuple[float, float], ...]  # (epoch, accuracy)
    terms: tuple[tuple[float, str, float], ...]  # (epoch, term, mean value since the point before)


@dataclass(frozen=True)
class Aside:
    """A run folder that is not in the rows, and why."""

    run: str
    state: str


@dataclass(frozen=True)
class Found:
    """What lies below a folder."""

    folder: Path
    students: tuple[Student, ...]
    teachers: tuple[Student, ...]
    aside: tuple[Aside, ...]

    @property
    def groups(self) -> dict[str, list[Student]]:
        """Students by method, seeds in order."""
        groups: dict[str, list[Student]] = {}
        for student in self.students:
            groups.setdefault(student.method, []).append(student)
        return groups


def collect(folder: Path) -> Found:
    """All run folders at `folder`, one and two levels below it."""
    places = [folder, *sorted(folder.glob("*")), *sorted(folder.glob("*/*"))]
    places = [place for place in places if os.path.isfile(place / "run.json")]  # False, not an error, if not allowed
    if not places:
        raise UserError(f"{folder}: no run folder here or up to two levels below; asd distill makes them")
    students: dict[tuple[str, str, int], Student] = {}
    teachers, aside = [], []
    for place in places:
        name = str(place.relative_to(folder)) if place != folder else place.resolve().name
        found = _open(Folder(place), name)
        if isinstance(found, Aside):
            aside.append(found)
        elif found.run.kind != "distill":
            teachers.append(found)
        else:
            key = (found.run.suite, found.run.name, found.run.seed)
            first = students.setdefault(key, found)
            if first is not found:
                aside.append(Aside(name, f"left out: the same suite, name and seed as {first.path}"))
    return Found(folder, tuple(_labelled(list(students.values()))), tuple(teachers), tuple(aside))


def _labelled(students: list[Student]) -> list[Student]:
    """Methods named by their runs, in a fixed order; the suite is part of the name where there are several."""
    if len({s.run.suite for s in students}) > 1:
        students = [replace(s, method=f"{s.run.suite}/{s.run.name}") for s in students]
    rank = {name: number for number, name in enumerate(FIRST)}
    return sorted(students, key=lambda s: (s.run.suite, rank.get(s.run.name, len(rank)), s.run.name, s.run.seed))


def _open(folder: Folder, name: str) -> Student | Aside:
    try:
        run, execution = folder.read()
        if not folder.finished:
            return Aside(name, f"unfinished{_reached(folder, run)}")
        return _student(folder, name, run, execution)
    except (UserError, OSError) as error:
        return Aside(name, f"damaged: {error}")
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ) as error:  # files that are JSON, but not ours
        return Aside(name, f"damaged: {type(error).__name__}: {error}")


def _reached(folder: Folder, run: Run) -> str:
    rows = [row for row in folder.history() if isinstance(row, dict)]
    epoch = number(rows[-1].get("epoch")) if rows else None
    return "" if epoch is None else f", epoch {epoch:.3g} of {run.epochs}"


def _student(folder: Folder, name: str, run: Run, execution: dict[str, Any]) -> Student:
    result = folder.result()
    history = [row for row in folder.history() if isinstance(row, dict)]
    scores = folder.scores()
    views = scores.pop("mechanism", {"values": {}})["values"]
    view = next((view for view in ("raw", "aligned") if view in views), None)
    values = {kind: _accuracy(result, kind) for kind in ("last", "best")}
    for key, score in scores.items():
        values |= {f"{key} {what}": value for what, value in _plain(score["values"])}
    return Student(
        path=name,
        method=run.name,
        run=run,
        judge=str(result["set"]),
        values=values | (_mechanism(views[view]) if view else {}),
        view=view,
        seconds=number(result.get("seconds")),
        execution=execution,
        versions=dict(read_json(folder.path / "run.json").get("versions", {})),
        curve=tuple(_curve(history, result["set"])),
        terms=tuple(_terms(history, run.epochs)),
    )


def _accuracy(result: dict[str, Any], kind: str) -> float:
    value = number(result[kind]["accuracy"])
    if value is None:
        raise UserError(f"result.json: {kind} accuracy is {result[kind]['accuracy']!r}, not a number")
    return value


def _mechanism(values: dict[str, Any]) -> dict[str, float]:
    numbers = {f"mechanism {what}": number(values.get(what)) for what in MECHANISM}
    numbers[RANDOM] = number(values.get("projection_random"))
    return {key: value for key, value in numbers.items() if value is not None}


def _plain(values: dict[str, Any]) -> list[tuple[str, float]]:
    """The numbers of a score file that a table shows."""
    found = [(key, value) for key, raw in values.items() if (value := number(raw)) is not None]
    return [pair for pair in found if pair[0] in SHOWN] or found[:FEW]


def _curve(history: list[dict[str, Any]], judge: str) -> Iterator[tuple[float, float]]:
    for row in history:
        if row.get("set") == judge:
            epoch, value = number(row.get("epoch")), number(row["scores"].get("accuracy"))
            if epoch is not None and value is not None:
                yield epoch, value


def _terms(history: list[dict[str, Any]], epochs: int) -> Iterator[tuple[float, str, float]]:
    """Means of the loss terms over at most BINS equal parts of the training, each at its end."""
    sums: dict[tuple[str, int], tuple[float, int]] = {}
    for row in history:
        if "terms" in row and (epoch := number(row.get("epoch"))) is not None:
            part = math.ceil(epoch / epochs * BINS)
            for term, value in row["terms"].items():
                if math.isfinite(value):
                    total, count = sums.get((term, part), (0.0, 0))
                    sums[term, part] = total + value, count + 1
    for (term, part), (total, count) in sums.items():
        yield part * epochs / BINS, term, total / count


def number(value: Any) -> float | None:
    """A finite number, or None: NaN has no place in JSON nor in a mean."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and math.isfinite(value) else None
