"""Probabilistic knowledge transfer, Passalis & Tefas 2018: who is near whom, as a distribution over the batch."""
# B batch, D embedding of either side

from torch import Tensor

from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.subspace import unit
from antishortcut.types import Batch, Features, Sizes

EPSILON = 1e-7  # the authors': keeps the logarithm finite where rows are opposite


def neighbourhood(rows: Tensor) -> Tensor:
    """p_ij = k_ij / Σ_m k_im with k = (1 + cosine) / 2, of rows (B, D). (B, B)

    A row counts itself, as in the authors' code. A zero row has cosine 0 to all, itself too.
    """
    direction = unit(rows)
    kernel = ((1 + direction @ direction.T) / 2).clamp(min=0)  # opposite rows may round below 0. (B, B)
    return kernel / kernel.sum(dim=1, keepdim=True)


def pkt_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over all B² entries of q log((q + ε) / (p + ε)), q the teacher's. Embeddings (B, d) and (B, D)."""
    p, q = neighbourhood(student), neighbourhood(teacher)  # (B, B)
    return (q * ((q + EPSILON) / (p + EPSILON)).log()).mean()


class PKT(Distillation):
    """task_weight · CE + weight · PKT, on embeddings. The loss is a mean over B² entries, hence the large weight."""

    def __init__(self, sizes: Sizes, *, weight: float = 30000.0, task_weight: float = 1.0) -> None:
        super().__init__()
        self.weight, self.task_weight = weight, task_weight

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        teacher = teachers["final"].embedding.detach().to(student.embedding)
        return {"pkt": self.weight * pkt_loss(student.embedding, teacher)}
