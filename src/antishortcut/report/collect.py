"""Run folders → plain values. A damaged run gets a one-line note and stops nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from antishortcut.config.recipe import Run
from antishortcut.errors import UserError
from antishortcut.fileio import near_folder
from antishortcut.report import reader
from antishortcut.report.reader import Notes, Scores, Skipped, number, readable
from antishortcut.run_dir import RunDir, read_json

BASELINE = "kd"  # the run that all others are compared with
FIRST = ("ce", BASELINE)  # come first, the others by name
DRAWN = 21  # methods in charts: seven colours, three dashes
Curve = tuple[tuple[float, float], ...]


@dataclass(kw_only=True)
class StudentRun(Scores):
    """A finished run: its scores ("last" and "best" among the values), and how they came about."""

    path: str  # below the reported folder
    place: Path
    method: str  # the run's name, with its suite where there are several
    run: Run
    eval_split: str  # the set that was scored during training
    primary_metric: str  # the score on it: "last" and "best"
    histograms: dict[str, dict[str, reader.Histogram]]  # view → measure
    seconds: float | None
    execution: dict[str, Any]
    versions: dict[str, Any]
    curve: Curve  # (epoch, score)
    terms: tuple[tuple[float, str, float], ...]  # (epoch, term, mean value since the point before)
    parameters: float | None
    class_count: int | None = None
    reuses_classifier: bool = False  # whether it ends in its teacher's, behind a projector

    @property
    def network(self) -> str:
        return f"{self.run.model.name} + its teacher's classifier" if self.reuses_classifier else self.run.model.name


@dataclass(frozen=True)
class UnfinishedRun:
    path: str
    unit: str  # epoch or iteration, whichever the run is counted in
    at: float
    whole: int
    primary_metric: str
    curve: Curve
    when: float | None  # seconds since 1970 of the last logged line

    @property
    def state(self) -> str:
        return f"unfinished, {self.unit} {self.at:.7g} of {self.whole}"


@dataclass(frozen=True)
class Collected:
    """The runs below a folder."""

    folder: Path
    students: tuple[StudentRun, ...]
    teachers: tuple[StudentRun, ...]
    progress: tuple[UnfinishedRun, ...]
    aside: tuple[Skipped, ...]  # run folders that are damaged or left out
    notes: tuple[Skipped, ...]  # files that were skipped
    directions: tuple[reader.Directions, ...]  # of the teachers
    teacher_runs: dict[str, StudentRun]  # hash → teacher of these students, wherever its folder lies

    @cached_property
    def groups(self) -> dict[str, list[StudentRun]]:
        """Students by method, seeds in order."""
        groups: dict[str, list[StudentRun]] = {}
        for student in self.students:
            groups.setdefault(student.method, []).append(student)
        return groups

    @cached_property
    def suites(self) -> dict[str, str]:
        """The suite of every method."""
        return {method: students[0].run.suite for method, students in self.groups.items()}

    @cached_property
    def methods(self) -> list[str]:
        return list(self.groups)

    @cached_property
    def drawn(self) -> Collected:
        """The same with the first methods only, in whole suites: as many as charts can tell apart."""
        if len(self.groups) <= DRAWN:
            return self
        first = self.methods[:DRAWN]
        cut = self.suites[self.methods[DRAWN]]
        whole = [method for method in first if self.suites[method] != cut] or first
        return replace(self, students=tuple(s for s in self.students if s.method in whole))


def collect(folder: Path) -> Collected:
    """All run folders at `folder`, one and two levels below it."""
    candidates = [folder, *sorted(folder.glob("*")), *sorted(folder.glob("*/*"))]
    places = [place for place in candidates if os.path.isfile(place / "run.json")]  # False, not an error, if forbidden
    if not places:
        hint = ("" if folder.is_dir() else near_folder(folder)) or "; asd distill makes them"
        raise UserError(f"{folder}: no run folder here or up to two levels below{hint}")
    students: dict[tuple[str, str, int], StudentRun] = {}
    teachers, progress, aside = [], [], []
    notes = Notes()
    for place in places:
        name = readable(str(place.relative_to(folder)) if place != folder else place.resolve().name)
        result = _open(RunDir(place), name, notes)
        if isinstance(result, Skipped):
            aside.append(result)
        elif isinstance(result, UnfinishedRun):
            progress.append(result)
        elif result.run.kind != "distill":
            teachers.append(result)
        else:
            first = students.setdefault((result.run.suite, result.run.name, result.run.seed), result)
            if first is not result:
                aside.append(Skipped(name, f"left out: the same suite, name and seed as {first.path}"))
    ordered = _ordered(list(students.values()))
    _add_changes(ordered)
    teacher_runs = {teacher.place.name: teacher for teacher in teachers}
    directions: dict[tuple[Path, str], reader.Directions | None] = {}
    for student in ordered:
        run = student.run
        if run.teacher is None:
            continue
        home = student.place.resolve().parent.parent / "teachers" / run.teacher
        early = run.roles.get("early", run.early)  # the state that the student was compared with
        if home.name not in teacher_runs and os.path.isfile(home / "run.json"):
            teacher = _open(RunDir(home), f"teachers/{home.name}", Notes())
            if isinstance(teacher, StudentRun):
                teacher_runs[home.name] = teacher
        if (home, early) not in directions:
            title = teacher_runs[home.name].run.model.name if home.name in teacher_runs else "teacher"
            directions[home, early] = reader.read_directions(home, early, title, notes)
    return Collected(
        folder=folder,
        students=tuple(ordered),
        teachers=tuple(teachers),
        progress=tuple(progress),
        aside=tuple(aside),
        notes=tuple(notes.skipped),
        directions=tuple(each for each in directions.values() if each is not None),
        teacher_runs=teacher_runs,
    )


def _ordered(students: list[StudentRun]) -> list[StudentRun]:
    """In a fixed order; the suite is part of a method's name where there are several."""
    if len({s.run.suite for s in students}) > 1:
        students = [replace(s, method=f"{s.run.suite}/{s.run.name}") for s in students]
    rank = {name: index for index, name in enumerate(FIRST)}
    return sorted(
        students,
        key=lambda s: (natural(s.run.suite), rank.get(s.run.name, len(rank)), natural(s.run.name), s.run.seed),
    )


