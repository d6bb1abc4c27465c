"""OFD: a comprehensive overhaul of feature distillation, Heo et al. 2019: maps before the ReLU, with a margin."""
# B batch, C channels, H × W pixels

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.at import past_stem, stage_pairs
from antishortcut.methods.checks import check_preact
from antishortcut.methods.fitnets import averaged_to
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.models.layers import SingleSampleNorm2d, init_convs
from antishortcut.types import Batch, Features, Sizes

RARE = 0.001  # share of negative values below which their mean is not taken


def partial_distance(student: Tensor, teacher: Tensor, margin: Tensor) -> Tensor:
    """Σ (s − t′)² with t′ = max(t, margin), but 0 where s ≤ t′ ≤ 0, for each row of maps (B, C, H, W). (B,)

    margin (C,) is that of each channel. A teacher of another size is averaged to the student's.
    """
    target = torch.maximum(averaged_to(student, teacher), margin[:, None, None])
    return ((student - target).square() * ((student > target) | (target > 0))).flatten(1).sum(dim=1)


class Margin:
    """Running sums from which the margin of each channel of a map is computed, in float64."""

    def __init__(self) -> None:
        self.count, self.sums = 0, torch.zeros(0)

    def add(self, maps: Tensor) -> None:
        """Maps (B, C, H, W) before the ReLU."""
        values = maps.detach().transpose(0, 1).flatten(1)  # (C, …)
        negative = values.clamp(max=0)
        exact = torch.float32 if values.device.type == "mps" else torch.float64
        sums = [x.sum(dim=1, dtype=exact) for x in (negative, values < 0, values, values.to(exact).square())]
        self.sums = torch.stack(sums) + (self.sums if self.count else 0)  # (4, C)
        self.count += values.shape[1]

    def value(self) -> Tensor:
        """E[x | x < 0]; where hardly any value is negative −3 standard deviations. (C,)"""
        below, often, total, squares = self.sums / self.count
        deviation = (squares - total.square()).clamp(min=0).sqrt()
        return torch.where(often > RARE, below / often, -3 * deviation)


class OFD(Distillation):
    """task_weight · CE + weight · Σ over stages of the partial distance. See docs/methods/ofd.md.

    The deepest stage counts once, each shallower one half of the one after it. Margins are 0 before `prepare`.
    """

    taps: tuple[str, ...] = ("preact",)

    def __init__(self, sizes: Sizes, *, weight: float = 0.001, task_weight: float = 1.0) -> None:
        super().__init__()
        check_preact(sizes)
        self.stages_read = past_stem(sizes.teachers["final"])
        self.weight, self.task_weight = weight, task_weight
        self.connectors = nn.ModuleList()  # deepest first, as the margins
        pairs = stage_pairs(sizes.student.stages, sizes.teachers["final"].stages)
        for depth, ((c_s, *_), (c_t, *_)) in enumerate(pairs):
            self.connectors.append(nn.Sequential(nn.Conv2d(c_s, c_t, 1, bias=False), SingleSampleNorm2d(c_t)))
            self.register_buffer(f"margin{depth}", torch.zeros(c_t))
        init_convs(self)

    @torch.no_grad()
    def prepare(self, stream: Iterable[Mapping[str, Features]]) -> None:
        """One pass over the teacher's maps of the training set, for the margins."""
        margins = [Margin() for _ in self.connectors]
        for outputs in stream:
            maps = outputs["final"].preact
            for margin, (target, _) in zip(margins, stage_pairs(maps, maps), strict=False):
                margin.add(target)
        if any(margin.count == 0 for margin in margins):
            raise ValueError("no features to take the margins from")
        for depth, margin in enumerate(margins):
            self._margin(depth).copy_(margin.value())

    def _margin(self, depth: int) -> Tensor:
        return self.get_buffer(f"margin{depth}")

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        rows = []
        for depth, (maps, target) in enumerate(stage_pairs(student.preact, teachers["final"].preact)):
            connected = self.connectors[depth](gather(maps))  # batch norm sees the maps of all processes, as on one
            rows.append(partial_distance(connected, gather(target.detach()), self._margin(depth)) / 2**depth)  # (B,)
        return {"ofd": self.weight * torch.stack(rows).sum(dim=0).mean()}
