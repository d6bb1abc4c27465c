"""Anti-shortcut distillation (ASD): pull the student to the final teacher, push it from the teacher's early state.

Eq. 3–4   Δh = h_early − h_final; U = top K eigenvectors of E[Δh Δhᵀ]      `ShortcutBasis`
Eq. 5–6   L_TC, contrast with the early state as a negative               `temporal_contrast`
Eq. 7     L_SS, the part of the student that lies in span(U)              `suppression`
Eq. 8     h_S = g(φ_S), where student and teacher differ in width         `Projector`
Eq. 9     CE + α_kd KD + β(t) α_tc L_TC + γ(t) α_ss L_SS                  `ASD`
Eq. 10    β(t) = γ(t) = min(t / T_warmup, 1)                              `linear_warmup`
"""
# B batch, C classes, D teacher features, d student features, K directions, M queue

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.errors import UserError
from antishortcut.methods.checks import (
    check_choice,
    check_early,
    check_rows,
    check_settings,
    check_tensors,
    check_widths,
    weak_reference,
)
from antishortcut.methods.kd import Teachers, Terms, kd_term
from antishortcut.models.layers import SingleSampleNorm1d
from antishortcut.subspace import (
    abandoned_directions,
    leading_eigenvectors,
    padded_directions,
    projection,
    second_moment,
    unit,
)
from antishortcut.types import Batch, Features, Sizes

Source = Literal["batch", "running", "dataset"]
Select = Literal["displaced", "abandoned"]
DIVERGED = "the teachers' features are not finite, or too large to be squared: no directions; has a teacher diverged?"


