"""Residual training: the student learns what the early teacher's prediction, added to its own, leaves over.

Product-of-experts training (Clark, Yatskar & Zettlemoyer 2019; He, Zha & Wang 2019) with the teacher's early state as
the biased expert: part of the student's outputs in training, gone afterwards.
"""
# B batch, C classes

from dataclasses import replace

import torch.nn.functional as F

from antishortcut.methods.checks import check_settings
from antishortcut.methods.kd import KD, Teachers
from antishortcut.types import Features, Sizes


class ResidualKD(KD):
    """KD on student logits + λ max(log p_E, floor), which the task's own loss sees as well."""

    roles: tuple[str, ...] = ("final", "early")

    def __init__(
        self,
        sizes: Sizes,
        *,
        strength: float = 0.5,
        floor: float = -8.0,
        weight: float = 1.0,
        temperature: float = 4.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__(sizes, weight=weight, temperature=temperature, task_weight=task_weight)
        check_settings(strength=strength, floor=floor)
        self.strength, self.floor = strength, floor

    def view(self, student: Features, teachers: Teachers) -> Features:
        """The student as training sees it: its logits beside the early teacher's log-probabilities."""
        log_e = F.log_softmax(teachers["early"].logits.detach(), dim=1).clamp(min=self.floor)  # (B, C)
        return replace(student, logits=student.logits + self.strength * log_e)
