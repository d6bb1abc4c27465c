"""Contrastive representation distillation, Tian, Krishnan & Isola 2020."""
# B batch, C classes, N training images, K negatives, E embedding of the contrast (128), M queue

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antishortcut.methods.checks import check_choice, check_labels, check_settings
from antishortcut.methods.kd import kd_loss
from antishortcut.subspace import unit
from antishortcut.types import Batch, Features, Sizes

EPS = 1e-7


def nce_loss(
    positive: Tensor,
    negative: Tensor,
    count: Tensor | int,
    examples: int,
    usable: Tensor | None = None,
    constant: Tensor | float = 1.0,
) -> Tensor:
    """Noise-contrastive estimation with uniform noise P_n = 1/N: −log D(positive) − Σ log(1 − D(negative)), batch mean.

    positive (B,) and negative (B, K) are scores exp(v·u/τ), to be divided by the constant Z; `count` is the number of
    negatives m, one for all or one for each row (B,); `usable` (B, K) says which of them count.
    """
    share = (count.to(positive.dtype) if isinstance(count, Tensor) else count) / examples  # m·P_n
    noise, least = share * constant, (share + EPS) * constant  # times Z, instead of all scores divided by it
    if isinstance(noise, Tensor) and noise.ndim == 1:
        rejected = torch.log(noise[:, None] / (negative + least[:, None]))  # type: ignore[index]  # (B, K)
    else:
        rejected = torch.log(noise / (negative + least))  # (B, K)
    chosen = torch.log(positive / (positive + least))  # (B,)
    if usable is not None:
        rejected = rejected.where(usable, 0.0)
    return -(chosen + rejected.sum(dim=1)).mean()


def draw_negatives(label: Tensor, labels: Tensor, k: int, most: int | None = None) -> Tensor:
    """K training images of other classes for each row, without replacement. (B, K) int64

    Row i takes the first K others from a random place of one random order of the set, so each row's negatives are a
    uniform K-subset, and a step needs one permutation instead of B. most: the size of the largest class, if known.
    """
    n = len(labels)
    most = int(torch.bincount(labels).max()) if most is None else most
    if k > n - most:
        raise ValueError(f"fewer than {k} training images of other classes; lower negatives")
    reach = min(k + most, n)  # enough to step over a whole class
    order = torch.randperm(n, device=labels.device)
    order = torch.cat([order, order[:reach]])  # round the end
    start = torch.randint(n, (len(label),), device=labels.device)
    place = order.unfold(0, reach, 1)[start]  # (B, reach)
    other = labels[order].unfold(0, reach, 1)[start] != label[:, None]  # (B, reach)
    # others to the front, the rest behind them: a permutation of each row, and no mask that would have to be counted
    before = other.cumsum(dim=1)
    column = torch.arange(reach, device=labels.device)
    to = torch.where(other, before - 1, before[:, -1:] + column - before)
    return torch.empty_like(place).scatter_(1, to, place)[:, :k]


