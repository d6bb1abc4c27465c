"""What a direction means: the factors that explain it, the samples at its ends, and how much a classifier reads it."""
# N samples, K directions, G groups of a factor, C classes, D features

import math

import torch
from torch import Tensor

from antishortcut.analysis.moments import ratio
from antishortcut.subspace import random_bases, unit


def variance_explained(projection: Tensor, factor: Tensor) -> tuple[list[float], float]:
    """Share of the variance of projections (N, K) that a factor (N,) of integers explains: per direction, and pooled.

    η² = between groups / total rises with the number of groups by chance. ε² = 1 − (1 − η²)(N − 1)/(N − G) (Kelley
    1935), which is returned, corrects for that: without any relation it is 0 on average. NaN without variance.
    """
    x = projection.detach().cpu().double()
    names, at = torch.unique(factor.cpu(), return_inverse=True)
    n, g = len(x), len(names)
    centred = x - x.mean(dim=0)  # (N, K)
    total = centred.square().sum(dim=0)  # (K,)
    sums = torch.zeros(g, x.shape[1], dtype=x.dtype).index_add_(0, at, centred)  # (G, K)
    between = (sums.square() / torch.bincount(at, minlength=g)[:, None]).sum(dim=0)  # (K,)
    rounding = n * (torch.finfo(x.dtype).eps * x.abs().amax(dim=0) * n).square()
    known = total > rounding  # equal values vary only by rounding

    def adjusted(between: float, total: float) -> float:
        return 1 - (1 - min(ratio(between, total), 1.0)) * (n - 1) / (n - g) if n > g else math.nan

    between, total = between * known, total * known
    each = [adjusted(b, t) for b, t in zip(between.tolist(), total.tolist(), strict=True)]
    return each, adjusted(float(between.sum()), float(total.sum()))


def extremes(projection: Tensor, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """The `count` samples with the largest and the smallest projections (N, K) of each direction; ties by number."""
    order = (projection.argsort(dim=0, descending=first, stable=True) for first in (True, False))
    high, low = (each[:count].T.tolist() for each in order)
    return high, low


def class_means(projection: Tensor, label: Tensor, classes: int) -> Tensor:
    """Mean projection (N, K) of each class; NaN of a class without samples. (C, K)"""
    sums = torch.zeros(classes, projection.shape[1], dtype=projection.dtype).index_add_(0, label, projection)
    return sums / torch.bincount(label, minlength=classes)[:, None]  # 0/0 is NaN


def head_share(weight: Tensor, basis: Tensor, draws: int = 200, seed: int = 0) -> dict[str, float]:
    """How much of a head W (C, D) reads an orthonormal basis U (D, K): norms of W U Uᵀ, of W, and their ratios.

    The random shares are means over seeded random subspaces of as many dimensions.
    """
    w, u = weight.detach().cpu().double(), basis.detach().cpu().double()
    d, k = u.shape
    whole = _norms(w)
    result: dict[str, float] = {"directions": k}
    inside = _norms(w @ u) if k > 0 else (math.nan, math.nan)  # ‖W U Uᵀ‖ = ‖W U‖
    random = [_norms(w @ other) for other in random_bases(d, k, draws, seed)] if k > 0 else []
    chance = [math.fsum(norms) / draws for norms in zip(*random, strict=True)] or (math.nan, math.nan)
    for at, name in enumerate(("spectral", "frobenius")):
        result |= {
            name: inside[at],
            f"whole_{name}": whole[at],
            f"{name}_share": ratio(inside[at], whole[at]),
            f"random_{name}_share": ratio(chance[at], whole[at]),
        }
    return result


def head_shift(weight: Tensor, basis: Tensor, size: float = 1.0, draws: int = 1000, seed: int = 0) -> dict[str, float]:
    """Change of the logits ‖W η‖ under random shifts η = U a of length `size`: mean, largest, bound ‖W U‖ · size.

    `random` is the mean under shifts of the same length in any direction.
    """
    w, u = weight.detach().cpu().double(), basis.detach().cpu().double()
    d, k = u.shape
    generator = torch.Generator().manual_seed(seed)
    anywhere = size * unit(torch.randn(draws, d, generator=generator, dtype=torch.float64))  # (draws, D)
    inside = size * unit(torch.randn(draws, k, generator=generator, dtype=torch.float64)) if k > 0 else anywhere[:, :0]
    moved = torch.linalg.vector_norm(inside @ (w @ u).T, dim=1) if k > 0 else torch.tensor([math.nan])  # (draws,)
    return {
        "size": size,
        "mean": float(moved.mean()),
        "largest": float(moved.max()),
        "bound": size * _norms(w @ u)[0] if k > 0 else math.nan,
        "random": float(torch.linalg.vector_norm(anywhere @ w.T, dim=1).mean()),
    }


def _norms(matrix: Tensor) -> tuple[float, float]:
    """Spectral and Frobenius norm."""
    values = torch.linalg.svdvals(matrix)
    return float(values[0]), float(values.square().sum().sqrt())
