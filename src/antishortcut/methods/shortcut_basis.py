"""Where the shortcut directions come from: this batch, a running average, or the whole training set."""
# B batch, D teacher features, K directions

from __future__ import annotations

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
UNFIT = "the teachers' features are not finite, or too large to be squared: no directions; has a teacher diverged?"


class ShortcutBasis(nn.Module):
    """Remembers what is needed to answer "which K directions now?" with an orthonormal basis (D, m), m ≤ K.

    A direction that is not there is a zero column, on which nothing projects: how many there are is known to the device
    alone, and asking it every step would be waiting for it every step.

    source: "batch" is the paper (Eq. 4). "running" averages the moments over batches with `momentum` and decomposes
    them every `refresh` steps. "dataset" takes them once from `prepare`.
    select: "displaced" takes the top eigenvectors of E[Δh Δhᵀ]; "abandoned" the generalised ones against
    E[h_final h_finalᵀ] + λI, that is, directions strong early and weak in the end.
    """

    displacement: Tensor
    final: Tensor
    kept: Tensor
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
        self._told: set[bool] = set()
        self._looked = False  # whether the directions of a batch were counted
        self._seen: int | None = None  # `steps`, as far as it is known without asking the device
        self._found: int | None = None  # columns of `kept` that are not zero, likewise
        if source != "batch":
            self.register_buffer("displacement", torch.zeros(width, width))  # E[Δh Δhᵀ]
            self.register_buffer("final", torch.zeros(width, width))  # E[h_final h_finalᵀ]
            self.register_buffer("kept", torch.zeros(width, directions))  # missing directions are zero columns
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def forward(self, early: Tensor, final: Tensor) -> Tensor:
        """The basis (D, m) for features (B, D) of both teacher states."""
        if self.source == "batch":
            basis, there = _batch_directions(early - final, self.directions)
            result = len(there) if self._looked else int(there.sum())  # counted once, later taken from the shape
            self._looked = True
        else:
            if self.training and self.source == "running":
                self._average(early, final)
            elif self._steps() == 0:
                if self.source == "dataset":
                    raise RuntimeError("subspace='dataset' needs prepare(stream) before the first batch")
                return _batch_directions(early - final, self.directions)[0]  # examined before any training
            if self._found is None:
                self._found = int(self.kept.any(dim=0).sum())
            basis, result = self.kept, self._found
        self._tell(result, len(early))
        return basis

    def _steps(self) -> int:
        if self._seen is None:
            self._seen = int(self.steps)
        return self._seen

    def _tell(self, found: int, rows: int) -> None:
        """Once when there are fewer directions than asked for, and once when there are none."""
        if found < self.directions and (found == 0) not in self._told:
            self._told.add(found == 0)
            advice = (
                "suppressing those there are" if found else "nothing to suppress: are the two checkpoints the same?"
            )
            message = f"h_early − h_final spans {found} of {self.directions} directions in {rows} rows; {advice}"
            warnings.warn(message, stacklevel=4)

    @torch.inference_mode(False)  # what is remembered must serve a step with gradients
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
        self.steps, self._seen = torch.ones_like(self.steps), 1
        self._decompose()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _average(self, early: Tensor, final: Tensor) -> None:
        steps = self._steps()
        keep = self.momentum if steps > 0 else 0.0
        self.displacement = keep * self.displacement + (1 - keep) * second_moment(early - final)
        self.final = keep * self.final + (1 - keep) * second_moment(final)
        if steps % self.refresh == 0:
            self._decompose()
        self.steps, self._seen = self.steps + 1, steps + 1

    def _decompose(self) -> None:
        try:
            if self.select == "abandoned":
                basis, _ = abandoned_directions(self.displacement, self.final, self.directions, self.ridge)
            else:
                basis, _ = leading_eigenvectors(self.displacement, self.directions)
        except RuntimeError:
            if self.displacement.isfinite().all() and self.final.isfinite().all():
                raise
            raise UserError(UNFIT) from None
        saved = torch.zeros_like(self.kept)
        saved[:, : basis.shape[1]] = basis
        self.kept, self._found = saved, basis.shape[1]


def _forget(basis: ShortcutBasis, keys: object) -> None:
    """Loaded buffers may say something else."""
    basis._seen = basis._found = None


def _batch_directions(delta: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The basis (D, m), and which of its columns are there (m,)."""
    try:
        basis, _, there = padded_directions(delta, k)
        return basis, there
    except RuntimeError:  # LinAlgError: it does not converge on NaN
        raise UserError(UNFIT) from None
