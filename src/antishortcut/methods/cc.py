"""Correlation congruence, Peng et al. 2019, in the form of the authors' code, which RepDistiller has."""
# B batch, D embedding of either side, E width of the heads

from torch import Tensor, nn

from antishortcut.methods.checks import check_settings
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.types import Batch, Features, Sizes


def cc_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over i of Σ_d δ_id δ_(i+1)d with δ = |student − teacher|, rows (B, E); 0 for a single row."""
    apart = (student - teacher).abs()
    return (apart[:-1] * apart[1:]).sum() / max(len(apart) - 1, 1)


class CC(Distillation):
    """task_weight · CE + weight · CC of both embeddings, each through a linear head that is trained.

    width: that of the heads. See docs/methods/cc.md.
    """

    def __init__(self, sizes: Sizes, *, weight: float = 0.02, width: int = 128, task_weight: float = 1.0) -> None:
        super().__init__()
        check_settings(width=width)
        self.weight, self.task_weight = weight, task_weight
        self.student = nn.Linear(sizes.student.embedding, width)
        self.teacher = nn.Linear(sizes.teachers["final"].embedding, width)

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        teacher = teachers["final"].embedding.detach().to(student.embedding)
        return {"cc": self.weight * cc_loss(self.student(student.embedding), self.teacher(teacher))}
