"""The data's own test sets, scored as their task says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from antishortcut.evaluation.context import Bench, Examination, Scored, Subject
from antishortcut.tasks import task_of
from antishortcut.types import AnySet


def clean(bench: Bench) -> Iterator[Examination]:
    """Every test set of the data."""
    for name, images in bench.sets.tests.items():
        yield Scored(name, bench.sets.fingerprint, partial(_score, images))


def _score(images: AnySet, subject: Subject) -> Mapping[str, Any]:
    sets = subject.bench.sets
    return {"count": len(images)} | task_of(sets).report(subject.stream(images), images, sets.classes)
