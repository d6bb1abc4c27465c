"""Variational information distillation, Ahn et al. 2019: a Gaussian around what the student predicts of the teacher.

Its mean at every pixel comes from a small network on the student's map; its variance is learned for every channel.
"""
# B batch, C channels, H × W pixels

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.at import past_stem, same_size, stage_pairs
from antishortcut.methods.checks import check_settings, check_stages
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.types import Batch, Features, Sizes

EPSILON = 1e-5  # the smallest variance


class Prediction(nn.Module):
    """A stage of the teacher with C_t channels, predicted from the student's with C_s."""

    def __init__(self, c_s: int, c_t: int, variance: float) -> None:
        super().__init__()
        first, *later = (nn.Conv2d(channels, c_t, 1, bias=False) for channels in (c_s, c_t, c_t))
        self.mean = nn.Sequential(first, nn.ReLU(), later[0], nn.ReLU(), later[1])
        above = variance - EPSILON
        self.alpha = nn.Parameter(torch.full((c_t,), above + math.log(-math.expm1(-above))))  # softplus⁻¹, no overflow

    def variance(self) -> Tensor:
        return F.softplus(self.alpha) + EPSILON  # (C_t,)

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Mean over channels and pixels of ½ ((mean − teacher)² / v + ln v), for each row. (B,)"""
        student, teacher = same_size(student, teacher)
        variance = self.variance()[:, None, None]  # (C_t, 1, 1)
        loss: Tensor = (self.mean(student) - teacher).square() / variance + variance.log()  # (B, C_t, H, W)
        return loss.mean(dim=(1, 2, 3)) / 2


class VID(Distillation):
    """task_weight · CE + weight · Σ over stages −ln q(teacher | student). See docs/methods/vid.md.

    variance: what the learned variances start at.
    """

    taps: tuple[str, ...] = ("stages",)

    def __init__(self, sizes: Sizes, *, weight: float = 1.0, variance: float = 5.0, task_weight: float = 1.0) -> None:
        super().__init__()
        check_stages(sizes)
        self.stages_read = past_stem(sizes.teachers["final"])
        check_settings(variance=variance)
        self.weight, self.task_weight = weight, task_weight
        pairs = stage_pairs(sizes.student.stages, sizes.teachers["final"].stages)  # deepest first
        self.predictions = nn.ModuleList(Prediction(s[0], t[0], variance) for s, t in pairs)

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        pairs = zip(self.predictions, stage_pairs(student.stages, teachers["final"].stages), strict=True)
        rows = torch.stack([predict(s, t.detach()) for predict, (s, t) in pairs]).sum(dim=0)  # (B,)
        # the step gathers rows over processes, but not maps
        return {"vid": self.weight * gather(rows).mean()}
