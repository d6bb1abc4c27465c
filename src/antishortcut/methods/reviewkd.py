"""ReviewKD: distilling knowledge via knowledge review, Chen, Liu, Zhao & Jia 2021.

From the student's deepest feature to its shallowest, each is fused with the deeper ones (ABF, attention based fusion)
and compared with the teacher's at several scales (HCL, hierarchical context loss).
"""
# B batch, C channels, M width of the fusion, H × W pixels, D embedding

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.asd import linear_warmup
from antishortcut.methods.at import past_stem
from antishortcut.methods.checks import check_settings, check_stages
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.models.layers import SingleSampleNorm2d
from antishortcut.types import Batch, Features, Shape, Sizes

LEVELS = (4, 2, 1)  # sides of the averaged maps of the context loss


def context_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """HCL: mean squared error of maps (B, C, H, W) and of their averages to 4 × 4, 2 × 2 and 1 × 1.

    Each level, of those smaller than the map, weighs half the one before; the weights are divided by their sum.
    """
    loss, weight, total = F.mse_loss(student, teacher), 1.0, 1.0
    for side in LEVELS:
        if side < min(student.shape[2:]):
            weight /= 2
            total += weight
            coarse = F.adaptive_avg_pool2d(student, side), F.adaptive_avg_pool2d(teacher, side)  # (B, C, side, side)
            loss = loss + weight * F.mse_loss(*coarse)
    return loss / total


def review_maps(stages: tuple[Tensor, ...], embedding: Tensor | None) -> list[Tensor]:
    """What is reviewed, deepest first: the embedding (B, D), if any, as a 1 × 1 map, then the stages, not the stem."""
    deepest = [] if embedding is None else [embedding[:, :, None, None]]
    return [*deepest, *reversed(stages[1:] or stages)]


def review_channels(shape: Shape, whole: bool) -> list[int]:
    """The channels of `review_maps`; whole: with the embedding."""
    deepest = [shape.embedding] if whole else []
    return [*deepest, *(c for c, _, _ in reversed(shape.stages[1:] or shape.stages))]


class Fusion(nn.Module):
    """ABF: a feature and the fused deeper ones, each weighed at every pixel, as a map of the teacher's shape."""

    def __init__(self, c_in: int, width: int, c_out: int, *, first: bool) -> None:
        super().__init__()
        narrow = nn.Conv2d(c_in, width, 1, bias=False)
        widen = nn.Conv2d(width, c_out, 3, padding=1, bias=False)
        for conv in (narrow, widen):
            nn.init.kaiming_uniform_(conv.weight, a=1)
        self.narrow = nn.Sequential(narrow, SingleSampleNorm2d(width))
        self.attend = None if first else nn.Conv2d(2 * width, 2, 1)
        self.widen = nn.Sequential(widen, SingleSampleNorm2d(c_out))

    def forward(self, maps: Tensor, deeper: Tensor | None, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Maps (B, C_in, H, W) and the deeper fused (B, M, h, w) → (B, C_out, *size), and the fused (B, M, *size)."""
        fused: Tensor = self.narrow(maps)  # (B, M, H, W)
        if self.attend is not None and deeper is not None:
            deeper = F.interpolate(deeper, fused.shape[2:], mode="nearest")  # (B, M, H, W)
            share = torch.sigmoid(self.attend(torch.cat([fused, deeper], dim=1)))  # (B, 2, H, W)
            fused = fused * share[:, :1] + deeper * share[:, 1:]
        if fused.shape[2:] != size:
            fused = F.interpolate(fused, size, mode="nearest")  # (B, M, *size)
        return self.widen(fused), fused


class ReviewKD(Distillation):
    """task_weight · CE + min(t / warmup, 1) · weight · Σ HCL(fused student, teacher). See docs/methods/reviewkd.md.

    width: at most so many channels in the fusion, fewer if the student's embedding is narrower.
    In segmentation the embedding is a map of which a method sees sampled rows: only the stages are reviewed.
    """

    taps: tuple[str, ...] = ("stages",)

    def __init__(
        self, sizes: Sizes, *, weight: float = 5.0, warmup: float = 20.0, width: int = 512, task_weight: float = 1.0
    ) -> None:
        super().__init__()
        student, teacher = sizes.student, sizes.teachers["final"]
        check_stages(sizes)
        self.stages_read = past_stem(teacher)
        check_settings(width=width, warmup=warmup)
        self.weight, self.warmup, self.task_weight = weight, warmup, task_weight
        width = min(width, student.embedding)
        self.whole = not student.maps
        channels = (review_channels(shape, self.whole) for shape in (student, teacher))
        pairs = enumerate(zip(*channels, strict=False))  # deepest first
        self.fusions = nn.ModuleList(Fusion(c_in, width, c_out, first=i == 0) for i, (c_in, c_out) in pairs)

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        # the step gathers embeddings over processes, but not maps
        final = teachers["final"]
        rows = (student.embedding, final.embedding.detach()) if self.whole else (None, None)
        inputs = review_maps((), rows[0]) + [gather(maps) for maps in review_maps(student.stages, None)]
        targets = review_maps((), rows[1]) + [gather(maps.detach()) for maps in review_maps(final.stages, None)]
        losses, fused = [], None
        for fusion, maps, target in zip(self.fusions, inputs, targets, strict=False):
            reviewed, fused = fusion(maps, fused, target.shape[2:])
            losses.append(context_loss(reviewed, target))
        return {"review": linear_warmup(epoch, self.warmup) * self.weight * torch.stack(losses).sum()}
