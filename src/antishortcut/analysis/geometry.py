"""How much of a state's features lies in a subspace, whether training abandoned it, and how well it generalises."""
# N samples, D features, K directions

from __future__ import annotations

import math
from typing import Any, Literal

from torch import Tensor

from antishortcut.analysis.moments import Moments, angles, blocks, ratio

Kind = Literal["displaced", "abandoned"]
LEFT = 0.5  # a direction counts as abandoned when less than this share of its early energy is left


def energy(features: Tensor, basis: Tensor) -> float:
    """Mean of ‖Uᵀh‖² / ‖h‖² over rows (N, D) that are not zero (S-Sec. A.3.8); K/D for a random basis (D, K)."""
    total, count = 0.0, 0
    for (rows,) in blocks(features):
        rows = rows[rows.any(dim=1)]
        total += float(((rows @ basis.to(rows)).square().sum(dim=1) / rows.square().sum(dim=1)).sum())
        count += len(rows)
    return ratio(total, count) if basis.shape[1] > 0 else math.nan


def reuse(moments: Moments, basis: Tensor) -> dict[str, Any]:
    """Whether training abandoned or reused each direction of a basis (D, K).

    {"early", "final": E[(uᵀh)²] / E‖h‖² of each direction, "kept": what is left of it, final / early, "abandoned": how
    many have less than half left, "random": 1/D, the share of a random direction}
    """
    early, final = (
        [ratio(value, state.power) for value in state.energy(basis).tolist()]
        for state in (moments.early, moments.final)
    )
    left = [ratio(after, before) for before, after in zip(early, final, strict=True)]
    abandoned = sum(share < LEFT for share in left)
    return {"early": early, "final": final, "kept": left, "abandoned": abandoned, "random": 1 / moments.width}


def held_out_directions(
    early: Tensor, final: Tensor, fit: Tensor, test: Tensor, k: int = 4, kind: Kind = "displaced"
) -> dict[str, Any]:
    """A candidate for the early state: directions of the samples `fit`, measured on the samples `test`.

    Features (N, D) and indices of their rows.
    """
    fitted, tested = Moments(final[fit], early[fit]), Moments(final[test], early[test])
    basis, other = (each.shortcut(k) if kind == "displaced" else each.abandoned(k) for each in (fitted, tested))
    before, after, there = energy(early[test], basis), energy(final[test], basis), basis.shape[1]
    inside = float(tested.delta.energy(basis).sum())
    return {
        "select": kind,
        "directions": there,
        "early": before,  # energy of the early features in them (mean of ratios)
        "final": after,
        "lost": 1 - ratio(after, before),  # the share that training abandoned, negative where energy grew
        "random": there / tested.width if there > 0 else math.nan,  # K/D, the energy in a random subspace
        "explained": ratio(inside, tested.delta.power) if there > 0 else math.nan,  # E‖UᵀΔh‖² / E‖Δh‖² of `test`
        "agreement": angles(basis, other),  # between the directions of the two halves
        "reuse": reuse(tested, basis),
    }
