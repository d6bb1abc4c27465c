"""Debiased teacher's transplant (Lee & Lee 2023) in style: SimKD, samples weighted by the early teacher's failure."""
# B batch

from antishortcut.methods.checks import check_every_label, check_labels, check_settings
from antishortcut.methods.kd import Teachers, Terms
from antishortcut.methods.reweight import failure_weights
from antishortcut.methods.simkd import SimKD
from antishortcut.types import Batch, Features, Sizes


class Transplant(SimKD):
    """SimKD, images that the early teacher gets wrong weigh `factor` (λ) times more. See docs/methods/transplant.md.

    As in jtt+kd, weights are divided by their mean over the batch.
    """

    roles: tuple[str, ...] = ("final", "early")
    no_mixup = "it weighs each by whether the early teacher knows its class"

    def __init__(
        self, sizes: Sizes, *, factor: float = 50.0, weight: float = 1.0, reduction: int = 2, task_weight: float = 0.0
    ) -> None:
        super().__init__(sizes, weight=weight, reduction=reduction, task_weight=task_weight)
        check_labels(sizes)
        check_every_label(sizes)
        check_settings(factor=factor)
        self.factor = factor

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        early = teachers["early"].logits.detach()
        row = failure_weights(student.logits, early, batch.label, "jtt", self.factor)  # (B,)
        return {"map": self.weight * (row * self.errors(student, teachers)).mean()}
