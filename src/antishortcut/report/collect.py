"""Run folders → plain values. A damaged run gets a one-line note and stops nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antishortcut.config.recipe import Run
from antishortcut.errors import UserError
from antishortcut.fileio import near_folder
from antishortcut.report.direction_reader import Directions, home_of, read_directions
from antishortcut.report.reader import (
    MECHANISM,
    ODD,
    WORD,
    Aside,
    Histogram,
    Notes,
    Scores,
    curve,
    history,
    number,
    reached,
    read_histograms,
    read_scores,
    readable,
    said,
    terms,
)
from antishortcut.run_dir import RunDir, read_json

BASELINE = "kd"  # the run that others are compared with
FIRST = ("ce", BASELINE)  # come first, the others by name
DRAWN = 21  # methods in charts: seven colours, three dashes
Curve = tuple[tuple[float, float], ...]


@dataclass(kw_only=True)
class Student(Scores):
    """A finished run: its scores ("last" and "best" among the values), and how they came about."""

    path: str  # below the reported folder
    place: Path
    method: str  # the run's name, with its suite where there are several
    run: Run
    eval_split: str  # the set that was scored during training
    primary_metric: str  # the score it was judged by, "last" and "best" below
    histograms: dict[str, dict[str, Histogram]]  # view → measure
    seconds: float | None
    execution: dict[str, Any]
    versions: dict[str, Any]
    curve: Curve  # (epoch, score)
    terms: tuple[tuple[float, str, float], ...]  # (epoch, term, mean value since the point before)
    parameters: float | None


@dataclass(frozen=True)
class Progress:
    """An unfinished run."""

    path: str
    unit: str  # epoch or iteration, whichever the run is counted in
    at: float
    whole: int
    primary_metric: str  # the score it is judged by
    curve: Curve
    when: float | None  # seconds since 1970 of the last logged line

    @property
    def state(self) -> str:
        return f"unfinished, {self.unit} {self.at:.7g} of {self.whole}"


@dataclass(frozen=True)
class Found:
    """The runs below a folder."""

    folder: Path
    students: tuple[Student, ...]
    teachers: tuple[Student, ...]
    progress: tuple[Progress, ...]
    aside: tuple[Aside, ...]  # run folders that are damaged or left out
    notes: tuple[Aside, ...]  # files that were skipped
    directions: tuple[Directions, ...]  # of the teachers
    taught: dict[str, Student]  # hash → teacher of these students, wherever its folder lies

    def school(self, run: Run) -> Run | None:
        """The run of a student's teacher; None where its folder is not here."""
        return self.taught[run.teacher].run if run.teacher in self.taught else None

    @property
    def groups(self) -> dict[str, list[Student]]:
        """Students by method, seeds in order."""
        groups: dict[str, list[Student]] = {}
        for student in self.students:
            groups.setdefault(student.method, []).append(student)
        return groups

    @property
    def drawn(self) -> Found:
        """The same with the first methods only, in whole suites: as many as charts can tell apart."""
        groups = self.groups
        if len(groups) <= DRAWN:
            return self
        saved = list(groups)[:DRAWN]
        cut = groups[list(groups)[DRAWN]][0].run.suite
        whole = [method for method in saved if groups[method][0].run.suite != cut] or saved
        return replace(self, students=tuple(s for s in self.students if s.method in whole))


def places(folder: Path) -> list[Path]:
    """Run folders at `folder`, one and two levels below it."""
    folders = [folder, *sorted(folder.glob("*")), *sorted(folder.glob("*/*"))]
    return [place for place in folders if os.path.isfile(place / "run.json")]  # False, not an error, if not allowed


def collect(folder: Path) -> Found:
    """All run folders below `folder`."""
    here = places(folder)
    if not here:
        hint = ("" if folder.is_dir() else near_folder(folder)) or "; asd distill makes them"
        raise UserError(f"{folder}: no run folder here or up to two levels below{hint}")
    students: dict[tuple[str, str, int], Student] = {}
    teachers, progress, aside = [], [], []
    notes = Notes()
    for place in here:
        name = readable(str(place.relative_to(folder)) if place != folder else place.resolve().name)
        result = _open(RunDir(place), name, notes)
        if isinstance(result, Aside):
            aside.append(result)
        elif isinstance(result, Progress):
            progress.append(result)
        elif result.run.kind != "distill":
            teachers.append(result)
        else:
            first = students.setdefault((result.run.suite, result.run.name, result.run.seed), result)
            if first is not result:
                aside.append(Aside(name, f"left out: the same suite, name and seed as {first.path}"))
    shown = tuple(_ordered(list(students.values())))
    _add_changes(shown)
    directions = tuple(read_directions([(s.place, s.run) for s in shown], notes))
    taught = _taught(shown, teachers)
    return Found(folder, shown, tuple(teachers), tuple(progress), tuple(aside), tuple(notes.found), directions, taught)


