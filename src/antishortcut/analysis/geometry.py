"""Energy of features in a subspace, whether training abandoned it, and how stable it is over samples and batches."""
# N samples, B rows of a batch, D features, K directions

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from antishortcut.analysis.moments import Moments, RunningCovariance, angles, blocks, ratio
from antishortcut.subspace import top_directions

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


def folds(count: int, number: int = 10, seed: int = 0) -> tuple[Tensor, ...]:
    """A random split of `count` rows into `number` disjoint folds of equal size: indices (count // number,) of each."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    size = count // number
    return tuple(order[size * at : size * (at + 1)].sort().values for at in range(number))


def bootstrap(final: Tensor, early: Tensor, index: Sequence[Tensor], k: int = 4) -> dict[str, float]:
    """Top-K eigenspaces of E[Δh Δhᵀ] of each fold, compared (S-Sec. A.3.5); features (N, D), `index` from `folds`.

    Mean principal angle in degrees, mean ± std (ddof 1): over all pairs of folds, and to the eigenspace of all folds.
    """
    bases = [_eigenspace(final, early, fold, k) for fold in index]
    whole = _eigenspace(final, early, torch.cat(list(index)), k)
    pairs = _between(bases)
    result: dict[str, float] = {"parts": len(bases), "rows": len(index[0]), "pairs": len(pairs)}
    result["mean"], result["std"] = _mean_std(pairs)
    result["to_whole"], result["to_whole_std"] = _mean_std([angles(basis, whole)["mean"] for basis in bases])
    return result | {"random": angles(whole, whole)["random"]}


def batch_sizes(count: int, smallest: int = 32) -> tuple[int, ...]:
    """32, 64, 128, … up to half of the rows, so that two disjoint batches exist."""
    return tuple(itertools.takewhile(lambda size: 2 * size <= count, (smallest * 2**i for i in itertools.count())))


def batch_angles(
    final: Tensor, early: Tensor, whole: Tensor, sizes: Sequence[int], batches: int = 10, seed: int = 0
) -> list[dict[str, float]]:
    """Mean angles in degrees of the eigenspaces of batches of each size: to `whole` (D, K), and between batches.

    Batches are consecutive rows in a random order, as in training. The reference falls as 1/√B from the first angle,
    the rate of Davis–Kahan.
    """
    order = torch.randperm(len(final), generator=torch.Generator().manual_seed(seed))
    rows: list[dict[str, float]] = []
    for size in sizes:
        starts = range(0, size * min(batches, len(order) // size), size)
        bases = [_eigenspace(final, early, order[start : start + size], whole.shape[1]) for start in starts]
        to_whole, _ = _mean_std([angles(basis, whole)["mean"] for basis in bases])
        reference = (rows[0]["to_whole"] if rows else to_whole) * math.sqrt(sizes[0] / size)
        row = {"batch": size, "to_whole": to_whole, "between": _mean_std(_between(bases))[0], "reference": reference}
        rows.append(row)
    return rows


def _eigenspace(final: Tensor, early: Tensor, index: Tensor, k: int) -> Tensor:
    """Top-K eigenvectors of E[Δh Δhᵀ] of the rows `index`, by the smaller Gram matrix. (D, k')"""
    final, early = final[index], early[index]
    width = final.shape[1]
    if k == 0:
        return torch.zeros(width, 0)
    if len(index) < width:
        return top_directions(early.cpu().double() - final.cpu().double(), k)[0]
    return RunningCovariance(width, (h_e - h_f for h_f, h_e in blocks(final, early))).directions(k, centred=False)


def _between(bases: Sequence[Tensor]) -> list[float]:
    return [angles(a, b)["mean"] for a, b in itertools.combinations(bases, 2)]


def _mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (ddof 1) of the values that are defined."""
    known = torch.tensor([value for value in values if not math.isnan(value)], dtype=torch.float64)
    mean = float(known.mean()) if len(known) > 0 else math.nan
    return mean, float(known.std()) if len(known) > 1 else math.nan
