"""Feature distillation: the student's embedding, in the teacher's space, is the teacher's. No classes needed."""
# B batch, D teacher features, d student features

import torch.nn.functional as F
from torch import Tensor

from antishortcut.methods.asd import ASDLoss, Projector
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.subspace import unit
from antishortcut.types import Batch, Features, Sizes


def unit_regression(student: Tensor, teacher: Tensor) -> Tensor:
    """‖h̄_S − h̄_F‖² = 2 − 2 cos, mean over rows (B, D); no gradient to the teacher."""
    return F.mse_loss(unit(student), unit(teacher.detach()), reduction="sum") / len(student)


class FeatureDistillation(Distillation):
    """weight · ‖h̄_S − h̄_F‖² + tc · L_TC without the temporal negative, on embeddings; task_weight · CE with labels.

    Where the widths differ, a projector as ASD's leads to the teacher's space.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        weight: float = 1.0,
        tc: float = 0.8,
        temperature: float = 0.07,
        queue: int = 4096,
        warmup: float = 0.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        own, wide = sizes.student.embedding, sizes.teachers["final"].embedding
        self.weight, self.task_weight = weight, task_weight
        self.projector = Projector(own, wide) if own != wide else None
        settings = {"temperature": temperature, "warmup": warmup, "examples": sizes.examples}
        self.contrast = ASDLoss(wide, wide, tc=tc, ss=0.0, temporal=False, queue=queue, **settings)  # type: ignore[arg-type]

    def project(self, student: Tensor) -> Tensor:
        projected: Tensor = student if self.projector is None else self.projector(student)
        return projected

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        rows, final = self.project(student.embedding), teachers["final"].embedding.detach()  # (B, D)
        terms: Terms = self.contrast(rows, final, None, epoch=epoch, index=batch.index)
        return {"regression": self.weight * unit_regression(rows, final.to(rows))} | terms
