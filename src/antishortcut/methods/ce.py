"""The task's own loss and nothing else: what a teacher is trained with, and the student nobody helped."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from antishortcut.types import Batch, Features, Sizes


class CE(nn.Module):
    roles: tuple[str, ...] = ()
    taps: tuple[str, ...] = ()

    def __init__(self, sizes: Sizes, *, task_weight: float = 1.0) -> None:
        super().__init__()
        self.task_weight = task_weight

    def terms(
        self, student: Features, teachers: Mapping[str, Features], batch: Batch, epoch: float
    ) -> dict[str, Tensor]:
        return {}
