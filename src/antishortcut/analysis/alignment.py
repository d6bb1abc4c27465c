"""What a student relies on: where its features lie between the two teacher states, and how far they project."""
# N samples, n rows of a block, D features, K directions, M negatives

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from antishortcut.analysis.moments import BLOCK, blocks, ratio
from antishortcut.subspace import projection, random_projection, unit

BINS = 40
THRESHOLD = -0.1  # ε_diag: a signed cosine above it is not anti-aligned enough (S-Sec. A.3.1)
MARGIN = 0.1  # ε of L_SS (Eq. 7)


@dataclass(frozen=True)
class Distribution:
    """Mean, standard deviation (ddof 1) and histogram in equal bins from low to high of one number per row."""

    count: int
    undefined: int  # rows without such a number: a zero vector has no direction
    mean: float
    std: float
    low: float
    high: float
    histogram: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor, defined: Tensor, low: float, high: float) -> Self:
        """Of values (N,), of which only the `defined` ones (N,) count."""
        values = values[defined].clamp(low, high)  # rounding may step over an end
        n = len(values)
        mean = float(values.mean()) if n > 0 else math.nan
        std = float(values.std()) if n > 1 else math.nan
        bins = torch.histc(values, BINS, low, high)
        return cls(n, len(defined) - n, mean, std, low, high, tuple(int(count) for count in bins))


@dataclass(frozen=True)
class StateCosines:
    """Cosines of h_S to h_F, to h_E and, signed, to Δh = h_E − h_F (S-Sec. A.3.1), with the shares the paper quotes."""

    final: Distribution
    early: Distribution
    displacement: Distribution
    closer_to_final: float  # share of samples
    above_threshold: float  # share of samples whose signed cosine exceeds −0.1


@dataclass(frozen=True)
class SubspaceProjection:
    """‖h̄ᵀU‖ over the rows (Eq. 7), and the √(K/D) of a random direction."""

    length: Distribution
    random: float
    above_margin: float  # share of rows above the margin ε
    hinge: float  # mean [‖h̄ᵀU‖ − ε]₊: the value of L_SS


def state_cosines(student: Tensor, final: Tensor, early: Tensor) -> StateCosines:
    """Of features (N, D) of the same samples. A pair with a zero row has no cosine and is left out."""
    cosines, defined = [], []
    for h_s, h_f, h_e in blocks(student, final, early):
        others = (h_f, h_e, h_e - h_f)
        cosines.append(torch.stack([(unit(h_s) * unit(other)).sum(dim=1) for other in others]))  # (3, n)
        defined.append(torch.stack([h_s.any(dim=1) & other.any(dim=1) for other in others]))
    (to_final, to_early, signed), (has_final, has_early, moved) = torch.cat(cosines, dim=1), torch.cat(defined, dim=1)
    both = has_final & has_early
    return StateCosines(
        Distribution.of(to_final, has_final, -1, 1),
        Distribution.of(to_early, has_early, -1, 1),
        Distribution.of(signed, moved, -1, 1),
        ratio(int((to_final > to_early)[both].sum()), int(both.sum())),
        ratio(int((signed > THRESHOLD)[moved].sum()), int(moved.sum())),
    )


def subspace_projection(features: Tensor, basis: Tensor, margin: float = MARGIN) -> SubspaceProjection:
    """Projections of rows (N, D) on an orthonormal basis (D, K): U of the shortcuts, V of the robust subspace."""
    d, k = basis.shape
    lengths = torch.cat([projection(rows, basis.to(rows)) for (rows,) in blocks(features)])  # (N,)
    defined = features.any(dim=1).cpu() & (k > 0)  # (N,)
    excess = (lengths - margin)[defined]
    return SubspaceProjection(
        Distribution.of(lengths, defined, 0, 1),
        random_projection(k, d) if k > 0 else math.nan,
        ratio(int((excess > 0).sum()), len(excess)),
        ratio(float(excess.clamp(min=0).sum()), len(excess)),
    )


def infonce(
    student: Tensor, final: Tensor, early: Tensor, negatives: int, temperature: float = 0.07
) -> dict[str, float]:
    """Lower bounds on mutual information in nats, of normalised features (N, D) of the same samples.

    binary     log 2 − E[L], the positive against the one temporal negative
    full       log(M + 1) − E[L̃_TC], M final features as negatives (Eq. 11): the first `negatives` + 1 without the row's
               own, or without the last of them
    ceiling    log(M + 1), which `full` cannot exceed
    """
    pool = unit(final[: negatives + 1].detach().cpu().double())  # (M + 1, D)
    m, count = len(pool) - 1, len(student)
    binary = full = 0.0
    start = 0
    for block in blocks(student, final, early, size=max(1, min(BLOCK, 2**21 // len(pool)))):
        z_s, z_f, z_e = (unit(rows) for rows in block)
        positive, temporal = (z_s * z_f).sum(dim=1) / temperature, (z_s * z_e).sum(dim=1) / temperature  # (n,)
        binary += float(F.softplus(temporal - positive).sum())
        left_out = torch.arange(start, start + len(z_s)).clamp(max=m)[:, None]  # (n, 1)
        logits = (z_s @ pool.T / temperature).scatter(1, left_out, -math.inf)  # (n, M + 1)
        full += float((torch.logaddexp(positive, logits.logsumexp(dim=1)) - positive).sum())  # Eq. 6
        start += len(z_s)
    ceiling = math.log(m + 1) if m > 0 else math.nan
    return {"binary": math.log(2) - binary / count, "full": ceiling - full / count, "ceiling": ceiling}
