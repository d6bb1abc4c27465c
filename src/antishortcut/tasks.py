"""What is learned: the task's own loss, and how its outputs become rows for the methods."""
# B batch, C classes

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from antishortcut.types import Batch, Features


class Classification:
    """Cross-entropy on class labels; every image is one row already."""

    def __init__(self, *, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def loss(self, student: Features, batch: Batch) -> dict[str, Tensor]:
        return {"task": F.cross_entropy(student.logits, batch.label, label_smoothing=self.label_smoothing)}

    def rows(
        self, student: Features, teachers: Mapping[str, Features], batch: Batch
    ) -> tuple[Features, Mapping[str, Features], Batch]:
        return student, teachers, batch
