"""Contrastive representation distillation, Tian, Krishnan & Isola 2020."""
# B batch, C classes, N training images, K negatives, E embedding of the contrast (128), M queue

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from antishortcut.methods.kd import kd_loss
from antishortcut.subspace import unit
from antishortcut.types import Batch, Features, Sizes

EPS = 1e-7


def nce_loss(
    positive: Tensor, negative: Tensor, count: Tensor | int, examples: int, usable: Tensor | None = None
) -> Tensor:
    """Noise-contrastive estimation with uniform noise P_n = 1/N: −log D(positive) − Σ log(1 − D(negative)), batch mean.

    positive (B,) and negative (B, K) are scores exp(v·u/τ)/Z; `count` is the number of negatives m, one for all or one
    for each row (B,); `usable` (B, K) says which of them count.
    """
    noise = torch.as_tensor(count, dtype=positive.dtype, device=positive.device) / examples  # m·P_n
    row = noise if noise.ndim == 0 else noise[:, None]
    chosen = torch.log(positive / (positive + noise + EPS))  # (B,)
    rejected = torch.log(row / (negative + row + EPS))  # (B, K)
    if usable is not None:
        rejected = rejected.where(usable, 0.0)
    return -(chosen + rejected.sum(dim=1)).mean()


def draw_negatives(label: Tensor, labels: Tensor, k: int) -> Tensor:
    """K training images of other classes for each row, without replacement. (B, K) int64

    Row i takes the first K others from a random place of one random order of the set, so each row's negatives are a
    uniform K-subset, and a step needs one permutation instead of B.
    """
    n, b = len(labels), len(label)
    order = torch.randperm(n, device=labels.device)
    most = int(torch.bincount(labels).max())  # enough to step over a whole class
    reach = min(k + most, n)
    start = torch.randint(n, (b, 1), device=labels.device)
    place = order[(start + torch.arange(reach, device=labels.device)) % n]  # (B, reach)
    other = labels[place] != label[:, None]
    if int(other.sum(dim=1).min()) < k:
        raise ValueError(f"fewer than {k} training images of other classes; lower negatives")
    kept = other & (other.cumsum(dim=1) <= k)
    return place[kept].view(b, k)


