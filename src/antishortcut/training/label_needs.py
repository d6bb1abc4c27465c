"""Which methods can learn from images without labels; what cannot work is one line before training."""
# B batch, C classes, D embedding

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from antishortcut.config.schema import OptimSettings
from antishortcut.errors import UserError
from antishortcut.methods import build_method
from antishortcut.types import (
    Batch,
    DataSplits,
    Features,
    Method,
    Prepares,
    Projects,
    ReusesClassifier,
    Shape,
    Sizes,
    StrongView,
    TrainingView,
    lacks_labels,
)

ROWS, CLASSES = 4, 5  # of the batch that a method is tried on
PAST_PHASES = 1e6  # epochs: past every warm-up and initial phase


def check_unlabelled(
    name: str, options: Mapping[str, Any], data: DataSplits, sizes: Sizes, optim: OptimSettings
) -> None:
    """Refuse a method that would leave a part of the student untrained, or that needs classes where there are none."""
    if not lacks_labels(data.train):
        return
    if optim.mixes:
        raise UserError("optim.mixup and optim.cutmix mix labels, and some images have none; set them to 0")
    method = build_method(name, replace(sizes, classes=sizes.classes or CLASSES), options)
    if not cast(Method, method).roles:
        raise UserError(f"method {name!r} learns from labels alone, so images without labels add nothing to it")
    if not lacks_labels(data.split(data.eval_split)):  # labels train the classifier
        return
    if not data.classes:
        if _reads_logits(method, sizes) or not isinstance(method, Projects):
            none = f"{data.name} has no classes (data.options.classes is 0)"
            raise UserError(f"{none}, so a student learns embeddings, which {name!r} does not teach; use features")
    elif not isinstance(method, ReusesClassifier) and not _reads_logits(method, sizes):
        advice = "use kd, contrast or asd, or leave the classifier out: --method features --set data.options.classes=0"
        raise UserError(f"without labels nothing would train the student's classifier: {name!r} does not; {advice}")


def _reads_logits(method: torch.nn.Module, sizes: Sizes) -> bool:
    """Whether a loss term has a gradient for the student's logits, found on random features."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.default_generator.manual_seed(0)
        student = _features(sizes.student, sizes.classes, grad=True)
        teachers = {role: _features(shape, sizes.classes) for role, shape in sizes.teachers.items()}
        if isinstance(method, Prepares):
            method.prepare([teachers])
        student_view = method.view(student, teachers) if isinstance(method, TrainingView) else student
        index = torch.arange(ROWS) % sizes.examples
        strong = torch.arange(ROWS) >= ROWS // 2 if isinstance(method, StrongView) else None
        batch = Batch(torch.rand(ROWS, 3, 8, 8), torch.zeros(ROWS, dtype=torch.int64), index, strong=strong)
        terms = cast(Method, method.eval()).terms(student_view, teachers, batch, PAST_PHASES)
        total = sum((value for value in terms.values() if value.requires_grad), 0.0 * student.logits.sum())
        (gradient,) = torch.autograd.grad(total, student.logits)
        return bool(gradient.any())


def _features(shape: Shape, classes: int, grad: bool = False) -> Features:
    """Random features of these sizes."""

    def drawn(*size: int) -> torch.Tensor:
        return torch.rand(ROWS, *size).requires_grad_(grad)

    stages = tuple(drawn(*stage) for stage in shape.stages)
    last = drawn(shape.embedding, *shape.side) if shape.side != (1, 1) else None
    return Features(drawn(classes or CLASSES), drawn(shape.embedding), stages, last=last, preact=stages)
