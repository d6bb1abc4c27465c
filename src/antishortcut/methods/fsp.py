"""FSP: flow of solution procedure, Yim, Joo, Bae & Kim 2017: how each stage relates to the next is learned first."""
# B batch, C channels, H × W pixels, P = H · W

import torch
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.at import same_size
from antishortcut.methods.checks import check_settings, check_stages
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.types import Batch, Features, Sizes


class TrunkFirst(Distillation):
    """The loss `initial` alone in the first `init` epochs, then the task's loss alone."""

    def __init__(self, name: str, init: float, task_weight: float) -> None:
        super().__init__()
        check_settings(init=init)
        self.name, self.init, self.task_weight = name, init, task_weight

    def task_weight_at(self, epoch: float) -> float:
        return 0.0 if epoch < self.init else self.task_weight

    def initial(self, student: Features, final: Features) -> Tensor:
        """The weighted loss of a batch."""
        raise NotImplementedError

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        if epoch < self.init:
            return {self.name: self.initial(student, teachers["final"])}
        return {self.name: zero_term(self, student)}


def zero_term(module: nn.Module, student: Features) -> Tensor:
    """0, with a gradient of 0 for the student and every parameter of the module: DDP waits for each of them."""
    return sum((0.0 * parameter.sum() for parameter in module.parameters()), 0.0 * student.logits.sum())


def flow(maps: Tensor, deeper: Tensor) -> Tensor:
    """Products of the channels of two maps (B, C, H, W), (B, D, H, W), averaged over pixels. (B, C, D)

    The larger map is first averaged to the smaller's size.
    """
    one, two = (each.flatten(2) for each in same_size(maps, deeper))  # (B, C, P), (B, D, P)
    return one @ two.transpose(1, 2) / one.shape[2]


class FSP(TrunkFirst):
    """In the first `init` epochs weight · Σ mean squared difference of the flows, then CE. See docs/methods/fsp.md."""

    taps: tuple[str, ...] = ("stages",)

    def __init__(self, sizes: Sizes, *, weight: float = 1.0, init: float = 30.0, task_weight: float = 1.0) -> None:
        super().__init__("fsp", init, task_weight)
        check_stages(sizes)
        student, teacher = (
            [channels for channels, _, _ in shape.stages] for shape in (sizes.student, sizes.teachers["final"])
        )
        if student != teacher or len(student) < 2:
            raise ValueError(
                "needs two or more stages with the same channels in both networks, but the student's have "
                f"{_numbers(student)}, the teacher's {_numbers(teacher)}; take a method that fits any pair, like at"
            )
        self.weight = weight

    def initial(self, student: Features, final: Features) -> Tensor:
        rows = torch.zeros_like(student.stages[0][:, 0, 0, 0])  # (B,)
        for i in range(len(student.stages) - 1):
            ours, target = (flow(net.stages[i], net.stages[i + 1]) for net in (student, final))  # (B, C, D)
            rows = rows + (ours - target.detach()).square().mean(dim=(1, 2))
        return self.weight * gather(rows).mean()  # the step gathers rows over processes, but not maps


def _numbers(channels: list[int]) -> str:
    return ", ".join(map(str, channels))
