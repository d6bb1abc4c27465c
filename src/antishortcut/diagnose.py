"""What a student leans on, as pure functions of features (N, D) of the same samples."""
# N samples, D teacher features, d student features, K directions

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from antishortcut.subspace import projection, random_projection, top_directions, unit


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of each pair of rows (N, D); 0 where one of them is zero. (N,)"""
    return (unit(a) * unit(b)).sum(dim=1)


def alignment(student: Tensor, final: Tensor, early: Tensor) -> Iterator[tuple[str, float]]:
    """How close the student is to both teacher states, and how it points along Δh = early − final (S-Sec. A.3.1)."""
    to_final, to_early = cosine(student, final), cosine(student, early)
    signed = cosine(student, early - final)
    yield "cos_final", float(to_final.mean())
    yield "cos_early", float(to_early.mean())
    yield "closer_to_final", float((to_final > to_early).float().mean())
    yield "cos_displacement", float(signed.mean())
    yield "above_threshold", float((signed > -0.1).float().mean())  # ε_diag = −0.1


def shortcut_projection(student: Tensor, final: Tensor, early: Tensor, k: int = 4) -> Iterator[tuple[str, float]]:
    """Mean ‖h̄ᵀU‖ on the top-K eigenspace of the pool's E[Δh Δhᵀ], beside T_final's own and the random value √(K/D)."""
    basis, _ = top_directions(early - final, k)
    yield "projection", float(projection(student, basis).mean())
    yield "projection_final", float(projection(final, basis).mean())
    yield "projection_random", random_projection(basis.shape[1], basis.shape[0])


def ridge_map(source: Tensor, target: Tensor, strength: float = 1e-3) -> tuple[Tensor, Tensor]:
    """The affine map of least squares from rows (N, d) to rows (N, D), ridge = strength × mean feature variance.

    Returns (matrix (d, D), offset (D,)): a student's features in the teacher's space, by one ruler for all methods.
    """
    x, y = source.double(), target.double()
    x_mean, y_mean = x.mean(dim=0), y.mean(dim=0)
    centred = x - x_mean  # (N, d)
    moment = centred.T @ centred / len(x)  # (d, d)
    ridge = strength * moment.diagonal().mean() + torch.finfo(torch.float64).tiny
    matrix = torch.linalg.solve(
        moment + ridge * torch.eye(len(moment), dtype=x.dtype), centred.T @ (y - y_mean) / len(x)
    )  # (d, D)
    return matrix.to(source.dtype), (y_mean - x_mean @ matrix).to(source.dtype)