def _taught(students: Iterable[Student], here: Iterable[Student]) -> dict[str, Student]:
    """Teachers by hash: those among the runs, else from the folder beside the suites; not the damaged ones."""
    taught = {teacher.place.name: teacher for teacher in here}
    for home in dict.fromkeys(home for s in students if (home := home_of(s.place, s.run))):
        if home.name not in taught and os.path.isfile(home / "run.json"):
            teacher = _open(RunDir(home), f"teachers/{home.name}", Notes())
            if isinstance(teacher, Student):
                taught[home.name] = teacher
    return taught


def _ordered(students: list[Student]) -> list[Student]:
    """In a fixed order; the suite is part of a method's name where there are several."""
    if len({s.run.suite for s in students}) > 1:
        students = [replace(s, method=f"{s.run.suite}/{s.run.name}") for s in students]
    rank = {name: number for number, name in enumerate(FIRST)}
    return sorted(
        students,
        key=lambda s: (natural(s.run.suite), rank.get(s.run.name, len(rank)), natural(s.run.name), s.run.seed),
    )


def natural(text: str) -> list[tuple[float, str]]:
    """For sorting P2 before P10."""
    pieces = re.split(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)", text)
    return [(float(part), "") if place % 2 else (-1.0, part) for place, part in enumerate(pieces)]


def _add_changes(students: Iterable[Student]) -> None:
    """Add the relative change of each projection against the baseline of the same suite and seed."""
    base = {(s.run.suite, s.run.seed): s.values for s in students if s.run.name == BASELINE}
    for s in students:
        reference = base.get((s.run.suite, s.run.seed), {})
        for name in [name for name in s.values if name.startswith(MECHANISM) and name.endswith(" projection")]:
            if s.run.name != BASELINE and reference.get(name):
                s.values[f"{name}_change"] = s.values[name] / reference[name] - 1


def _open(folder: RunDir, name: str, notes: Notes) -> Student | Progress | Aside:
    try:
        run, execution = folder.read()
        dumped = run.model_dump_json()
        if not dumped.isprintable() or "\\" in dumped:
            run = Run.model_validate(readable(run.model_dump(mode="json")))
        if not folder.finished:
            return _progress(folder, name, run)
        return _student(folder, name, run, execution, notes)
    except ODD as error:  # a UserError among them
        message = str(error) if isinstance(error, UserError | OSError) else said(error)
        return Aside(name, readable(f"damaged: {message}"))


def _progress(folder: RunDir, name: str, run: Run) -> Progress:
    rows = history(folder.metrics)
    evaluated = next((row for row in reversed(rows) if "set" in row), {})
    primary_metric = readable(str(evaluated.get("primary_metric", "accuracy")))[:WORD]
    return Progress(
        path=name,
        unit="epoch" if run.epochs else "iteration",
        at=float(f"{reached(rows, 'epoch'):.3g}") if run.epochs else reached(rows, "step"),
        whole=run.epochs or run.iterations,
        primary_metric=primary_metric,
        curve=curve(rows, evaluated.get("set"), primary_metric),
        when=folder.metrics.stat().st_mtime if rows else None,
    )


def _student(folder: RunDir, name: str, run: Run, execution: dict[str, Any], notes: Notes) -> Student:
    result = readable(folder.result())
    rows = history(folder.metrics)
    scores = read_scores(folder.path, name, notes)
    primary_metric = str(result.get("primary_metric", "accuracy"))[:WORD]
    values = {}
    for kind in ("last", "best"):
        value = number(result[kind][primary_metric])
        if value is None:
            raise UserError(f"result.json: {kind} {primary_metric} is {result[kind][primary_metric]!r}, not a number")
        values[kind] = value
    return Student(
        path=name,
        place=folder.path,
        method=run.name,
        run=run,
        eval_split=str(result["set"]),
        primary_metric=primary_metric,
        histograms=read_histograms(folder.path, name, notes),
        seconds=number(result.get("seconds")),
        execution=readable(execution),
        versions=dict(readable(read_json(folder.path / "run.json").get("versions", {}))),
        curve=curve(rows, result["set"], primary_metric),
        terms=terms(rows, run.epochs or reached(rows, "epoch") or 1.0),  # those counted in iterations log epochs too
        parameters=number(result.get("parameters")),
        **(vars(scores) | {"values": values | scores.values}),
    )
