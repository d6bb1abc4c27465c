"""DIST: distillation from a stronger teacher, Huang, You, Wang, Qian & Xu 2022: match correlations, not values."""
# B batch, C classes

import torch
from torch import Tensor

from antishortcut.methods.checks import check_settings, check_tensors
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.types import Batch, Features, Sizes

EPSILON = 1e-8  # the authors'
LEAST = 1e-4  # a row that varies by a smaller share of its length counts as constant, so that its gradient is bounded


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's ρ of each row of (B, C) and (B, C): unchanged by a positive scale and a shift of either. (B,)"""
    centred, lengths = [], []
    for rows in (a, b):
        whole = torch.linalg.vector_norm(rows.detach(), dim=1)  # (B,)
        rows = rows - rows.mean(dim=1, keepdim=True)
        centred.append(rows)
        lengths.append(torch.linalg.vector_norm(rows, dim=1).clamp(min=LEAST * whole))
    rho: Tensor = (centred[0] * centred[1]).sum(dim=1) / (lengths[0] * lengths[1] + EPSILON)
    return rho


def dist_terms(student: Tensor, teacher: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """τ² (1 − mean ρ) of rows, a sample's classes, and of columns, a class's samples. From logits (B, C)."""
    check_tensors(student=student, teacher=teacher)
    p, q = ((logits / temperature).softmax(dim=1) for logits in (student, teacher.detach()))  # (B, C)
    inter, intra = 1 - correlation(p, q).mean(), 1 - correlation(p.T, q.T).mean()
    return temperature**2 * inter, temperature**2 * intra


class DIST(Distillation):
    """task_weight · CE + inter · τ² (1 − ρ of rows) + intra · τ² (1 − ρ of columns)."""

    def __init__(
        self,
        sizes: Sizes,
        *,
        inter: float = 2.0,
        intra: float = 2.0,
        temperature: float = 4.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_settings(temperature=temperature)
        self.inter, self.intra, self.temperature, self.task_weight = inter, intra, temperature, task_weight

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        inter, intra = dist_terms(student.logits, teachers["final"].logits, self.temperature)
        return {"inter": self.inter * inter, "intra": self.intra * intra}
