"""What a student relies on: where its features lie between the two teacher states, and how far they project."""
# N samples, n rows of a block, D features, K directions, M negatives

import math
from dataclasses import dataclass
from typing import Any, Self

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
    """Mean and histogram, in equal bins from low to high, of one number per row."""

    mean: float
    low: float
    high: float
    histogram: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor, defined: Tensor, low: float, high: float) -> Self:
        """Of the `defined` ones among the values (N,): a zero vector has no direction."""
        values = values[defined].clamp(low, high)  # rounding may step over an end
        mean = float(values.mean()) if len(values) > 0 else math.nan
        return cls(mean, low, high, tuple(int(count) for count in torch.histc(values, BINS, low, high)))


def state_cosines(student: Tensor, final: Tensor, early: Tensor) -> dict[str, Any]:
    """Cosines of h_S to h_F, to h_E and, signed, to Δh = h_E − h_F (S-Sec. A.3.1), with the shares the paper quotes.

    Features (N, D) of the same samples; a pair with a zero row has no cosine and is left out. {"final", "early",
    "displacement": Distribution, "closer_to_final", "above_threshold": share of samples}
    """
    cosines, defined = [], []
    for h_s, h_f, h_e in blocks(student, final, early):
        targets = (h_f, h_e, h_e - h_f)
        cosines.append(torch.stack([(unit(h_s) * unit(other)).sum(dim=1) for other in targets]))  # (3, n)
        defined.append(torch.stack([h_s.any(dim=1) & other.any(dim=1) for other in targets]))
    (to_final, to_early, signed), (has_final, has_early, moved) = torch.cat(cosines, dim=1), torch.cat(defined, dim=1)
    both = has_final & has_early
    return {
        "final": Distribution.of(to_final, has_final, -1, 1),
        "early": Distribution.of(to_early, has_early, -1, 1),
        "displacement": Distribution.of(signed, moved, -1, 1),
        "closer_to_final": ratio(int((to_final > to_early)[both].sum()), int(both.sum())),
        "above_threshold": ratio(int((signed > THRESHOLD)[moved].sum()), int(moved.sum())),
    }


def subspace_projection(features: Tensor, basis: Tensor, margin: float = MARGIN) -> dict[str, Any]:
    """‖h̄ᵀU‖ of rows (N, D) and an orthonormal basis (D, K): U of the shortcuts, V of the robust subspace (Eq. 7).

    {"length": Distribution, "random": √(K/D), "above_margin": share of rows, "hinge": mean [‖h̄ᵀU‖ − ε]₊, i.e. L_SS}
    """
    d, k = basis.shape
    both = [(projection(rows, basis.to(rows)), rows.any(dim=1) & (k > 0)) for (rows,) in blocks(features)]
    lengths, defined = (torch.cat(each) for each in zip(*both, strict=True))  # (N,), (N,)
    excess = (lengths - margin)[defined]
    return {
        "length": Distribution.of(lengths, defined, 0, 1),
        "random": random_projection(k, d) if k > 0 else math.nan,
        "above_margin": ratio(int((excess > 0).sum()), len(excess)),
        "hinge": ratio(float(excess.clamp(min=0).sum()), len(excess)),
    }


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
