"""KD with samples weighted by the early teacher's failure: JTT (Liu et al. 2021) and LfF (Nam et al. 2020) in style."""
# B batch, C classes

import torch.nn.functional as F
from torch import Tensor

from antishortcut.methods.checks import check_choice, check_every_label, check_settings
from antishortcut.methods.kd import Distillation, Teachers, Terms, kl_rows
from antishortcut.types import Batch, Features, Sizes


def failure_weights(student: Tensor, early: Tensor, label: Tensor, scheme: str, factor: float) -> Tensor:
    """A weight for every row of logits (B, C), with mean 1 over the batch. (B,)

    jtt: `factor` where the early teacher is wrong, 1 elsewhere. lff: ℓ_E / (ℓ_E + ℓ_S), relative difficulty, with the
    cross-entropies of early teacher and student. Both are divided by their mean, so the learning rate needs no change.
    """
    if scheme == "jtt":
        weight = 1 + (factor - 1) * (early.argmax(dim=1) != label).to(student.dtype)  # (B,)
        weight = weight + 0 * early.sum(dim=1)  # argmax hides NaN; this keeps it visible
    else:
        own, other = (F.cross_entropy(logits.detach(), label, reduction="none") for logits in (student, early))
        weight = other / (other + own).clamp(min=1e-12)  # (B,)
    return weight / weight.mean().clamp(min=1e-12)


class Reweight(Distillation):
    """Cross-entropy and τ² KL, both weighted by row; so the task's own loss has weight 0."""

    roles: tuple[str, ...] = ("final", "early")
    no_mixup = "it weighs each by whether the early teacher knows its class"

    def __init__(
        self,
        sizes: Sizes,
        *,
        scheme: str = "jtt",
        factor: float = 10.0,
        weight: float = 1.0,
        temperature: float = 4.0,
        ce: float = 1.0,
        task_weight: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("scheme", scheme, ("jtt", "lff"))
        check_settings(factor=factor, temperature=temperature)
        check_every_label(sizes)
        self.scheme, self.factor, self.weight, self.temperature = scheme, factor, weight, temperature
        self.ce, self.task_weight = ce, task_weight

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        tau, final, early = self.temperature, teachers["final"].logits.detach(), teachers["early"].logits.detach()
        row = failure_weights(student.logits, early, batch.label, self.scheme, self.factor)  # (B,)
        own = F.cross_entropy(student.logits, batch.label, reduction="none")  # (B,)
        kl = kl_rows(student.logits, final, tau)  # (B,)
        return {"ce": self.ce * (row * own).mean(), "kd": self.weight * tau**2 * (row * kl).mean()}
