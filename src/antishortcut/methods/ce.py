"""The task's own loss only: how teachers are trained, and the student without a teacher."""

from torch import nn

from antishortcut.methods.kd import Teachers, Terms
from antishortcut.types import Batch, Features, Sizes


class CE(nn.Module):
    roles: tuple[str, ...] = ()
    taps: tuple[str, ...] = ()

    def __init__(self, sizes: Sizes, *, task_weight: float = 1.0) -> None:
        super().__init__()
        self.task_weight = task_weight

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        return {}
