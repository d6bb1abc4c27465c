"""What a student leans on: where its features stand between the two teacher states, and how far they project."""
# N samples, n rows at a time, D features, K directions
# N negatives of a row, M rows of the pool, n rows at a time, D features

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from antishortcut.analysis.stream import BLOCK, Found, Spread, Stream, Tally, basis_of, blocks, ratio
from antishortcut.subspace import projection, random_projection, top_directions, unit

THRESHOLD = -0.1  # ε_diag: a signed cosine above it is not anti-aligned enough (S-Sec. A.3.1)
MARGIN = 0.1  # ε of L_SS (Eq. 7)


@dataclass(frozen=True)
class Standing(Found):
    """Cosines of h_S to h_F, to h_E and, signed, to Δh = h_E − h_F (S-Sec. A.3.1), with the shares the paper quotes."""

    final: Spread
    early: Spread
    displacement: Spread
    closer_to_final: float  # share of samples
    above_threshold: float  # share of samples whose signed cosine exceeds −0.1


@dataclass(frozen=True)
class Leaning(Found):
    """‖h̄ᵀU‖ over the rows (Eq. 7), beside the √(K/D) of a random direction."""

    directions: int
    projection: Spread
    random: float
    margin: float  # ε
    fires: float  # share of rows above the margin
    hinge: float  # mean [‖h̄ᵀU‖ − ε]₊: what L_SS would be

    def change_against(self, reference: Leaning) -> float:
        """Relative change of the mean projection: the paper's "shortcut mag." when the reference is the KD student."""
        return ratio(self.projection.mean - reference.projection.mean, reference.projection.mean)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of each pair of rows (N, D); 0 where one of them is zero. (N,)"""
    return (unit(a) * unit(b)).sum(dim=1)


def standing(chunks: Stream) -> Standing:
    """One pass over "student", "final" and "early" rows. A pair with a zero row has no cosine and is left out."""
    final, early, signed = Tally(-1, 1), Tally(-1, 1), Tally(-1, 1)
    closer = both = above = 0
    for h_s, h_f, h_e in blocks(chunks, "student", "final", "early"):
        delta = h_e - h_f
        has_s, has_f, has_e, has_delta = (rows.any(dim=1) for rows in (h_s, h_f, h_e, delta))
        to_final, to_early, to_delta = cosine(h_s, h_f), cosine(h_s, h_e), cosine(h_s, delta)
        final.update(to_final, has_s & has_f)
        early.update(to_early, has_s & has_e)
        signed.update(to_delta, has_s & has_delta)
        comparable = has_s & has_f & has_e
        both += int(comparable.sum())
        closer += int((to_final > to_early)[comparable].sum())
        above += int((to_delta > THRESHOLD)[has_s & has_delta].sum())
    return Standing(final.spread(), early.spread(), signed.spread(), ratio(closer, both), ratio(above, signed.count))


def leanings(
    chunks: Stream, bases: Mapping[str, Tensor], roles: Sequence[str] = ("student",), margin: float = MARGIN
) -> dict[str, dict[str, Leaning]]:
    """Projections of each role's rows on each orthonormal basis (D, K), in one pass: {role: {basis: Leaning}}."""
    gathered = {(role, name): _Lean(margin) for role in roles for name in bases}
    for block in blocks(chunks, *roles):
        for role, rows in zip(roles, block, strict=True):
            for name, basis in bases.items():
                gathered[role, name].update(rows, basis_of(basis, rows))
    return {role: {name: gathered[role, name].leaning() for name in bases} for role in roles}


def leaning(chunks: Stream, basis: Tensor, role: str = "student", margin: float = MARGIN) -> Leaning:
    """`leanings` of one role on one basis: U (K = 4) for shortcuts, V (K = 8) for the robust subspace."""
    return leanings(chunks, {"": basis}, (role,), margin)[role][""]


class _Lean:
    def __init__(self, margin: float) -> None:
        self.margin, self.tally, self.fired, self.hinge, self.shape = margin, Tally(0, 1), 0, 0.0, (0, 0)

    def update(self, rows: Tensor, basis: Tensor) -> None:
        d, k = basis.shape
        self.shape = (d, k)
        defined = rows.any(dim=1) if k > 0 else torch.zeros(len(rows), dtype=torch.bool)
        outputs = projection(rows, basis)  # (n,)
        self.tally.update(outputs, defined)
        excess = (outputs - self.margin)[defined]
        self.fired += int((excess > 0).sum())
        self.hinge += float(excess.clamp(min=0).sum())

    def leaning(self) -> Leaning:
        d, k = self.shape
        result = self.tally.spread()
        random = random_projection(k, d) if k > 0 else math.nan
        fires, hinge = ratio(self.fired, result.count), ratio(self.hinge, result.count)
        return Leaning(k, result, random, self.margin, fires, hinge)


