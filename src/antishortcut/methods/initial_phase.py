"""What methods with an initial phase share: those first epochs of a run that train the student's trunk alone."""

from torch import Tensor, nn

from antishortcut.methods.checks import check_settings
from antishortcut.methods.kd import Teachers, Terms
from antishortcut.types import Batch, Features


class TrunkFirst(nn.Module):
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
