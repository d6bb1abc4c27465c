"""How much of a state's features lies in a subspace, whether training left its directions, and which state shows it."""
# N samples, n rows at a time, D features, K directions asked for, k' ≤ K directions there are

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from antishortcut.analysis.moments import Angles, Moments, angles
from antishortcut.analysis.stream import Found, Stream, basis_of, blocks, ratio

Select = Literal["displaced", "abandoned"]
LEFT = 0.5  # a direction counts as abandoned when less than this of its early share remains


@dataclass(frozen=True)
class Energy(Found):
    """Share of the features' energy inside a subspace, beside the K/D of a random one."""

    count: int
    undefined: int  # zero rows
    directions: int
    mean: float  # mean of ‖Uᵀh‖² / ‖h‖², raw rows (S-Sec. A.3.8)
    pooled: float  # E‖Uᵀh‖² / E‖h‖²
    each: tuple[float, ...]  # E[(uᵀh)²] / E‖h‖², which add up to `pooled`
    random: float


@dataclass(frozen=True)
class Reuse(Found):
    """Per direction E[(uᵀh)²] / E‖h‖² in the early and the final state, and what is left of it: final / early."""

    early: tuple[float, ...]
    final: tuple[float, ...]
    kept: tuple[float, ...]
    abandoned: int  # directions of which less than half is left
    random: float  # 1/D, the share of a random direction


@dataclass(frozen=True)
class Judgement(Found):
    """A candidate for the early state: directions fitted on one half of the samples, measured on the other."""

    select: str
    directions: int
    early: float  # energy of the state's features in them (mean of ratios)
    final: float  # … of the final features
    lost: float  # 1 − final / early: the share that training abandoned, negative where energy grew
    random: float  # K/D, the energy in a random subspace
    explained: float  # E‖UᵀΔh‖² / E‖Δh‖²: how much of unseen displacement the directions hold
    agreement: Angles  # between the directions of the two halves
    reuse: Reuse


def energies(
    chunks: Stream, bases: Mapping[str, Tensor], roles: Sequence[str] = ("final", "early")
) -> dict[str, dict[str, Energy]]:
    """Energy of each role's rows in each orthonormal basis (D, K), in one pass: {role: {basis: Energy}}.

    Roles may be any states of a trajectory: {"epoch 5": rows, "epoch 20": rows, …}.
    """
    gathered = {(role, name): _Gathered() for role in roles for name in bases}
    for block in blocks(chunks, *roles):
        for role, rows in zip(roles, block, strict=True):
            for name, basis in bases.items():
                gathered[role, name].update(rows, basis_of(basis, rows))
    return {role: {name: gathered[role, name].energy() for name in bases} for role in roles}


def energy(rows: Tensor, basis: Tensor) -> Energy:
    """Energy of rows (N, D) in an orthonormal basis (D, K)."""
    return energies([{"rows": rows}], {"": basis}, ("rows",))["rows"][""]


class _Gathered:
    def __init__(self) -> None:
        self.count, self.undefined, self.width, self.ratios, self.power = 0, 0, 0, 0.0, 0.0
        self.inside = torch.zeros(0, dtype=torch.float64)  # Σ (uᵀh)². (K,)

    def update(self, rows: Tensor, basis: Tensor) -> None:
        present = rows.any(dim=1)
        self.width, self.undefined = basis.shape[0], self.undefined + int((~present).sum())
        rows = rows[present]
        inside, whole = (rows @ basis).square(), rows.square().sum(dim=1)  # (n, K), (n,)
        self.count += len(rows)
        self.ratios += float((inside.sum(dim=1) / whole).sum())
        self.power += float(whole.sum())
        self.inside = self.inside + inside.sum(dim=0) if len(self.inside) > 0 else inside.sum(dim=0)

    def energy(self) -> Energy:
        k = len(self.inside)
        if k == 0:
            return Energy(self.count, self.undefined, 0, math.nan, math.nan, (), math.nan)
        each = tuple(ratio(value, self.power) for value in self.inside.tolist())
        mean = ratio(self.ratios, self.count)
        return Energy(self.count, self.undefined, k, mean, math.fsum(each), each, k / self.width)


def reuse(moments: Moments, basis: Tensor) -> Reuse:
    """Whether training abandoned or reused each direction of a basis (D, K): its share of the energy in both states."""
    shares = []
    for scatter in (moments.early, moments.final):
        inside = scatter.energy(basis_of(basis, scatter.mean[None]))
        shares.append(tuple(ratio(value, scatter.power) for value in inside.tolist()))
    early, final = shares
    saved = tuple(ratio(after, before) for before, after in zip(early, final, strict=True))
    return Reuse(early, final, saved, sum(each < LEFT for each in saved), 1 / moments.width)


def judge(
    state_a: Tensor, final_a: Tensor, state_b: Tensor, final_b: Tensor, k: int = 4, select: Select = "displaced"
) -> Judgement:
    """`judge_streams` of rows (N, D) in memory: halves A and B of the samples, in a candidate and the final state."""
    return judge_streams(
        [{"final": final_a, "early": state_a}], [{"final": final_b, "early": state_b}], k=k, select=select
    )


def judge_streams(fit: Stream, ask: Stream, k: int = 4, select: Select = "displaced") -> Judgement:
    """Directions from the samples of `fit`, measured on those of `ask`, so that no sample vouches for itself.

    Reads `fit` once and `ask` twice. select: "displaced" or "abandoned", see `Moments`.
    """
    if select not in ("displaced", "abandoned"):
        raise ValueError(f"unknown directions {select!r}: 'displaced' and 'abandoned' are known")
    fitted, requested = Moments.of(fit), Moments.of(ask)
    own, other = (m.shortcut(k) if select == "displaced" else m.abandoned(k) for m in (fitted, requested))
    result = energies(ask, {"": own}, ("early", "final"))
    early, final = result["early"][""], result["final"][""]
    saved = ratio(final.mean, early.mean)
    explained = ratio(float(requested.delta.energy(own).sum()), requested.delta.power) if own.shape[1] > 0 else math.nan
    return Judgement(
        select,
        own.shape[1],
        early.mean,
        final.mean,
        1 - saved,
        early.random,
        explained,
        angles(own, other),
        reuse(requested, own),
    )
