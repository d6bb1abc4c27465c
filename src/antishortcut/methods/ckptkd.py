"""Checkpoint distillation: KD from the intermediate state that knows most of image and label, Wang et al. 2022.

Which state that is, `antishortcut.teachers.selection` estimates; here it is the role "chosen".
"""
# B batch, C classes

from antishortcut.methods.checks import check_every_label, check_labels
from antishortcut.methods.kd import KD
from antishortcut.types import Sizes


class CkptKD(KD):
    """task_weight · CE + weight · τ²KL from the chosen state; 0.5, 0.5 and τ = 5 as published."""

    roles: tuple[str, ...] = ("chosen",)

    def __init__(
        self, sizes: Sizes, *, weight: float = 0.5, temperature: float = 5.0, task_weight: float = 0.5
    ) -> None:
        super().__init__(sizes, weight=weight, temperature=temperature, task_weight=task_weight)
        check_labels(sizes)
        check_every_label(sizes)
