"""The data's own test sets: accuracy, shape bias where the texture of each image is known."""
# N images, C classes

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from antishortcut.evaluate.subject import Bench, Examination, Scored, Subject
from antishortcut.scorers import accuracy, shape_bias
from antishortcut.types import AnySet


def clean(bench: Bench) -> Iterator[Examination]:
    """Every test set of the data."""
    for name, images in bench.sets.tests.items():
        yield Scored(name, bench.sets.fingerprint, partial(_score, images))


def _score(images: AnySet, subject: Subject) -> Mapping[str, Any]:
    logits, _ = subject.outputs(images)
    values = dict(accuracy(logits, images.label))
    if "texture" in images.cues and bool((images.cues["texture"] != images.label).all()):  # stimuli in conflict
        values |= dict(shape_bias(logits, images.label, images.cues))
    return {"count": len(images), "values": values}