def natural(text: str) -> list[tuple[float, str]]:
    """For sorting P2 before P10."""
    pieces = re.split(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)", text)
    return [(float(piece), "") if index % 2 else (-1.0, piece) for index, piece in enumerate(pieces)]


def _add_changes(students: Iterable[StudentRun]) -> None:
    """Add the relative change of each projection against the baseline of the same suite and seed."""
    base = {(s.run.suite, s.run.seed): s.values for s in students if s.run.name == BASELINE}
    for s in students:
        reference = base.get((s.run.suite, s.run.seed), {})
        for name in [name for name in s.values if name.startswith(reader.MECHANISM) and name.endswith(" projection")]:
            if s.run.name != BASELINE and reference.get(name):
                s.values[f"{name}_change"] = s.values[name] / reference[name] - 1


def _open(folder: RunDir, name: str, notes: Notes) -> StudentRun | UnfinishedRun | Skipped:
    try:
        run, execution = folder.read()
        run = Run.model_validate(readable(run.model_dump(mode="json")))
        return _student(folder, name, run, execution, notes) if folder.finished else _unfinished_run(folder, name, run)
    except reader.UNREADABLE as error:  # a UserError among them
        message = str(error) if isinstance(error, UserError | OSError) else reader.error_text(error)
        return Skipped(name, readable(f"damaged: {message}"))


def _unfinished_run(folder: RunDir, name: str, run: Run) -> UnfinishedRun:
    rows = reader.history(folder.metrics)
    evaluated = next((row for row in reversed(rows) if "set" in row), {})
    primary_metric = readable(evaluated.get("primary_metric", "accuracy"))
    return UnfinishedRun(
        path=name,
        unit="epoch" if run.epochs else "iteration",
        at=float(f"{reader.last_logged(rows, 'epoch'):.3g}") if run.epochs else reader.last_logged(rows, "step"),
        whole=run.epochs or run.iterations,
        primary_metric=primary_metric,
        curve=reader.curve(rows, evaluated.get("set"), primary_metric),
        when=folder.metrics.stat().st_mtime if rows else None,
    )


def _student(folder: RunDir, name: str, run: Run, execution: dict[str, Any], notes: Notes) -> StudentRun:
    result = readable(folder.result())
    rows = reader.history(folder.metrics)
    scores = reader.read_scores(folder.path, name, notes)
    metric = str(result.get("primary_metric", "accuracy"))
    scores.values["last"], scores.values["best"] = reader.numbers(result[kind][metric] for kind in ("last", "best"))
    if (images := number(result["last"].get("images"))) is not None:
        scores.counts["training"] = images
    return StudentRun(
        path=name,
        place=folder.path,
        method=run.name,
        run=run,
        eval_split=str(result["set"]),
        primary_metric=metric,
        histograms=reader.read_histograms(folder.path, name, notes),
        seconds=number(result.get("seconds")),
        execution=readable(execution),
        versions=dict(readable(read_json(folder.path / "run.json").get("versions", {}))),
        curve=reader.curve(rows, result["set"], metric),
        terms=reader.terms(rows, run.epochs or reader.last_logged(rows, "epoch") or 1.0),  # iterations log epochs too
        parameters=number(result.get("parameters")),
        class_count=len(result.get("classes") or ()) or None,
        reuses_classifier=folder.classifier() is not None,
        **vars(scores),
    )
