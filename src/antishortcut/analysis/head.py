"""What a classifier's head makes of shortcut directions: ‖W η‖ ≤ ‖W P‖ Δ for shifts η in the span of U (S-Prop. 3)."""
# C classes, D features, K directions

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from antishortcut.analysis.found import Found, ratio
from antishortcut.analysis.stream import basis_of
from antishortcut.subspace import random_bases, unit


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
