"""Snapshot distillation: averaged logits of several states of the teacher's trajectory (cf. Huang et al. 2017)."""
# B batch, C classes

import torch

from antishortcut.methods.kd import KD, Teachers, Terms, kd_loss
from antishortcut.types import Batch, Features, Sizes


class Snapshot(KD):
    """task_weight · CE + weight · KD from the mean logits of `states`, names of saved teacher states."""

    def __init__(
        self,
        sizes: Sizes,
        *,
        states: str = "50%, 75%, final",
        weight: float = 1.0,
        temperature: float = 4.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__(sizes, weight=weight, temperature=temperature, task_weight=task_weight)
        self.roles = tuple(dict.fromkeys(name.strip() for name in states.split(",") if name.strip()))
        if not self.roles:
            raise ValueError("states names no teacher state, like '50%, 75%, final'")

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        mean = torch.stack([teachers[role].logits for role in self.roles]).mean(dim=0)  # (B, C)
        return {"kd": self.weight * kd_loss(student.logits, mean, self.temperature)}
