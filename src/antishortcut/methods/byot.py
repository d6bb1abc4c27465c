"""Be your own teacher (self-distillation), Zhang, Song, Gao, Chen, Bao & Ma 2019.

No teacher network: shallow stages get a classifier each, in training only, that learns from labels and the deepest one.
"""
# B batch, C classes, D embedding, S stages taught, c_i × h_i × w_i the map of stage i

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.checks import check_every_label, check_labels, check_settings
from antishortcut.methods.kd import Distillation, Teachers, Terms, kd_loss
from antishortcut.models.layers import SingleSampleNorm2d
from antishortcut.types import Batch, Features, Sizes

Map = tuple[int, int, int]  # channels, height, width


def byot_terms(
    logits: Sequence[Tensor],
    features: Sequence[Tensor],
    deepest: Tensor,
    embedding: Tensor,
    label: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ_i CE(y, p_i), Σ_i τ² KL(p_deepest ‖ p_i) and Σ_i ‖F_i − F_deepest‖², each a mean over rows.

    logits S × (B, C) and features S × (B, D) of the shallow branches; deepest (B, C) and embedding (B, D) are targets:
    no gradient reaches them.
    """
    deepest, embedding = deepest.detach(), embedding.detach()
    ce, kd, hint = deepest.new_zeros(()), deepest.new_zeros(()), deepest.new_zeros(())
    for shallow, feature in zip(logits, features, strict=True):
        ce = ce + F.cross_entropy(shallow, label)
        kd = kd + kd_loss(shallow, deepest, temperature)
        hint = hint + (feature - embedding).square().sum(dim=1).mean()
    return ce, kd, hint


def shrink(channels: int, width: int, stride: int) -> nn.Sequential:
    """Depthwise 3 × 3 → pointwise → BatchNorm → ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False),
        nn.Conv2d(channels, width, 1, bias=False),
        SingleSampleNorm2d(width),
        nn.ReLU(),
    )


class Branch(nn.Module):
    """A stage's map (B, c, h, w) → its feature (B, D) and logits (B, C).

    Halves the map until it is no larger than the deepest one, doubling the channels, then pools.
    """

    def __init__(self, stage: Map, deepest: Map, embedding: int, classes: int) -> None:
        super().__init__()
        channels, side, goal = stage[0], max(stage[1:]), max(deepest[1:])
        halvings = 0
        while side > goal:
            side, halvings = (side + 1) // 2, halvings + 1
        widths = [channels, *(min(channels * 2**i, embedding) for i in range(1, max(halvings, 1))), embedding]
        stride = 2 if halvings else 1  # a map as small as the deepest still gets one block
        self.blocks = nn.Sequential(*(shrink(a, b, stride) for a, b in pairwise(widths)))
        self.head = nn.Linear(embedding, classes)

    def forward(self, stage: Tensor) -> tuple[Tensor, Tensor]:
        feature = self.blocks(stage).mean(dim=(2, 3))  # (B, D)
        return feature, self.head(feature)


class BYOT(Distillation):
    """task_weight · CE + Σ_i (1 − α) CE_i + α τ² KL_i + hint · ‖F_i − F_deepest‖² over the shallow stages i.

    All stages but the last, which leads to the student's own classifier, and the first, which is the stem.
    """

    roles: tuple[str, ...] = ()
    taps: tuple[str, ...] = ("stages",)
    no_mixup = "its branches learn one class for each"

    def __init__(
        self,
        sizes: Sizes,
        *,
        alpha: float = 0.3,
        temperature: float = 3.0,
        hint: float = 0.03,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_labels(sizes)
        check_every_label(sizes)
        check_settings(alpha=alpha, temperature=temperature)
        maps = sizes.student.stages
        if len(maps) < 2:
            raise ValueError(f"it needs a student with at least two stages (feature maps); this one has {len(maps)}")
        self.alpha, self.temperature, self.hint, self.task_weight = alpha, temperature, hint, task_weight
        self.taught = slice(1 if len(maps) > 2 else 0, len(maps) - 1)
        self.branches = nn.ModuleList(
            Branch(shape, maps[-1], sizes.student.embedding, sizes.classes) for shape in maps[self.taught]
        )

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        features, logits = [], []
        for branch, stage in zip(self.branches, student.stages[self.taught], strict=True):
            feature, shallow = branch(stage)
            features.append(gather(feature))  # the step gathers rows over processes, but not maps
            logits.append(gather(shallow))
        ce, kd, hint = byot_terms(logits, features, student.logits, student.embedding, batch.label, self.temperature)
        return {"ce": (1 - self.alpha) * ce, "self": self.alpha * kd, "hint": self.hint * hint}
