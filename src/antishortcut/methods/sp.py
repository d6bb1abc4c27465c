"""Similarity-preserving distillation, Tung & Mori 2019: images alike to the teacher are to be alike to the student."""
# B batch, C channels, H × W pixels

from torch import Tensor

from antishortcut.distributed import gather
from antishortcut.methods.checks import check_stages
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.subspace import unit
from antishortcut.types import Batch, Features, Sizes


def similarity(maps: Tensor) -> Tensor:
    """Inner products of the maps (B, C, H, W) of all pairs of images, each row scaled to length 1. (B, B)"""
    rows = maps.flatten(1)  # (B, C · H · W)
    return unit(rows @ rows.T)


def sp_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over all B² pairs of the squared difference of similarities. Maps of any channels and sizes, equal B."""
    return (similarity(student) - similarity(teacher)).square().mean()


class SP(Distillation):
    """task_weight · CE + weight · SP, on one stage: 0 is the stem, −1 the deepest. See docs/methods/sp.md."""

    taps: tuple[str, ...] = ("stages",)

    def __init__(self, sizes: Sizes, *, weight: float = 3000.0, stage: int = -1, task_weight: float = 1.0) -> None:
        super().__init__()
        check_stages(sizes, stage=stage)
        self.stages_read = (stage,)
        self.weight, self.stage, self.task_weight = weight, stage, task_weight

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        # pairs are those of the whole batch; the step gathers rows over processes, but not maps
        maps, target = gather(student.stages[self.stage]), gather(teachers["final"].stages[self.stage].detach())
        return {"sp": self.weight * sp_loss(maps, target)}
