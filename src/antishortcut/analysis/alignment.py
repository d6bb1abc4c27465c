"""What a student leans on: where its features stand between the two teacher states, and how far they project."""
# N samples, n rows at a time, D features, K directions

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antishortcut.analysis.found import Found, Spread, Tally, ratio
from antishortcut.analysis.stream import Stream, basis_of, blocks
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
        seen = projection(rows, basis)  # (n,)
        self.tally.update(seen, defined)
        excess = (seen - self.margin)[defined]
        self.fired += int((excess > 0).sum())
        self.hinge += float(excess.clamp(min=0).sum())

    def leaning(self) -> Leaning:
        d, k = self.shape
        found = self.tally.spread()
        random = random_projection(k, d) if k > 0 else math.nan
        fires, hinge = ratio(self.fired, found.count), ratio(self.hinge, found.count)
        return Leaning(k, found, random, self.margin, fires, hinge)


def alignment(student: Tensor, final: Tensor, early: Tensor) -> Iterator[tuple[str, float]]:
    """`standing` of rows (N, D) in short: the numbers that are defined, by name."""
    found = standing([{"student": student, "final": final, "early": early}])
    named = {
        "cos_final": found.final.mean,
        "cos_early": found.early.mean,
        "closer_to_final": found.closer_to_final,
        "cos_displacement": found.displacement.mean,
        "above_threshold": found.above_threshold,
    }
    yield from ((name, value) for name, value in named.items() if not math.isnan(value))


def shortcut_projection(student: Tensor, final: Tensor, early: Tensor, k: int = 4) -> Iterator[tuple[str, float]]:
    """Mean ‖h̄ᵀU‖ on the top-K eigenspace of the pool's E[Δh Δhᵀ], beside T_final's own and the random value √(K/D)."""
    basis, _ = top_directions(early - final, k)
    found = leanings([{"student": student, "final": final}], {"": basis}, ("student", "final"))
    own, teacher = found["student"][""], found["final"][""]
    named = {
        "projection": own.projection.mean,
        "projection_final": teacher.projection.mean,
        "projection_random": own.random,
    }
    yield from ((name, value) for name, value in named.items() if not math.isnan(value))
