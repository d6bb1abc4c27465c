"""Suites: named sets of runs that answer a question together. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from antishortcut.errors import UserError, near
from antishortcut.suites.beyond import beyond_cifar, beyond_cues, beyond_groups
from antishortcut.suites.job import Job, Suite, folder_of, teacher_key

__all__ = ["SUITES", "Job", "Suite", "describe", "folder_of", "open_suite", "teacher_key"]

SUITES: dict[str, Callable[[Sequence[str]], Suite]] = {
    "beyond-cues": beyond_cues,
    "beyond-cifar": beyond_cifar,
    "beyond-groups": beyond_groups,
}


def open_suite(name: str, overrides: Sequence[str] = (), only: Sequence[str] = (), seeds: Sequence[int] = ()) -> Suite:
    """A suite's jobs, with recipe settings overridden, or a part of them."""
    if name not in SUITES:
        raise UserError(f"no suite {name!r}{near(name, SUITES)}")
    return SUITES[name](overrides).only(only, seeds)


def describe() -> list[dict[str, Any]]:
    """Name, number of students and question of every suite; one that must be told something first says what."""
    rows: list[dict[str, Any]] = []
    for name in SUITES:
        try:
            suite = open_suite(name)
        except UserError as error:
            rows.append({"name": name, "students": None, "what": str(error).partition(": ")[2]})
        else:
            rows.append({"name": name, "students": len(suite.jobs), "what": suite.what})
    return rows