class _AtOnce(torch.autograd.Function):
    """A scalar loss of rows, with its gradient taken right away: what it was computed from may change afterwards."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.enable_grad():
            leaf = rows.detach().requires_grad_()
            value = loss(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
        ctx.save_for_backward(gradient)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradients[0] * gradient, None


class CRD(nn.Module):
    """CE + weight · (NCE with the student as anchor + NCE with the teacher as anchor) [+ kd · KD].

    memory="bank" is the published form: two banks of all N embeddings, `negatives` drawn from other classes.
    memory="queue" keeps the last `negatives` embeddings instead, for training sets whose banks do not fit.
    """

    roles: tuple[str, ...] = ("final",)
    taps: tuple[str, ...] = ()
    no_mixup = "it compares images by their class and keeps what it saw of each"
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
        check_choice("memory", memory, ("bank", "queue"))
        check_settings(negatives=negatives, temperature=temperature, momentum=momentum, width=width)
        labels = check_labels(sizes)
        self.weight, self.temperature, self.momentum, self.memory = weight, temperature, momentum, memory
        self.kd, self.kd_temperature, self.task_weight, self.examples = kd, kd_temperature, task_weight, sizes.examples
        self.student_head = nn.Linear(sizes.student.embedding, width)
        self.teacher_head = nn.Linear(sizes.teachers["final"].embedding, width)
        self.most = int(torch.bincount(labels).max())
        rest = sizes.examples - self.most  # of the largest class, fewest others
        self.negatives = min(negatives, rest) if memory == "bank" else min(negatives, sizes.examples)
        if self.negatives < 1:
            raise ValueError("needs training images of at least two classes")
        rows = sizes.examples if memory == "bank" else self.negatives
        bound = 1 / math.sqrt(width / 3)
        for name in ("student_bank", "teacher_bank"):
            self.register_buffer(name, torch.empty(rows, width).uniform_(-bound, bound))
        self.register_buffer("bank_label", torch.full((rows,), -1))  # of a queue's places; −1 is empty
        self.register_buffer("scale", torch.zeros(2))  # Z of both anchors, fixed by the first batch; 0 before
        self.register_buffer("labels", labels.clone(), persistent=False)

    def terms(
        self, student: Features, teachers: Mapping[str, Features], batch: Batch, epoch: float
    ) -> dict[str, Tensor]:
        final = teachers["final"]
        v_s = unit(self.student_head(student.embedding))  # (B, E)
        v_t = unit(self.teacher_head(final.embedding.detach()))  # (B, E)
        if self.memory == "bank":
            drawn = draw_negatives(batch.label, self.labels, self.negatives, self.most)
            place = torch.cat([batch.index[:, None], drawn], dim=1)  # (B, 1 + K), the positive first
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
        """All N similarities by one product, then the wanted ones: gathering rows first would move B·K·E numbers.

        The bank is in no graph afterwards, so that rows of it can be replaced without a copy of the others.
        """

        def loss(rows: Tensor) -> Tensor:
            score = torch.exp((rows / self.temperature @ bank.T).gather(1, place))  # (B, 1 + K)
            constant = self._constant(score.mean(), side)
            return nce_loss(score[:, 0], score[:, 1:], self.negatives, self.examples, constant=constant)

        result: Tensor = _AtOnce.apply(anchor, loss) if torch.is_grad_enabled() else loss(anchor)
        return result

    def _against_queue(self, anchor: Tensor, positive: Tensor, queue: Tensor, label: Tensor, side: int) -> Tensor:
        """The positive is the pair's other side itself; queued rows of other classes are the negatives."""
        usable = (self.bank_label[None] != label[:, None]) & (self.bank_label >= 0)[None]  # (B, M)
        near = anchor / self.temperature
        match = torch.exp((near * positive).sum(dim=1))  # (B,)
        rest = torch.exp(near @ queue.T)  # (B, M)
        mean = (match.sum() + rest.sum()) / (match.numel() + rest.numel())
        count = usable.sum(dim=1).clamp(min=1)  # (B,)
        return nce_loss(match, rest, count, self.examples, usable, self._constant(mean, side))

    @torch.no_grad()
    def _constant(self, mean: Tensor, side: int) -> Tensor:
        """Z = N × the mean score of the first training batch, as published; before it, of this batch."""
        fixed = self.scale[side]
        result = torch.where(fixed > 0, fixed, mean.detach() * self.examples)
        if self.training:
            scale = self.scale.clone()
            scale[side] = result
            self.scale = scale
        return result

    @torch.no_grad()
    def _remember(self, v_s: Tensor, v_t: Tensor, batch: Batch) -> None:
        """Rows of a bank in place. A new queue: the old one may be part of a graph that has yet to run backward."""
        if self.memory == "bank":
            for bank, v in ((self.student_bank, v_s), (self.teacher_bank, v_t)):
                mixed = unit(self.momentum * bank[batch.index] + (1 - self.momentum) * v)
                bank.index_copy_(0, batch.index, mixed)
            return
        for name, rows in (("student_bank", v_s), ("teacher_bank", v_t), ("bank_label", batch.label)):
            old = getattr(self, name)  # oldest first
            new = rows[-len(old) :]
            setattr(self, name, torch.cat([old[len(new) :], new]))
