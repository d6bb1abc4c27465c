"""The shortcut directions (Eq. 3–4): of this batch, of a running average, or of the whole training set."""
# B batch, D teacher features, K directions

import warnings
from collections.abc import Iterable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.methods.checks import check_choice, check_settings
from antishortcut.subspace import abandoned_directions, leading_eigenvectors, padded_directions, second_moment

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
