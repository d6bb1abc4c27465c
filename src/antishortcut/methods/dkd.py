"""Decoupled knowledge distillation, Zhao, Cui, Song, Qiu & Liang 2022: target and other classes apart."""
# B batch, C classes

import torch
import torch.nn.functional as F
from torch import Tensor

from antishortcut.methods.asd import linear_warmup
from antishortcut.methods.checks import check_every_label, check_settings
from antishortcut.methods.kd import Distillation, Teachers, Terms, standardised
from antishortcut.types import Batch, Features, Sizes


def dkd_terms(student: Tensor, teacher: Tensor, label: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """TCKD and NCKD, whose weighted sum is τ² KL(teacher ‖ student); means over rows. Logits (B, C), label (B,).

    With the teacher's q and the student's p, softened by τ, and t the label:
    TCKD = τ² KL of the pairs (q_t, 1 − q_t) and (p_t, 1 − p_t);
    NCKD = τ² KL of the distributions over the classes other than t. Of one sample, KD = TCKD + (1 − q_t) NCKD.
    With two classes only one is left beside the target, so NCKD is 0; with a single class both are.
    """
    classes = student.shape[1]
    if classes < 2:
        zero = 0 * student.sum()
        return zero, zero
    number = torch.arange(classes - 1, device=label.device)
    remaining = number + (number >= label[:, None])  # every class but the label. (B, C − 1)
    pairs, non_target = [], []
    for logits in (student, teacher):
        log_p = F.log_softmax(logits / temperature, dim=1)  # (B, C)
        beside = log_p.gather(1, remaining)  # not all classes, the label lowered by 1000, as published. (B, C − 1)
        away = beside.logsumexp(dim=1, keepdim=True)  # log(1 − p_t) without 1 − p_t, which rounds to 0. (B, 1)
        pairs.append(torch.cat([log_p.gather(1, label[:, None]), away], dim=1))  # (B, 2)
        non_target.append(beside - away)  # (B, C − 1)
    scale = temperature**2
    tckd = scale * F.kl_div(pairs[0], pairs[1], reduction="batchmean", log_target=True)
    nckd = scale * F.kl_div(non_target[0], non_target[1], reduction="batchmean", log_target=True)
    return tckd, nckd


class DKD(Distillation):
    """task_weight · CE + min(t / warmup, 1) · (α TCKD + β NCKD).

    β = 8 is the default of the authors' code; recipes carry what it sets for their pair. standardise: as in KD.
    """

    no_mixup = "it treats the one true class apart"

    def __init__(
        self,
        sizes: Sizes,
        standardise: bool = False,
        *,
        alpha: float = 1.0,
        beta: float = 8.0,
        temperature: float = 4.0,
        warmup: float = 20.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_settings(temperature=temperature, warmup=warmup)
        check_every_label(sizes)
        self.alpha, self.beta, self.temperature = alpha, beta, temperature
        self.warmup, self.task_weight, self.standardise = warmup, task_weight, standardise

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        rows, teacher = student.logits, teachers["final"].logits.detach().to(student.logits)
        if self.standardise:
            rows, teacher = standardised(rows), standardised(teacher)
        tckd, nckd = dkd_terms(rows, teacher, batch.label, self.temperature)
        scale = linear_warmup(epoch, self.warmup)
        return {"tckd": scale * self.alpha * tckd, "nckd": scale * self.beta * nckd}
