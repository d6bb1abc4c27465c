"""Cosine hint: student embeddings, through a linear head, point where the teacher's do."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.types import Batch, Features, Sizes


class CosineHint(nn.Module):
    roles: tuple[str, ...] = ("final",)  # the teacher states it needs
    taps: tuple[str, ...] = ()  # maps: "stages", "preact" (before the last ReLU), "last" (the last one)
    task_weight: float = 1.0  # required: weight of the task's own loss beside the terms

    def __init__(self, sizes: Sizes, *, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight
        self.head = nn.Linear(sizes.student.embedding, sizes.teachers["final"].embedding)

    def terms(
        self, student: Features, teachers: Mapping[str, Features], batch: Batch, epoch: float
    ) -> dict[str, Tensor]:
        similarity = F.cosine_similarity(self.head(student.embedding), teachers["final"].embedding.detach())  # (B,)
        return {"cosine": self.weight * (1 - similarity).mean()}
