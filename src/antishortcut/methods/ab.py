"""AB: distillation of activation boundaries, Heo, Lee, Yun & Choi 2019: which neurons fire is learned first."""
# B batch, C channels, H × W pixels

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.at import past_stem, stage_pairs
from antishortcut.methods.checks import check_preact, check_settings
from antishortcut.methods.fitnets import Stage, averaged_to, regressor
from antishortcut.methods.fsp import TrunkFirst
from antishortcut.models.layers import SingleSampleNorm2d
from antishortcut.types import Features, Sizes


def boundary_distance(student: Tensor, teacher: Tensor, margin: float) -> Tensor:
    """Σ max(0, margin − y s)² over the units s of maps (B, C, H, W) before the ReLU, for each row. (B,)

    y is 1 where the teacher's unit fires and −1 elsewhere. A teacher of another size is averaged to the student's.
    """
    teacher = averaged_to(student, teacher)
    side = torch.where(teacher > 0, 1.0, -1.0) + 0 * teacher  # no number if the teacher's is none
    return F.relu(margin - side * student).square().flatten(1).sum(dim=1)


def connector(student: Stage, teacher: Stage) -> nn.Module:
    """From the student's map to the teacher's channels and size; nothing where they are equal."""
    if student == teacher:
        return nn.Identity()
    return nn.Sequential(regressor(student, teacher), SingleSampleNorm2d(teacher[0]))


class AB(TrunkFirst):
    """In the first `init` epochs weight · Σ over stages of the boundary distance, then CE. See docs/methods/ab.md.

    The deepest stage counts once, each shallower one half of the one after it.
    """

    taps: tuple[str, ...] = ("preact",)

    def __init__(
        self, sizes: Sizes, *, weight: float = 0.003, margin: float = 1.0, init: float = 30.0, task_weight: float = 1.0
    ) -> None:
        super().__init__("ab", init, task_weight)
        check_preact(sizes)
        self.stages_read = past_stem(sizes.teachers["final"])
        check_settings(margin=margin)
        self.weight, self.margin = weight, margin
        pairs = stage_pairs(sizes.student.stages, sizes.teachers["final"].stages)
        self.connectors = nn.ModuleList(connector(*pair) for pair in pairs)  # deepest first

    def initial(self, student: Features, final: Features) -> Tensor:
        rows = []
        for depth, (maps, target) in enumerate(stage_pairs(student.preact, final.preact)):
            connected = self.connectors[depth](gather(maps))  # batch norm sees the maps of all processes, as on one
            rows.append(boundary_distance(connected, gather(target.detach()), self.margin) / 2**depth)  # (B,)
        return self.weight * torch.stack(rows).sum(dim=0).mean()
