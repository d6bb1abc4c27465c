"""Relational knowledge distillation, Park, Kim, Lu & Cho 2019: distances of pairs and angles of triplets."""
# B batch, D embedding of either side, r = min(B, D)

import torch
import torch.nn.functional as F
from torch import Tensor

from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.types import Batch, Features, Sizes


def offsets(rows: Tensor) -> Tensor:
    """x_j − x_i of all pairs of rows (B, D), up to a rotation and a common scale. (B, B, r)

    The losses ignore shift, scale and rotation, so all three may be chosen, and held constant, without changing a value
    or a gradient: centred and brought near 1 (no overflow, no lost digits), and turned into the at most B dimensions
    that B rows span, so that no (B, B, D) is formed. A Gram matrix would do without offsets, but near neighbours lose
    their digits in it.
    """
    fixed = rows.detach()
    largest = fixed.abs().amax()
    scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    rows = rows / scale - (fixed / scale).mean(dim=0)  # (B, D)
    if len(rows) < rows.shape[1]:
        rows = rows @ torch.linalg.qr(rows.detach().T).Q  # (B, D) → (B, r)
    apart = rows[None] - rows[:, None]  # [i, j] is x_j − x_i. (B, B, r)
    # equal rows may differ by the rounding of the product; that is no direction
    length = torch.linalg.vector_norm(apart.detach(), dim=2, keepdim=True)  # (B, B, 1)
    reach = torch.linalg.vector_norm(rows.detach(), dim=1).amax()
    same = length <= 10 * torch.finfo(rows.dtype).eps * reach
    return apart.masked_fill_(same, 0.0)


def distances(apart: Tensor) -> Tensor:
    """‖x_j − x_i‖ over their mean, that of the positive ones, from offsets (B, B, r). (B, B)"""
    length: Tensor = torch.linalg.vector_norm(apart, dim=2)  # its gradient at 0 is 0
    return length * (length > 0).sum() / torch.where(length.sum() > 0, length.sum(), torch.ones_like(length.sum()))


def angles(apart: Tensor) -> Tensor:
    """Cosine of the angle at i between j and k, from offsets (B, B, r); 0 where two of them coincide. (B, B, B)"""
    length = torch.linalg.vector_norm(apart, dim=2, keepdim=True)  # (B, B, 1)
    direction = apart / torch.where(length > 0, length, torch.ones_like(length))  # offsets are near 1 already
    return direction @ direction.transpose(1, 2)


def rkd_terms(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Huber losses between normalised distances, mean over B² pairs, and between angles, mean over B³ triplets.

    Embeddings (B, d) and (B, D). Unchanged when either side is shifted, scaled or rotated.
    """
    apart = offsets(student), offsets(teacher)
    distance = F.smooth_l1_loss(distances(apart[0]), distances(apart[1]))
    return distance, F.smooth_l1_loss(angles(apart[0]), angles(apart[1]))


class RKD(Distillation):
    """task_weight · CE + distance · RKD-D + angle · RKD-A, on embeddings."""

    def __init__(self, sizes: Sizes, *, distance: float = 25.0, angle: float = 50.0, task_weight: float = 1.0) -> None:
        super().__init__()
        self.distance, self.angle, self.task_weight = distance, angle, task_weight

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        teacher = teachers["final"].embedding.detach().to(student.embedding)
        distance, angle = rkd_terms(student.embedding, teacher)
        return {"distance": self.distance * distance, "angle": self.angle * angle}
