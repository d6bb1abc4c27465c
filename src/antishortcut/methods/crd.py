"""Contrastive representation distillation, Tian, Krishnan & Isola 2020."""
# B batch, C classes, N training images, K negatives, E embedding of the contrast (128), M queue

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antishortcut.methods.checks import check_choice, check_every_label, check_labels, check_settings
from antishortcut.methods.kd import Distillation, Teachers, Terms, kd_term
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
    # other classes to the front, own class behind them: a permutation of each row, which needs no synchronisation
    before = other.cumsum(dim=1)
    column = torch.arange(reach, device=labels.device)
    to = torch.where(other, before - 1, before[:, -1:] + column - before)
    return torch.empty_like(place).scatter_(1, to, place)[:, :k]


class _EagerGradient(torch.autograd.Function):
    """A scalar loss of rows whose gradient is taken in the forward pass: the banks may change afterwards."""

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


class CRD(Distillation):
    """CE + weight · (NCE with the student as anchor + NCE with the teacher as anchor) [+ kd · KD].

    memory="bank" is the published form: two banks of all N embeddings, `negatives` drawn from other classes.
    memory="queue" keeps the last `negatives` embeddings instead, for training sets whose banks do not fit.
    """

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
        check_every_label(sizes)
        labels = check_labels(sizes)
        self.weight, self.temperature, self.momentum, self.memory = weight, temperature, momentum, memory
        self.kd, self.kd_temperature, self.task_weight, self.examples = kd, kd_temperature, task_weight, sizes.examples
        self.student_head = nn.Linear(sizes.student.embedding, width)
        self.teacher_head = nn.Linear(sizes.teachers["final"].embedding, width)
        self.most = int(torch.bincount(labels).max())
        # images outside the largest class, the fewest negatives of any image
        self.negatives = min(negatives, sizes.examples - (self.most if memory == "bank" else 0))
        if self.negatives < 1:
            raise ValueError("needs training images of at least two classes")
        rows = sizes.examples if memory == "bank" else self.negatives
        bound = 1 / math.sqrt(width / 3)
        for name in ("student_bank", "teacher_bank"):
            self.register_buffer(name, torch.empty(rows, width).uniform_(-bound, bound))
        self.register_buffer("bank_label", torch.full((rows,), -1))  # of a queue's rows; −1 is empty
        self.register_buffer("scale", torch.zeros(2))  # Z of both anchors, fixed by the first batch; 0 before
        self.register_buffer("labels", labels.clone(), persistent=False)

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        final = teachers["final"]
        v_s = unit(self.student_head(student.embedding))  # (B, E)
        v_t = unit(self.teacher_head(final.embedding.detach()))  # (B, E)
        if self.memory == "bank":
            drawn = draw_negatives(batch.label, self.labels, self.negatives, self.most)
            place = torch.cat([batch.index[:, None], drawn], dim=1)  # (B, 1 + K), the positive first
            losses = (
                self._bank_loss(v_s, self.teacher_bank, place, 0),
                self._bank_loss(v_t, self.student_bank, place, 1),
            )
        else:
            losses = self._queue_loss(v_s, v_t, batch.label, 0), self._queue_loss(v_t, v_s, batch.label, 1)
        if self.training:
            self._store(v_s.detach(), v_t.detach(), batch)
        return {"crd": self.weight * (losses[0] + losses[1])} | kd_term(self.kd, student, final, self.kd_temperature)

    def _bank_loss(self, anchor: Tensor, bank: Tensor, place: Tensor, side: int) -> Tensor:
        """One product gives all N similarities, then select: gathering rows first would move B·K·E numbers.

        The bank is in no autograd graph afterwards, so its rows can be replaced in place.
        """

        def loss(rows: Tensor) -> Tensor:
            score = torch.exp((rows / self.temperature @ bank.T).gather(1, place))  # (B, 1 + K)
            constant = self._constant(score.mean(), side)
            return nce_loss(score[:, 0], score[:, 1:], self.negatives, self.examples, constant=constant)

        value: Tensor = _EagerGradient.apply(anchor, loss) if torch.is_grad_enabled() else loss(anchor)
        return value

    def _queue_loss(self, anchor: Tensor, positive: Tensor, label: Tensor, side: int) -> Tensor:
        """The positive is the other network's row; queued rows of other classes are the negatives."""
        queue = self.student_bank if side else self.teacher_bank
        usable = (self.bank_label[None] != label[:, None]) & (self.bank_label >= 0)[None]  # (B, M)
        scaled = anchor / self.temperature
        match = torch.exp((scaled * positive).sum(dim=1))  # (B,)
        negative = torch.exp(scaled @ queue.T)  # (B, M)
        mean = (match.sum() + negative.sum()) / (match.numel() + negative.numel())
        count = usable.sum(dim=1).clamp(min=1)  # (B,)
        return nce_loss(match, negative, count, self.examples, usable, self._constant(mean, side))

    @torch.no_grad()
    def _constant(self, mean: Tensor, side: int) -> Tensor:
        """Z = N × the mean score of the first training batch, as published; before it, of this batch."""
        fixed = self.scale[side]
        constant = torch.where(fixed > 0, fixed, mean.detach() * self.examples)
        if self.training:
            self.scale = self.scale.clone()
            self.scale[side] = constant
        return constant

    @torch.no_grad()
    def _store(self, v_s: Tensor, v_t: Tensor, batch: Batch) -> None:
        """Replace rows of a bank in place. A queue is a new tensor: the old one may be part of a pending graph."""
        if self.memory == "bank":
            for bank, v in ((self.student_bank, v_s), (self.teacher_bank, v_t)):
                mixed = unit(self.momentum * bank[batch.index] + (1 - self.momentum) * v)
                bank.index_copy_(0, batch.index, mixed)
            return
        for name, rows in (("student_bank", v_s), ("teacher_bank", v_t), ("bank_label", batch.label)):
            old = getattr(self, name)  # oldest first
            new = rows[-len(old) :]
            setattr(self, name, torch.cat([old[len(new) :], new]))
