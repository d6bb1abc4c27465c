"""Neuron selectivity transfer, Huang & Wang 2017: channels respond to the same places; MMD with the kernel (aᵀb)²."""
# B batch, C channels, H × W pixels, P = H · W

import torch
from torch import Tensor

from antishortcut.distributed import gather
from antishortcut.methods.at import past_stem, same_size, stage_pairs
from antishortcut.methods.checks import check_stages
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.subspace import unit
from antishortcut.types import Batch, Features, Sizes


def nst_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared MMD between the channels of maps (B, C_s, H, W) and (B, C_t, H, W), for each row. (B,)

    A channel is its responses at P pixels, scaled to length 1. The larger map is first averaged to the smaller's size.
    """
    s, t = (unit(maps.flatten(2)) for maps in same_size(student, teacher))  # (B, C_s, P), (B, C_t, P)
    if s.shape[2] <= max(s.shape[1], t.shape[1]):
        # the mean of (aᵀb)² is ⟨A, B⟩ with A = Σ a aᵀ / C: the distance of two P × P matrices
        return (s.mT @ s / s.shape[1] - t.mT @ t / t.shape[1]).square().sum(dim=(1, 2))
    pairs = (s, s), (t, t), (s, t)
    same, target, across = ((a @ b.mT).square().mean(dim=(1, 2)) for a, b in pairs)  # of C × C
    return same + target - 2 * across


class NST(Distillation):
    """task_weight · CE + weight · Σ over stages MMD². See docs/methods/nst.md."""

    taps: tuple[str, ...] = ("stages",)

    def __init__(self, sizes: Sizes, *, weight: float = 50.0, task_weight: float = 1.0) -> None:
        super().__init__()
        check_stages(sizes)
        self.stages_read = past_stem(sizes.teachers["final"])
        self.weight, self.task_weight = weight, task_weight

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        pairs = stage_pairs(student.stages, teachers["final"].stages)
        rows = torch.stack([nst_distance(s, t.detach()) for s, t in pairs]).sum(dim=0)  # (B,)
        # the step gathers rows over processes, but not maps
        return {"nst": self.weight * gather(rows).mean()}
