"""Attention transfer, Zagoruyko & Komodakis 2017: activation-based, squared, as in RepDistiller."""
# B batch, C channels, H × W pixels, P = H · W

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from antishortcut.distributed import gather
from antishortcut.methods.checks import check_stages
from antishortcut.methods.kd import Distillation, Teachers, Terms, kd_term
from antishortcut.subspace import unit
from antishortcut.types import Batch, Features, Shape, Sizes

T = TypeVar("T")


def attention(maps: Tensor) -> Tensor:
    """The mean over channels of squared maps (B, C, H, W), as rows of length 1. (B, P)"""
    # the norm needs no squared copy of the maps
    return unit((torch.linalg.vector_norm(maps, dim=1).square() / maps.shape[1]).flatten(1))


def attention_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of the attention of maps (B, C_s, H_s, W_s), (B, C_t, H_t, W_t), for each row. (B,)

    The larger map is averaged to the smaller's size before it is squared.
    """
    student, teacher = same_size(student, teacher)
    return (attention(student) - attention(teacher)).square().mean(dim=1)


def same_size(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Two maps (B, C, H, W), the larger averaged to the smaller's height and width."""
    size = (min(student.shape[2], teacher.shape[2]), min(student.shape[3], teacher.shape[3]))
    pooled = [maps if maps.shape[2:] == size else F.adaptive_avg_pool2d(maps, size) for maps in (student, teacher)]
    return pooled[0], pooled[1]


def stage_pairs(student: tuple[T, ...], teacher: tuple[T, ...]) -> list[tuple[T, T]]:
    """The stages of two networks, deepest first and without the stem; a network with a single stage uses that."""
    return list(zip(reversed(student[1:] or student), reversed(teacher[1:] or teacher), strict=False))


def past_stem(teacher: Shape) -> tuple[int, ...]:
    """Which of a teacher's stages `stage_pairs` may take."""
    stages = range(len(teacher.stages))
    return tuple(stages[1:] or stages)


class AT(Distillation):
    """task_weight · CE + weight · Σ over stages ‖attention difference‖² / P + kd · KD. See docs/methods/at.md."""

    taps: tuple[str, ...] = ("stages",)

    def __init__(
        self,
        sizes: Sizes,
        *,
        weight: float = 1000.0,
        kd: float = 0.0,
        kd_temperature: float = 4.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_stages(sizes)
        self.stages_read = past_stem(sizes.teachers["final"])
        self.weight, self.kd, self.kd_temperature, self.task_weight = weight, kd, kd_temperature, task_weight

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        final = teachers["final"]
        pairs = stage_pairs(student.stages, final.stages)
        rows = torch.stack([attention_distance(s, t.detach()) for s, t in pairs]).sum(dim=0)  # (B,)
        # the step gathers rows over processes, but not maps
        terms = {"at": self.weight * gather(rows).mean()}
        return terms | kd_term(self.kd, student, final, self.kd_temperature)
