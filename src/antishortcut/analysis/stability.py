"""How stable the shortcut eigenspace is: between disjoint folds of the data, and as batches grow."""
# N samples, B rows of a batch, D features, K directions

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from antishortcut.analysis.moments import RunningCovariance, angles
from antishortcut.subspace import top_directions


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
    if k == 0:
        return torch.zeros(final.shape[1], 0)
    if len(index) < final.shape[1]:
        return top_directions(early[index].cpu().double() - final[index].cpu().double(), k)[0]
    return RunningCovariance.of_displacement(final, early, index).directions(k, centred=False)


def _between(bases: Sequence[Tensor]) -> list[float]:
    return [angles(a, b)["mean"] for a, b in itertools.combinations(bases, 2)]


def _mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (ddof 1) of the values that are defined."""
    known = torch.tensor([value for value in values if not math.isnan(value)], dtype=torch.float64)
    mean = float(known.mean()) if len(known) > 0 else math.nan
    return mean, float(known.std()) if len(known) > 1 else math.nan
