"""Suites: named sets of runs that answer a question together. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from antishortcut.errors import UserError, near
from antishortcut.experiments.beyond import beyond_cifar, beyond_cues, beyond_groups
from antishortcut.experiments.jobs import Job, Suite, folder_of, teacher_key
from antishortcut.experiments.pairs import PAIRS
from antishortcut.experiments.paper import NAMES, TABLES, table
from antishortcut.experiments.scale import MARK, SCALES, scaled
from antishortcut.experiments.suites import desk, desk_cues, desk_dense

__all__ = ["SCALES", "SUITES", "Job", "Suite", "describe", "folder_of", "open_suite", "teacher_key"]


def _printed(name: str, overrides: Sequence[str], scale: str = "paper") -> Suite:
    """A table or figure of the paper; overrides come last."""
    return scaled(table(name), scale).set(overrides)


SUITES: dict[str, Callable[[Sequence[str]], Suite]] = {
    "desk": desk,
    "desk-cues": desk_cues,
    "desk-dense": desk_dense,
    "beyond-cues": beyond_cues,
    "beyond-cifar": beyond_cifar,
    "beyond-groups": beyond_groups,
    **{name: partial(_printed, name) for name in TABLES},
}


def open_suite(
    name: str,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    scale: str = "paper",
) -> Suite:
    """A suite's jobs, with recipe settings overridden, or a part of them; the paper's also at desk scale."""
    _check_scale(scale)
    known = NAMES.get(name, name)
    if known not in SUITES:
        raise UserError(f"no suite {name!r}{near(name, [*SUITES, *NAMES])}")
    if known not in TABLES and scale != "paper":
        raise UserError(f"suite {name} has one size only; --scale {scale} is for the tables of the paper")
    suite = _printed(known, overrides, scale) if known in TABLES else SUITES[known](overrides)
    kept = suite.only(only, seeds)
    if overrides:
        _check_rows(known, overrides, kept)
    return kept


def _check_scale(scale: str) -> None:
    if scale not in SCALES:
        raise UserError(f"--scale {scale!r}{near(scale, SCALES)}")


def _check_rows(name: str, overrides: Sequence[str], kept: Suite) -> None:
    """A setting that makes a row what it is may not be overridden: it would be another under the same name."""
    for job in kept.jobs:
        if job.other == job.recipe.teacher:
            raise UserError(f"suite {name}: --set makes the other teacher of {job.name} its own; use another setting")
    own = {(job.suite, job.name): _own(job) for job in TABLES[name].jobs()} if name in TABLES else {}
    for text in overrides:
        key = text.partition("=")[0].strip()
        for job in kept.jobs:
            for setting in own.get((job.suite.removesuffix(MARK), job.name), ()):
                if setting == key or setting.startswith(f"{key}."):
                    raise UserError(
                        f"suite {name}: {job.name} has its own {setting}, so --set {key} would make it another run "
                        "under its name; leave it out, or choose other rows with --only"
                    )


def _own(job: Job) -> list[str]:
    """Settings of a row's recipe that are not its pair's, like optim.batch. One teacher's batch is everyone's."""
    pair = PAIRS[job.suite].recipe()
    same = {"batch": pair.teacher.batch or pair.optim.batch}
    known, own = (
        recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update=same)}) for recipe in (pair, job.recipe)
    )
    return [
        f"{part}.{key}"
        for part in ("data", "teacher", "student", "optim", "task")
        for key, value in getattr(own, part)
        if value != getattr(getattr(known, part), key)
    ]


def describe(scale: str = "paper") -> list[dict[str, Any]]:
    """Name, number of students and question of every suite; one that must be told something first says what."""
    _check_scale(scale)
    rows: list[dict[str, Any]] = []
    for name in SUITES if scale == "paper" else TABLES:
        also = TABLES[name].also if name in TABLES else ""
        try:
            suite = open_suite(name, scale=scale)
        except UserError as error:
            rows.append({"name": name, "also": also, "students": None, "what": str(error).partition(": ")[2]})
        else:
            rows.append({"name": name, "also": also, "students": len(suite.jobs), "what": suite.what})
    return rows
