"""The task's own loss only: how teachers are trained, and the student without a teacher."""

from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.types import Batch, Features, Sizes


class CE(Distillation):
    roles: tuple[str, ...] = ()

    def __init__(self, sizes: Sizes, *, task_weight: float = 1.0) -> None:
        super().__init__()
        self.task_weight = task_weight

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        return {}
