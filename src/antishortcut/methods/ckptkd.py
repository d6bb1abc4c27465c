"""Checkpoint distillation: KD from the intermediate state that knows most of image and label, Wang et al. 2022.

Which state that is, `antishortcut.teachers.selection` estimates; here it is the role "chosen".
"""
# B batch, C classes

from __future__ import annotations

from torch import nn

from antishortcut.methods.checks import check_labels, check_settings
from antishortcut.methods.kd import Teachers, Terms, kd_loss
from antishortcut.types import Batch, Features, Sizes


class CkptKD(nn.Module):
    """task_weight · CE + weight · τ²KL from the chosen state; 0.5, 0.5 and τ = 5 as published."""

    roles: tuple[str, ...] = ("chosen",)
    taps: tuple[str, ...] = ()

    def __init__(
        self, sizes: Sizes, *, weight: float = 0.5, temperature: float = 5.0, task_weight: float = 0.5
    ) -> None:
        super().__init__()
        check_labels(sizes)
        check_settings(temperature=temperature)
        self.weight, self.temperature, self.task_weight = weight, temperature, task_weight

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        return {"kd": self.weight * kd_loss(student.logits, teachers["chosen"].logits, self.temperature)}