class CRD(nn.Module):
    """CE + weight · (NCE with the student as anchor + NCE with the teacher as anchor) [+ kd · KD].

    memory="bank" is the published form: two banks of all N embeddings, `negatives` drawn from other classes.
    memory="queue" keeps the last `negatives` embeddings instead, for training sets whose banks do not fit.
    """

    roles: tuple[str, ...] = ("final",)
    taps: tuple[str, ...] = ()
    student_bank: Tensor
    teacher_bank: Tensor
    bank_label: Tensor
    labels: Tensor
    scale: Tensor

    def __init__(
        self,
        sizes: Sizes,
        *,
        weight: float = 0.8,
        negatives: int = 16384,
        temperature: float = 0.07,
        momentum: float = 0.5,
        width: int = 128,
        memory: Literal["bank", "queue"] = "bank",
        kd: float = 0.0,
        kd_temperature: float = 4.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if memory not in ("bank", "queue"):
            raise ValueError(f"memory is 'bank' or 'queue', not {memory!r}")
        if negatives < 1 or temperature <= 0 or not 0 <= momentum < 1:
            raise ValueError("negatives must be at least 1, temperature positive, momentum in [0, 1)")
        if sizes.labels is None:
            raise ValueError("needs the training labels")
        self.weight, self.temperature, self.momentum, self.memory = weight, temperature, momentum, memory
        self.kd, self.kd_temperature, self.task_weight, self.examples = kd, kd_temperature, task_weight, sizes.examples
        self.student_head = nn.Linear(sizes.student.embedding, width)
        self.teacher_head = nn.Linear(sizes.teachers["final"].embedding, width)
        others = sizes.examples - int(torch.bincount(sizes.labels).max())  # of the largest class, fewest others
        self.negatives = min(negatives, others) if memory == "bank" else min(negatives, sizes.examples)
        if self.negatives < 1:
            raise ValueError("needs training images of at least two classes")
        rows = sizes.examples if memory == "bank" else self.negatives
        bound = 1 / math.sqrt(width / 3)
        for name in ("student_bank", "teacher_bank"):
            self.register_buffer(name, torch.empty(rows, width).uniform_(-bound, bound))
        self.register_buffer("bank_label", torch.full((rows,), -1))  # of a queue's places; −1 is empty
        self.register_buffer("scale", torch.zeros(2))  # Z of both anchors, fixed by the first batch; 0 before
        self.register_buffer("labels", sizes.labels.clone(), persistent=False)

    def terms(
        self, student: Features, teachers: Mapping[str, Features], batch: Batch, epoch: float
    ) -> dict[str, Tensor]:
        final = teachers["final"]
        v_s = unit(self.student_head(student.embedding))  # (B, E)
        v_t = unit(self.teacher_head(final.embedding.detach()))  # (B, E)
        if self.memory == "bank":
            place = torch.cat([batch.index[:, None], draw_negatives(batch.label, self.labels, self.negatives)], dim=1)
            loss = self._against_bank(v_s, self.teacher_bank, place, 0) + self._against_bank(
                v_t, self.student_bank, place, 1
            )
        else:
            loss = self._against_queue(v_s, v_t, self.teacher_bank, batch.label, 0) + self._against_queue(
                v_t, v_s, self.student_bank, batch.label, 1
            )
        if self.training:
            self._remember(v_s.detach(), v_t.detach(), batch)
        terms = {"crd": self.weight * loss}
        if self.kd != 0:
            terms["kd"] = self.kd * kd_loss(student.logits, final.logits, self.kd_temperature)
        return terms

    def _against_bank(self, anchor: Tensor, bank: Tensor, place: Tensor, side: int) -> Tensor:
        """All N similarities by one product, then the wanted ones: gathering rows first would move B·K·E numbers."""
        score = torch.exp((anchor @ bank.T).gather(1, place) / self.temperature)  # (B, 1 + K), the positive first
        score = score / self._constant(score, side)
        return nce_loss(score[:, 0], score[:, 1:], self.negatives, self.examples)

    def _against_queue(self, anchor: Tensor, positive: Tensor, queue: Tensor, label: Tensor, side: int) -> Tensor:
        """The positive is the pair's other side itself; queued rows of other classes are the negatives."""
        usable = (self.bank_label[None] != label[:, None]) & (self.bank_label >= 0)[None]  # (B, M)
        match = torch.exp((anchor * positive).sum(dim=1) / self.temperature)  # (B,)
        others = torch.exp(anchor @ queue.T / self.temperature)  # (B, M)
        constant = self._constant(torch.cat([match[:, None], others], dim=1), side)
        count = usable.sum(dim=1).clamp(min=1)  # (B,)
        return nce_loss(match / constant, others / constant, count, self.examples, usable)

    @torch.no_grad()
    def _constant(self, score: Tensor, side: int) -> Tensor:
        """Z = N × the mean score of the first training batch, as published; before it, of this batch."""
        if self.scale[side] > 0:
            return self.scale[side]
        found = score.detach().mean() * self.examples
        if self.training:
            scale = self.scale.clone()
            scale[side] = found
            self.scale = scale
        return found

    @torch.no_grad()
    def _remember(self, v_s: Tensor, v_t: Tensor, batch: Batch) -> None:
        """New tensors: the old ones may be part of a graph that has yet to run backward."""
        if self.memory == "bank":
            for name, v in (("student_bank", v_s), ("teacher_bank", v_t)):
                bank = getattr(self, name)
                mixed = unit(self.momentum * bank[batch.index] + (1 - self.momentum) * v)
                setattr(self, name, bank.index_copy(0, batch.index, mixed))
            return
        for name, rows in (("student_bank", v_s), ("teacher_bank", v_t), ("bank_label", batch.label)):
            old = getattr(self, name)
            setattr(self, name, torch.cat([rows[: len(old)], old[: max(len(old) - len(rows), 0)]]))
