"""Suites: named sets of runs that answer a question together. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antishortcut.errors import UserError, near
from antishortcut.suites.beyond import beyond_cifar, beyond_cues, beyond_groups
from antishortcut.suites.job import Job, Suite, folder_of, teacher_key

__all__ = ["SUITES", "Job", "Suite", "folder_of", "open_suite", "teacher_key"]

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
