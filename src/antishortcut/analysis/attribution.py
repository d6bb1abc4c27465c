"""What a direction means: how much of its projection a known factor explains, and which samples lie at its ends."""
# N samples, K directions, G groups of a factor, C classes
# C classes, D features, K directions

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from antishortcut.analysis.stream import Found, basis_of, ratio
from antishortcut.subspace import random_bases, unit


@dataclass(frozen=True)
class Explained(Found):
    """Share of variance that a categorical factor explains, of each direction and of all of them together.

    η² = between groups / total rises with the number of groups by chance alone; ε² = 1 − (1 − η²)(N − 1)/(N − G)
    (Kelley 1935) takes that out, is 0 on average without any relation, and may fall below 0.
    """

    count: int
    groups: int
    each: tuple[float, ...]  # η². (K)
    adjusted: tuple[float, ...]  # ε². (K)
    pooled: float  # Σ between / Σ total over the directions
    pooled_adjusted: float


@dataclass(frozen=True)
class Ends(Found):
    """Numbers of the samples that project most on each direction, on either side, farthest first."""

    positive: tuple[tuple[int, ...], ...]  # (K, count)
    negative: tuple[tuple[int, ...], ...]  # (K, count)


def explained(projection: Tensor, factor: Tensor) -> Explained:
    """Shares of the variance of projections (N, K) that a factor (N,) of integers explains. NaN without variance."""
    x, group = _rows(projection, factor)
    n = len(x)
    names, at = torch.unique(group, return_inverse=True)
    g = len(names)
    mean = x.mean(dim=0) if n > 0 else x.new_zeros(x.shape[1])
    centred = x - mean  # (N, K)
    total = centred.square().sum(dim=0)  # (K,)
    size = torch.bincount(at, minlength=g).double()  # (G,)
    sums = torch.zeros(g, x.shape[1], dtype=x.dtype).index_add_(0, at, centred)  # (G, K)
    between = (sums.square() / size[:, None]).sum(dim=0)  # (K,)
    rounding = n * (torch.finfo(x.dtype).eps * x.abs().amax(dim=0) * n).square() if n > 0 else total
    known = total > rounding  # what all samples share varies only by rounding
    between, total = between * known, total * known
    each = [min(ratio(b, t), 1.0) for b, t in zip(between.tolist(), total.tolist(), strict=True)]
    pooled = min(ratio(float(between.sum()), float(total.sum())), 1.0)
    return Explained(
        n, g, tuple(each), tuple(_adjusted(value, n, g) for value in each), pooled, _adjusted(pooled, n, g)
    )


def ends(projection: Tensor, count: int) -> Ends:
    """The `count` samples with the largest and the smallest projections (N, K) of each direction; ties by number."""
    if projection.ndim != 2 or count < 0:
        raise ValueError(f"projections {tuple(projection.shape)} must be (N, K), and {count} not negative")
    x = projection.detach().cpu()
    high, low = (x.argsort(dim=0, descending=side, stable=True)[:count].T.tolist() for side in (True, False))
    return Ends(tuple(map(tuple, high)), tuple(map(tuple, low)))


def class_means(projection: Tensor, label: Tensor, classes: int) -> Tensor:
    """Mean projection (N, K) of each class; NaN of a class without samples. (C, K)"""
    x, at = _rows(projection, label)
    if len(at) > 0 and not 0 <= int(at.min()) <= int(at.max()) < classes:
        raise ValueError(f"labels must lie in 0 … {classes - 1}")
    sums = torch.zeros(classes, x.shape[1], dtype=x.dtype).index_add_(0, at, x)
    return sums / torch.bincount(at, minlength=classes)[:, None]  # 0/0 is NaN


def _adjusted(share: float, n: int, groups: int) -> float:
    return 1 - (1 - share) * (n - 1) / (n - groups) if n > groups else math.nan


def _rows(projection: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    if projection.ndim != 2 or factor.shape != projection.shape[:1]:
        raise ValueError(f"projections {tuple(projection.shape)} and a factor {tuple(factor.shape)} do not belong")
    return projection.detach().cpu().double(), factor.detach().cpu().long()


# --- What a classifier's head makes of shortcut directions ---


@dataclass(frozen=True)
class Head(Found):
    """Norms of W P, P = U Uᵀ, of W, their ratios, and the mean ratio over random subspaces of as many dimensions."""

    directions: int
    spectral: float  # ‖W P‖₂
    frobenius: float
    whole_spectral: float  # ‖W‖₂
    whole_frobenius: float
    spectral_share: float
    frobenius_share: float
    random_spectral_share: float
    random_frobenius_share: float


@dataclass(frozen=True)
class Shift(Found):
    """Change of the logits ‖W η‖ under seeded random shifts of length Δ in the span of U, and its bound ‖W P‖ Δ."""

    size: float  # Δ
    mean: float
    largest: float
    bound: float
    random: float  # mean under shifts of the same length in any direction


def head_share(weight: Tensor, basis: Tensor, draws: int = 200, seed: int = 0) -> Head:
    """How much of a head W (C, D) reads an orthonormal basis (D, K). Random baseline: the mean of seeded draws."""
    w = weight.detach().cpu().double()
    u = basis_of(basis, w)
    values, whole = torch.linalg.svdvals(w @ u), torch.linalg.svdvals(w)  # ‖W U Uᵀ‖ = ‖W U‖
    d, k = u.shape
    if k == 0:
        norms = (_spectral(whole), _frobenius(whole))
        return Head(0, math.nan, math.nan, *norms, math.nan, math.nan, math.nan, math.nan)
    random = [torch.linalg.svdvals(w @ other) for other in random_bases(d, k, draws, seed)]
    chance = [math.fsum(norm(each) for each in random) / draws for norm in (_spectral, _frobenius)]
    own, total = [[norm(each) for norm in (_spectral, _frobenius)] for each in (values, whole)]
    shares = [ratio(part, of) for part, of in zip([*own, *chance], [*total, *total], strict=True)]
    return Head(k, *own, *total, *shares)


def head_shift(weight: Tensor, basis: Tensor, size: float = 1.0, draws: int = 1000, seed: int = 0) -> Shift:
    """‖W η‖ for η = U a, ‖η‖ = `size`, a uniform on the sphere: mean and largest of the draws against the bound."""
    w = weight.detach().cpu().double()
    u = basis_of(basis, w)
    d, k = u.shape
    generator = torch.Generator().manual_seed(seed)
    anywhere = size * unit(torch.randn(draws, d, generator=generator, dtype=torch.float64))  # (draws, D)
    random = float(torch.linalg.vector_norm(anywhere @ w.T, dim=1).mean())
    if k == 0:
        return Shift(size, math.nan, math.nan, math.nan, random)
    a = size * unit(torch.randn(draws, k, generator=generator, dtype=torch.float64))  # (draws, K)
    moved = torch.linalg.vector_norm(a @ (w @ u).T, dim=1)  # (draws,)
    bound = size * _spectral(torch.linalg.svdvals(w @ u))
    return Shift(size, float(moved.mean()), float(moved.max()), bound, random)


def _spectral(values: Tensor) -> float:
    return float(values[0]) if len(values) > 0 else 0.0


def _frobenius(values: Tensor) -> float:
    return float(values.square().sum().sqrt())
