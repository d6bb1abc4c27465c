"""Knowledge distillation, Hinton, Vinyals & Dean 2015."""
# B batch, C classes

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.methods.checks import check_settings, check_tensors
from antishortcut.types import Batch, Features, Sizes

Teachers = Mapping[str, Features]  # by role
Terms = dict[str, Tensor]  # weighted scalar losses by name
LEAST_DEVIATION = 0.01  # of logits; with less the gradient of equal ones would be of order 1e7


class Distillation(nn.Module):
    """What a method is unless it says otherwise: taught by the final state alone, without feature maps."""

    roles: tuple[str, ...] = ("final",)
    taps: tuple[str, ...] = ()


def kd_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """τ² KL(teacher ‖ student) of softened probabilities, batch mean. Logits (B, C); no gradient to the teacher."""
    check_tensors(student=student, teacher=teacher)
    if not isinstance(temperature, Tensor):  # a learned one is not read: that would wait for the device
        check_settings(temperature=temperature)
    log_p = F.log_softmax(student / temperature, dim=1)  # (B, C)
    log_q = F.log_softmax(teacher.detach() / temperature, dim=1)  # (B, C)
    return temperature**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


def kl_rows(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of softened probabilities, of each row of logits (B, C). (B,)"""
    log_p, log_q = (F.log_softmax(logits / temperature, dim=1) for logits in (student, teacher))  # (B, C)
    return F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(dim=1)


def kd_term(weight: float, student: Features, teacher: Features, temperature: float) -> Terms:
    """KD beside another loss: {"kd": weight · KD}, or nothing where the weight is 0."""
    return {} if weight == 0 else {"kd": weight * kd_loss(student.logits, teacher.logits, temperature)}


def standardised(logits: Tensor) -> Tensor:
    """Logit standardisation (Sun et al. 2024): (z − mean) / (std + 1e-7) of each row (B, C). A single class gives 0."""
    centred = logits - logits.mean(dim=1, keepdim=True)
    if logits.shape[1] < 2:
        return centred
    return centred / (logits.std(dim=1, keepdim=True) + 1e-7).clamp(min=LEAST_DEVIATION)


class KD(Distillation):
    """task_weight · CE + weight · τ²KL. The defaults, 1 and 1, are the paper's total (Eq. 9 without its last terms).

    standardise: of the logits only the pattern counts. It is a setting of "kd+ls" alone, so that the hash of a run of
    "kd" does not depend on it.
    """

    def __init__(
        self,
        sizes: Sizes,
        standardise: bool = False,
        *,
        weight: float = 1.0,
        temperature: float = 4.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_settings(temperature=temperature)
        self.weight, self.temperature, self.task_weight = weight, temperature, task_weight
        self.standardise = standardise

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        rows, targets = student.logits, teachers[self.roles[0]].logits  # (B, C)
        if self.standardise:
            rows, targets = standardised(rows), standardised(targets)
        return {"kd": self.weight * kd_loss(rows, targets, self.temperature)}
