"""Knowledge distillation, Hinton, Vinyals & Dean 2015."""
# B batch, C classes

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.types import Batch, Features, Sizes


def kd_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """τ² KL(teacher ‖ student) of softened class probabilities, mean over rows. Logits (B, C); none to the teacher."""
    _check(student, teacher, temperature)
    log_p = F.log_softmax(student / temperature, dim=1)  # (B, C)
    log_q = F.log_softmax(teacher.detach() / temperature, dim=1)  # (B, C)
    return temperature**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


class KD(nn.Module):
    """task_weight · CE + weight · τ²KL. The defaults, 1 and 1, are the paper's total (Eq. 9 without its last terms)."""

    roles: tuple[str, ...] = ("final",)
    taps: tuple[str, ...] = ()

    def __init__(
        self, sizes: Sizes, *, weight: float = 1.0, temperature: float = 4.0, task_weight: float = 1.0
    ) -> None:
        super().__init__()
        _check_temperature(temperature)
        self.weight, self.temperature, self.task_weight = weight, temperature, task_weight

    def terms(
        self, student: Features, teachers: Mapping[str, Features], batch: Batch, epoch: float
    ) -> dict[str, Tensor]:
        return {"kd": self.weight * kd_loss(student.logits, teachers["final"].logits, self.temperature)}


def _check(student: Tensor, teacher: Tensor, temperature: float) -> None:
    """Refuse what torch would broadcast, or speak of in its own words; of tensors no value is read: that is waiting."""
    for name, logits in (("student", student), ("teacher", teacher)):
        if not isinstance(logits, Tensor):
            raise TypeError(f"{name} is of type {type(logits).__name__}; it must be a tensor of logits (rows, classes)")
        if logits.ndim < 2:
            raise ValueError(f"{name} has shape {tuple(logits.shape)}; logits must be (rows, classes)")
    if student.shape != teacher.shape:  # a teacher's single row would fit every row of the student's
        raise ValueError(f"logits of the student are {tuple(student.shape)}, of the teacher {tuple(teacher.shape)}")
    if student.device != teacher.device:
        raise ValueError(f"teacher is on {teacher.device}, student on {student.device}; they must be on one device")
    if not isinstance(temperature, Tensor):  # a learned one
        _check_temperature(temperature)


def _check_temperature(temperature: float) -> None:
    """A setting of many methods, so whoever set it is told; to a loop of one's own it is a ValueError."""
    if not 0 < temperature < float("inf"):  # NaN is refused too
        raise UserError(f"temperature is {temperature}; it must be above 0, and finite")