def alignment(student: Tensor, final: Tensor, early: Tensor) -> Iterator[tuple[str, float]]:
    """`standing` of rows (N, D) in short: the numbers that are defined, by name."""
    result = standing([{"student": student, "final": final, "early": early}])
    named = {
        "cos_final": result.final.mean,
        "cos_early": result.early.mean,
        "closer_to_final": result.closer_to_final,
        "cos_displacement": result.displacement.mean,
        "above_threshold": result.above_threshold,
    }
    yield from ((name, value) for name, value in named.items() if not math.isnan(value))


def shortcut_projection(student: Tensor, final: Tensor, early: Tensor, k: int = 4) -> Iterator[tuple[str, float]]:
    """Mean ‖h̄ᵀU‖ on the top-K eigenspace of the pool's E[Δh Δhᵀ], beside T_final's own and the random value √(K/D)."""
    basis, _ = top_directions(early - final, k)
    result = leanings([{"student": student, "final": final}], {"": basis}, ("student", "final"))
    own, teacher = result["student"][""], result["final"][""]
    named = {
        "projection": own.projection.mean,
        "projection_final": teacher.projection.mean,
        "projection_random": own.random,
    }
    yield from ((name, value) for name, value in named.items() if not math.isnan(value))


# --- How much the student's features tell of the final teacher's ---


@dataclass(frozen=True)
class Bounds(Found):
    """Lower bounds on information in nats; none can exceed its ceiling, log 2 or log(N + 1)."""

    count: int
    negatives: int  # N
    binary: float  # log 2 − E[L], the positive against the one temporal negative
    full: float  # log(N + 1) − E[L̃_TC], N final negatives (Eq. 11)
    temporal: float  # log(N + 1) − E[L_TC], the temporal negative beside them (Eq. 5–6): never above `full`
    ceiling: float  # log(N + 1)


def infonce(
    chunks: Stream, pool: Tensor | None = None, pool_index: Tensor | None = None, temperature: float = 0.07
) -> Bounds:
    """One pass over "student", "final" and "early" rows; all are normalised, and a zero student row tells nothing.

    pool (M, D): final features as negatives, e.g. of `pick`; without it only the binary bound is defined.
    pool_index (M,): the number in the stream of each of them, −1 for others. Every row then has N = M − 1 negatives:
    its own is left out, or the last one where none is its own. Without it all M are negatives of all rows.
    """
    _check(pool, pool_index, temperature)
    z_pool = torch.empty(0, 0) if pool is None else unit(pool.detach().cpu().double())  # (M, D)
    n_negatives = max(len(z_pool) - (pool_index is not None), 0)
    size = max(1, min(BLOCK, 2**21 // max(len(z_pool), 1)))
    count, binary, full, temporal = 0, 0.0, 0.0, 0.0
    for block in blocks(chunks, "student", "final", "early", size=size):
        z_s, z_f, z_e = (unit(rows) for rows in block)
        positive, early = (z_s * z_f).sum(dim=1) / temperature, (z_s * z_e).sum(dim=1) / temperature  # (n,)
        binary += float(F.softplus(early - positive).sum())
        if n_negatives > 0:
            logits = _negatives(z_s @ z_pool.T / temperature, pool_index, count)  # (n, M)
            among = torch.logaddexp(positive, torch.logsumexp(logits, dim=1))  # log of the denominator, Eq. 6
            full += float((among - positive).sum())
            temporal += float((torch.logaddexp(among, early) - positive).sum())
        count += len(z_s)
    ceiling = math.log(n_negatives + 1) if n_negatives > 0 else math.nan
    lost = (binary / count, full / count, temporal / count)  # E[L]
    return Bounds(count, n_negatives, math.log(2) - lost[0], ceiling - lost[1], ceiling - lost[2], ceiling)


def _check(pool: Tensor | None, pool_index: Tensor | None, temperature: float) -> None:
    if temperature <= 0:
        raise ValueError("temperature must be positive")
    if pool_index is None:
        return
    if pool is None or len(pool_index) != len(pool):
        raise ValueError("pool_index must number the rows of the pool")
    numbers = pool_index[pool_index >= 0].tolist()
    if len(set(numbers)) < len(numbers):
        raise ValueError("the pool holds a sample twice")


def _negatives(logits: Tensor, pool_index: Tensor | None, start: int) -> Tensor:
    """Logits (n, M) of rows `start`, `start` + 1, … with one entry of each row out: its own, else the last."""
    if pool_index is None:
        return logits
    number = torch.arange(start, start + len(logits))
    is_own = number[:, None] == pool_index.cpu()  # (n, M)
    out = torch.where(is_own.any(dim=1), is_own.int().argmax(dim=1), logits.shape[1] - 1)  # (n,)
    return logits.scatter(1, out[:, None], -math.inf)
