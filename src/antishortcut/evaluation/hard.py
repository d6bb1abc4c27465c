"""Images that the early teacher gets wrong: where its shortcut fails, found without any knowledge of the shortcut."""
# N images, C classes

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from antishortcut.errors import UserError
from antishortcut.evaluation.context import Bench, Examination, Scored, Subject
from antishortcut.metrics import split_accuracy
from antishortcut.teachers.trajectory import Teachers
from antishortcut.types import AnySet


def hard(bench: Bench) -> Iterator[Examination]:
    """Accuracy where T_early is wrong, and right: on the validation split, or without one on the first test set."""
    name, images = ("val", bench.sets.val) if bench.sets.val is not None else bench.headline
    yield Scored("hard", f"{bench.sets.fingerprint}-{name}", partial(_score, name, images))


def compared(subject: Subject) -> Teachers:
    """The teacher states a student is compared with: final and early of its teacher, whatever it learned from."""
    run, sets = subject.run.model_copy(update={"roles": {}}), subject.bench.sets
    return Teachers(run, subject.bench.runs, len(sets.classes), sets.image_size)


def _score(name: str, images: AnySet, subject: Subject) -> Mapping[str, Any]:
    if subject.run.teacher is None:
        raise UserError(f"{subject.folder.path} is a teacher; images hard for its early state are for students")
    logits, _ = subject.outputs(images)
    early, _ = subject.outputs(images, compared(subject).network("early"))
    values = dict(split_accuracy(logits, images.label, early.argmax(dim=1) != images.label))
    return {"count": len(images), "values": values, "of": name}
