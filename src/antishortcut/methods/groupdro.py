"""KD for the worst group, by GroupDRO (Sagawa, Koh, Hashimoto & Liang 2020): groups with a high loss count for more."""
# B batch, C classes, G groups

import torch
import torch.nn.functional as F
from torch import Tensor

from antishortcut.methods.checks import check_groups, check_settings
from antishortcut.methods.kd import Distillation, Teachers, Terms, kl_rows
from antishortcut.types import Batch, Features, Sizes


def group_means(rows: Tensor, group: Tensor, groups: int) -> Tensor:
    """The mean of rows (B,) in every group; 0 for a group without rows. (G,)"""
    member = (group[:, None] == torch.arange(groups, device=group.device)).to(rows)  # (B, G)
    return rows @ member / member.sum(dim=0).clamp(min=1)


class GroupDRO(Distillation):
    """Σ_g q_g (ce · CE_g + weight · τ² KL_g), means over a group's rows; so the task's own loss has weight 0.

    Each training step first multiplies q_g by exp(step_size · (ℓ_g + adjustment / √n_g)), ℓ_g the group's loss and n_g
    its training images, and divides by the sum.
    """

    no_mixup = "it weighs each by the loss of its group"
    group: Tensor
    log_q: Tensor
    count: Tensor

    def __init__(
        self,
        sizes: Sizes,
        *,
        step_size: float = 0.01,
        adjustment: float = 0.0,
        balanced: bool = True,
        weight: float = 1.0,
        temperature: float = 4.0,
        ce: float = 1.0,
        task_weight: float = 0.0,
    ) -> None:
        super().__init__()
        check_settings(step_size=step_size, adjustment=adjustment, temperature=temperature)
        group = check_groups(sizes)
        self.step_size, self.adjustment, self.weight, self.temperature = step_size, adjustment, weight, temperature
        self.ce, self.task_weight = ce, task_weight
        self.balanced_groups = group if balanced else None
        count = torch.bincount(group)  # (G,)
        self.register_buffer("group", group.clone(), persistent=False)
        self.register_buffer("count", count, persistent=False)
        self.register_buffer("log_q", -torch.full((len(count),), float(len(count))).log())  # q itself may underflow

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        tau, final = self.temperature, teachers["final"].logits.detach()
        ce = F.cross_entropy(student.logits, batch.label, reduction="none")  # (B,)
        kl = kl_rows(student.logits, final, tau)  # (B,)
        group = self.group[batch.index]  # (B,)
        ce, kd = (group_means(x, group, len(self.log_q)) for x in (self.ce * ce, self.weight * tau**2 * kl))  # (G,)
        if self.training:
            loss = (ce + kd).detach() + self.adjustment / self.count.to(ce).sqrt()  # (G,)
            self.log_q = F.log_softmax(self.log_q + self.step_size * loss, dim=0).to(self.log_q)
        q = self.log_q.exp().to(ce)  # (G,)
        return {"ce": q @ ce, "kd": q @ kd}
