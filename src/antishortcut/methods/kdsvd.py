"""KD-SVD, Lee, Kim & Song 2018, as in RepDistiller: how the leading singular vectors of neighbouring stages relate."""
# B batch, C channels, H × W pixels, P = H · W, R = min(P, C)

import torch
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.at import past_stem, stage_pairs
from antishortcut.methods.checks import check_stages
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.types import Batch, Features, Sizes

CANDIDATES = 4  # of the student's vectors, one of which is compared with the teacher's first
TIE = 1e-5  # gaps of squared singular values, the largest being 1, below which their gradient fades


def direction(maps: Tensor, target: Tensor | None = None) -> Tensor:
    """The first right singular vector of the matrices (P, C) of maps (B, C, H, W), with a sum of 0 or more. (B, C)

    With a target (B, C): of the first CANDIDATES the one nearest to it up to sign, with the target's sign. A map of
    zeros has no vector: it gives zeros, and so does a target of zeros.
    """
    rows = maps.flatten(2).mT  # (B, P, C)
    with torch.no_grad():
        clean = torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)  # svd refuses them; `turn` has them
        _, values, vectors = torch.linalg.svd(clean, full_matrices=False)  # (B, R), (B, R, C)
        first = values[:, :1]
        scale = torch.where(first > 0, first, torch.ones_like(first))
        if target is None:
            place = torch.zeros_like(first, dtype=torch.int64)  # (B, 1)
            sign = torch.where(vectors[:, 0].sum(dim=1, keepdim=True) < 0, -1.0, 1.0) * (first > 0)  # (B, 1)
        else:
            cosine = (vectors[:, :CANDIDATES] @ target[:, :, None]).squeeze(2)  # (B, CANDIDATES)
            place = cosine.abs().argmax(dim=1, keepdim=True)  # (B, 1)
            sign = cosine.gather(1, place).sign()  # (B, 1)
        chosen = vectors.gather(1, place[:, :, None].expand(-1, -1, vectors.shape[2]))  # (B, 1, C)
        squares = (values / scale).square()  # (B, R)
        own = squares.gather(1, place)  # (B, 1)
    # v turns by Σ_j v_j (v_jᵀ dG v) / (λ − λ_j) with G = XᵀX: zero here, but its gradient is the vector's
    rows = rows / scale[:, :, None]
    moved = chosen @ rows.mT @ rows  # (B, 1, C)
    moved = moved - moved.detach()
    along = moved @ vectors.mT  # (B, 1, R)
    inside = (along * _inverse(own - squares)[:, None]) @ vectors  # (B, 1, C)
    outside = (moved - along @ vectors) * _inverse(own)[:, None]  # where all λ_j are 0, if C > P
    vector: Tensor = sign * (chosen + inside + outside).squeeze(1)
    return vector


def _inverse(gap: Tensor) -> Tensor:
    """1 / gap, but 0 instead of infinity where two singular values are tied."""
    return gap / (gap.square() + TIE**2)


def relation(vector: Tensor, neighbour: Tensor) -> Tensor:
    """exp(−(v_i − w_j)² / 8) of all pairs of channels of two stages' vectors (B, C), (B, D). (B, C, D)"""
    return (-(vector[:, :, None] - neighbour[:, None]).square() / 8).exp()


class KDSVD(Distillation):
    """task_weight · CE + weight · Σ over neighbouring stages ‖relation's difference‖². See docs/methods/kdsvd.md.

    Where the student's stage has other channels than the teacher's, a 1 × 1 convolution brings it to them.
    """

    taps: tuple[str, ...] = ("stages",)

    def __init__(self, sizes: Sizes, *, weight: float = 1.0, task_weight: float = 1.0) -> None:
        super().__init__()
        check_stages(sizes)
        self.stages_read = past_stem(sizes.teachers["final"])
        student, teacher = sizes.student.stages, sizes.teachers["final"].stages
        pairs = stage_pairs(student, teacher)  # deepest first
        if len(pairs) < 2:
            raise ValueError(
                "compares neighbouring stages, so both networks need three stages, the stem included: "
                f"the student has {len(student)} stages of feature maps, the teacher {len(teacher)}"
            )
        self.weight, self.task_weight = weight, task_weight
        self.align = nn.ModuleList(
            nn.Identity() if s[0] == t[0] else nn.Conv2d(s[0], t[0], 1, bias=False) for s, t in pairs
        )

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        pairs, losses = stage_pairs(student.stages, teachers["final"].stages), []
        targets = [direction(t.detach()) for _, t in pairs]
        vectors = [direction(align(s), t) for align, (s, _), t in zip(self.align, pairs, targets, strict=True)]
        for i in range(1, len(pairs)):
            difference = relation(vectors[i], vectors[i - 1]) - relation(targets[i], targets[i - 1])  # (B, C, D)
            losses.append(difference.square().sum(dim=(1, 2)))
        # the step gathers rows over processes, but not maps
        return {"kdsvd": self.weight * gather(torch.stack(losses).sum(dim=0)).mean()}
