"""What a direction means: how much of its projection a known factor explains, and which samples lie at its ends."""
# N samples, K directions, G groups of a factor, C classes

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from antishortcut.analysis.found import Found, ratio


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