def batch_directions(early: Tensor, final: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Eq. 3–4: top K eigenvectors (D, m) of E[Δh Δhᵀ], Δh = early − final (B, D), and which are not zero (m,)."""
    try:
        basis, _, nonzero = padded_directions(early - final, k)
        return basis, nonzero
    except RuntimeError:  # LinAlgError: no convergence on NaN
        raise UserError(DIVERGED) from None


class ShortcutBasis(nn.Module):
    """An orthonormal basis (D, m), m ≤ K, of the shortcut directions for each batch.

    Missing directions are zero columns, on which nothing projects: reading their number would synchronise every step.

    source: "batch" is the paper (Eq. 4). "running" averages the moments over batches with `momentum` and decomposes
    them every `refresh` steps. "dataset" takes them once from `prepare`.
    select: "displaced" takes the top eigenvectors of E[Δh Δhᵀ]; "abandoned" the generalised ones against
    E[h_final h_finalᵀ] + λI, that is, directions strong in the early and weak in the final state.
    """

    displacement: Tensor
    final: Tensor
    vectors: Tensor
    steps: Tensor

    def __init__(
        self,
        width: int,
        directions: int,
        *,
        source: Source = "batch",
        select: Select = "displaced",
        momentum: float = 0.99,
        refresh: int = 50,
        ridge: float = 0.01,
    ) -> None:
        super().__init__()
        check_choice("subspace", source, get_args(Source))
        check_choice("select", select, get_args(Select))
        check_settings(directions=directions, refresh=refresh, momentum=momentum)
        if source == "batch" and select == "abandoned":
            raise ValueError("abandoned directions need full-rank moments: use subspace='running' or 'dataset'")
        self.directions, self.source, self.select = directions, source, select
        self.momentum, self.refresh, self.ridge = momentum, refresh, ridge
        self._warnings: set[bool] = set()  # of none, of too few
        self._step: int | None = None  # `steps` on the host
        self._rank: int | None = None  # nonzero columns, counted once
        if source != "batch":
            self.register_buffer("displacement", torch.zeros(width, width))  # E[Δh Δhᵀ]
            self.register_buffer("final", torch.zeros(width, width))  # E[h_final h_finalᵀ]
            self.register_buffer("vectors", torch.zeros(width, directions))
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            self.register_load_state_dict_post_hook(_reset)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def forward(self, early: Tensor, final: Tensor) -> Tensor:
        """The basis (D, m) for features (B, D) of both teacher states."""
        if self.source == "batch":
            basis, nonzero = batch_directions(early, final, self.directions)
            rank = int(nonzero.sum()) if self._rank is None else len(nonzero)  # only the first batch is counted
            self._rank = rank
        else:
            if self.training and self.source == "running":
                self._average(early, final)
            elif self._step_count() == 0:
                if self.source == "dataset":
                    raise RuntimeError("subspace='dataset' needs prepare(stream) before the first batch")
                return batch_directions(early, final, self.directions)[0]  # evaluated before training
            if self._rank is None:
                self._rank = int(self.vectors.any(dim=0).sum())
            basis, rank = self.vectors, self._rank
        if rank < self.directions and (rank == 0) not in self._warnings:
            self._warnings.add(rank == 0)
            advice = "nothing to suppress: are the two checkpoints the same?" if rank == 0 else "only these are used"
            message = f"h_early − h_final spans {rank} of {self.directions} directions in {len(early)} rows; {advice}"
            warnings.warn(message, stacklevel=3)
        return basis

    def _step_count(self) -> int:
        if self._step is None:
            self._step = int(self.steps)
        return self._step

    @torch.inference_mode(False)  # the buffers must serve a step with gradients
    @torch.no_grad()
    def prepare(self, stream: Iterable[tuple[Tensor, Tensor]]) -> None:
        """One pass over (early, final) features of the training set, for source="dataset"."""
        count = 0
        displacement = torch.zeros_like(self.displacement, dtype=torch.float64)
        final_moment = torch.zeros_like(displacement)
        for early, final in stream:
            delta, h = (early - final).double(), final.double()
            count += len(h)
            displacement += delta.T @ delta
            final_moment += h.T @ h
        if count == 0:
            raise ValueError("no features to take the shortcut directions from")
        self.displacement = (displacement / count).to(self.displacement)
        self.final = (final_moment / count).to(self.final)
        self.steps, self._step = torch.ones_like(self.steps), 1
        self._decompose()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _average(self, early: Tensor, final: Tensor) -> None:
        step = self._step_count()
        momentum = self.momentum if step > 0 else 0.0
        self.displacement = momentum * self.displacement + (1 - momentum) * second_moment(early - final)
        self.final = momentum * self.final + (1 - momentum) * second_moment(final)
        if step % self.refresh == 0:
            self._decompose()
        self.steps, self._step = self.steps + 1, step + 1

    def _decompose(self) -> None:
        try:
            if self.select == "abandoned":
                basis, _ = abandoned_directions(self.displacement, self.final, self.directions, self.ridge)
            else:
                basis, _ = leading_eigenvectors(self.displacement, self.directions)
        except RuntimeError:
            if self.displacement.isfinite().all() and self.final.isfinite().all():
                raise
            raise UserError(DIVERGED) from None
        self.vectors, self._rank = torch.zeros_like(self.vectors), basis.shape[1]
        self.vectors[:, : self._rank] = basis


def _reset(basis: ShortcutBasis, keys: object) -> None:
    """Loaded buffers may have another step and rank."""
    basis._step = basis._rank = None


def temporal_contrast(
    student: Tensor,
    final: Tensor,
    early: Tensor | None,
    queue: Tensor | None = None,
    *,
    temperature: float = 0.07,
    ignore: Tensor | None = None,
) -> Tensor:
    """L_TC (Eq. 5–6): −log of the positive's share among positive, temporal, in-batch and queued negatives; batch mean.

    student, final, early (B, D) need not be normalised; early=None leaves the temporal negative out. queue (M, D) holds
    unit rows; `ignore` (B, M) marks queue entries that are not negatives of a row.
    """
    z_s, z_f = unit(student) / temperature, unit(final)
    logits = [z_s @ z_f.T]  # positives on the diagonal, in-batch negatives beside it. (B, B)
    if early is not None:
        logits.append((z_s * unit(early)).sum(dim=1, keepdim=True))  # (B, 1)
    if queue is not None:
        similarity = z_s @ queue.T  # (B, M)
        logits.append(similarity if ignore is None else similarity.masked_fill(ignore, float("-inf")))
    positive = torch.arange(len(z_s), device=z_s.device)
    return F.cross_entropy(torch.cat(logits, dim=1), positive)


def suppression(student: Tensor, basis: Tensor, margin: float = 0.1) -> Tensor:
    """L_SS (Eq. 7): mean over rows (B, D) of max(0, ‖h̄ᵀU‖ − ε), with U (D, K) from Eq. 4."""
    return F.relu(projection(student, basis) - margin).mean()


class Projector(nn.Module):
    """g (Eq. 8): Linear → BatchNorm → ReLU → Linear, student width d to teacher width D."""

    def __init__(self, student_dim: int, teacher_dim: int) -> None:
        super().__init__()
        self.first = nn.Linear(student_dim, teacher_dim)
        self.norm = SingleSampleNorm1d(teacher_dim)
        self.last = nn.Linear(teacher_dim, teacher_dim)

    def forward(self, rows: Tensor) -> Tensor:
        projected: Tensor = self.last(F.relu(self.norm(self.first(rows))))
        return projected


def linear_warmup(epoch: float, warmup: float) -> float:
    """β(t) = γ(t) = min(t / T_warmup, 1) (Eq. 10), in fractional epochs; 1 when T_warmup is 0."""
    return 1.0 if warmup <= 0 else min(epoch / warmup, 1.0)


NO_NEGATIVE = "weak reference: its embedding is another network's, so L_TC goes without its temporal negative"
EMPTY, UNKNOWN = -2, -1  # sample numbers of queue rows: not filled yet; filled without a number


class ASDLoss(nn.Module):
    """The two losses of ASD as a drop-in module: `terms = asd(student, final, early, epoch=epoch)`.

    Takes embeddings (B, d), (B, D), (B, D) and returns weighted scalars {"tc": …, "ss": …}; add them to your own loss.
    Pass its parameters to the optimizer too: it has a projector when the widths differ.

    tc, ss: weights of the two losses; 0 switches one off. temperature: τ_c. margin: ε. directions: K. queue: M.
    warmup: epochs over which the weights rise from 0; 0 for none. temporal: False leaves the early state out of L_TC.
    subspace, select, momentum, refresh: see `ShortcutBasis`; the defaults are the paper's.
    examples: size of the training set, if known; within an epoch the queue then holds none of the current samples.
    sync: gather the rows of all processes first, for use under DistributedDataParallel.
    """

    queue: Tensor
    queue_index: Tensor

    def __init__(
        self,
        student_dim: int,
        teacher_dim: int,
        *,
        tc: float = 0.8,
        ss: float = 1.0,
        temperature: float = 0.07,
        margin: float = 0.1,
        directions: int = 4,
        queue: int = 4096,
        warmup: float = 20.0,
        temporal: bool = True,
        subspace: Source = "batch",
        select: Select = "displaced",
        momentum: float = 0.99,
        refresh: int = 50,
        examples: int | None = None,
        sync: bool = False,
    ) -> None:
        super().__init__()
        check_settings(student_dim=student_dim, teacher_dim=teacher_dim, queue=queue, examples=examples or 0)
        check_settings(temperature=temperature, margin=margin, warmup=warmup)
        self.tc, self.ss, self.temperature, self.margin, self.warmup = tc, ss, temperature, margin, warmup
        self.temporal, self.examples, self.sync = temporal, examples, sync
        self.widths = {"student": student_dim, "final": teacher_dim, "early": teacher_dim}
        self.uses_early = ss != 0 or (tc != 0 and temporal)
        needs_projector = (tc != 0 or ss != 0) and student_dim != teacher_dim
        self.projector = Projector(student_dim, teacher_dim) if needs_projector else None
        self.basis: ShortcutBasis | None = None
        if ss != 0:
            self.basis = ShortcutBasis(
                teacher_dim, directions, source=subspace, select=select, momentum=momentum, refresh=refresh
            )
        if examples is not None:
            queue = min(queue, max(examples - 1, 0))
        size = queue if tc != 0 else 0
        self.register_buffer("queue", torch.zeros(size, teacher_dim))  # unit rows, oldest first. (M, D)
        self.register_buffer("queue_index", torch.full((size,), EMPTY))  # the sample in each row. (M,)

    def project(self, student: Tensor) -> Tensor:
        """h_S = g(φ_S) (Eq. 8): student embeddings (B, d) in the teacher's space (B, D)."""
        projected: Tensor = student if self.projector is None else self.projector(student)
        return projected

    def prepare(self, stream: Iterable[tuple[Tensor, Tensor]]) -> None:
        """One pass over (final, early) embeddings of the training set, before training with subspace="dataset"."""
        if self.basis is not None and self.basis.source == "dataset":
            self.basis.prepare((early, final) for final, early in stream)

    def forward(
        self, student: Tensor, final: Tensor, early: Tensor | None, *, epoch: float, index: Tensor | None = None
    ) -> Terms:
        """Weighted terms of a batch. `index` (B,), the samples' numbers, keeps a sample's past out of its negatives.

        `early` may be None when nothing needs it: temporal=False and ss=0.
        """
        early = check_early(early, self.uses_early, final)
        check_tensors(self.widths, index, student=student, final=final, early=early)
        check_settings(epoch=epoch)
        with torch.autocast(student.device.type, enabled=False):  # τ = 0.07 magnifies bfloat16's rounding
            dtype = self.queue.dtype  # float32, unless the module was cast
            student, final, early = student.to(dtype), final.detach().to(dtype), early.detach().to(dtype)
            if self.sync:
                student, final, early = gather(student), gather(final), gather(early)
                index = None if index is None else gather(index)
            check_rows(student)  # of all processes: one of them may have none
            terms: Terms = {}
            h_s = self.project(student)  # (B, D)
            weight = linear_warmup(epoch, self.warmup)
            if self.tc != 0:
                queue, ignore = self._negatives(len(h_s), index)
                negative = early if self.temporal else None
                loss = temporal_contrast(h_s, final, negative, queue, temperature=self.temperature, ignore=ignore)
                terms["tc"] = weight * self.tc * loss
                if self.training:
                    self._enqueue(final, index)
            if self.basis is not None:
                terms["ss"] = weight * self.ss * suppression(h_s, self.basis(early, final), self.margin)
            return terms

    def _negatives(self, batch: int, index: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The newest rows of the queue that cannot be of the current samples, and which of them a row must ignore."""
        reach = len(self.queue)
        if self.examples is not None:  # within an epoch the last N − B samples are all different from these
            reach = min(reach, max(self.examples - batch, 0))
        if reach == 0:
            return None, None
        queue, numbers = self.queue[-reach:], self.queue_index[-reach:]
        ignore = (numbers == EMPTY).expand(batch, reach)
        if index is not None:
            ignore = ignore | (numbers == index[:, None])  # (B, reach)
        return queue, ignore

    @torch.inference_mode(False)  # the queue must serve a later step with gradients
    @torch.no_grad()
    def _enqueue(self, final: Tensor, index: Tensor | None) -> None:
        """Append the batch; the oldest rows drop out. New tensors: the old queue may be part of a pending graph."""
        size = len(self.queue)
        if size == 0:
            return
        if index is None:
            index = torch.full((len(final),), UNKNOWN, device=self.queue_index.device)
        rows, numbers = unit(final)[-size:].to(self.queue), index[-size:].to(self.queue_index)
        self.queue = torch.cat([self.queue[len(rows) :], rows])
        self.queue_index = torch.cat([self.queue_index[len(rows) :], numbers])


class ASD(nn.Module):
    """CE + α_kd KD + β(t) α_tc L_TC + γ(t) α_ss L_SS (Eq. 9). `settings` are those of ASDLoss."""

    taps: tuple[str, ...] = ()
    settings_from = ASDLoss  # names and defaults of **settings
    note = ""

    def __init__(
        self, sizes: Sizes, *, kd: float = 1.0, kd_temperature: float = 4.0, task_weight: float = 1.0, **settings: Any
    ) -> None:
        super().__init__()
        check_settings(kd_temperature=kd_temperature)
        self.task_weight, self.kd, self.kd_temperature = task_weight, kd, kd_temperature
        final = sizes.teachers["final"].embedding
        if weak_reference(sizes):
            if settings.get("temporal", True) or settings.get("ss", 1.0) != 0:
                self.note = f"{NO_NEGATIVE}, and L_SS is left out; contrast targets need logits alone"
            settings |= {"temporal": False, "ss": 0.0}
        self.loss = ASDLoss(sizes.student.embedding, final, examples=sizes.examples, **settings)
        self.roles: tuple[str, ...] = ("final", "early") if self.loss.uses_early else ("final",)
        check_widths(sizes, self.roles)

    def prepare(self, stream: Iterable[Mapping[str, Features]]) -> None:
        self.loss.prepare((outputs["final"].embedding, outputs["early"].embedding) for outputs in stream)

    def project(self, student: Tensor) -> Tensor:
        return self.loss.project(student)

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        final, early = teachers["final"], teachers["early"].embedding if "early" in self.roles else None
        kd = kd_term(self.kd, student, final, self.kd_temperature)
        asd: Terms = self.loss(student.embedding, final.embedding, early, epoch=epoch, index=batch.index)
        return kd | asd
