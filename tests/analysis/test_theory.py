"""The paper's propositions as properties of the code, with the corrections its proofs need."""
# B batch, D features, K directions, M queue, N negatives, p dimensions of the robust block

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut import subspace
from antishortcut.methods import asd
from antishortcut.methods.asd import suppression, temporal_contrast
from antishortcut.subspace import (
    leading_eigenvectors,
    principal_angles,
    projection,
    second_moment,
    top_directions,
    unit,
)
from tests.methods.test_asd import slow_contrast
from tests.test_subspace import close, normal, orthonormal, seeds, several, span


def identity(rows: Tensor) -> Tensor:
    """Replaces `unit` where rows are unit already, so that gradients are by z and h̄ themselves."""
    return rows


def tangential(rows: Tensor, gradient: Tensor) -> Tensor:
    """What a gradient by unit rows z (B, D) becomes for the raw rows h: (g − (g·z) z) / ‖h‖."""
    z, length = unit(rows), torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    along: Tensor = (gradient * z).sum(1, keepdim=True) * z
    part: Tensor = (gradient - along) / length
    return part


# Prop. 1: temporal contrast and mutual information


@several
@given(b=st.integers(1, 4), d=st.integers(1, 5), m=st.integers(0, 4), tau=st.sampled_from([0.07, 1.0]), seed=seeds)
def test_the_temporal_negative_only_raises_the_loss(b: int, d: int, m: int, tau: float, seed: int) -> None:
    student, final, early = (normal(b, d, seed=seed + i) for i in range(3))
    queue = unit(normal(m, d, seed=seed + 3))
    full, reduced = (temporal_contrast(student, final, e, queue, temperature=tau) for e in (early, None))
    assert full >= reduced
    rows = [slow_contrast(student, final, e, queue.tolist(), tau) for e in (early, None)]
    assert all(ours >= less for ours, less in zip(*rows, strict=True))  # pointwise, not only on average


def channel_information(classes: int, right: float) -> float:
    """I(S; F) in nats of a symmetric channel: F uniform, S = F with probability `right`, else any other class."""
    wrong = (1 - right) / (classes - 1)
    noise = -right * math.log(right) - (classes - 1) * wrong * math.log(wrong)
    return math.log(classes) - noise


def expected_contrast(classes: int, right: float, b: int, m: int, tau: float, temporal: bool) -> float:
    """E[L_TC], exactly: every batch of b (student, final) pairs and m queued finals, weighted by its probability."""
    one_hot = torch.eye(classes, dtype=torch.float64)
    pairs = list(itertools.product(range(classes), repeat=2))
    wrong = (1 - right) / (classes - 1)
    total = 0.0
    for batch in itertools.product(pairs, repeat=b):
        weight = math.prod((right if s == f else wrong) / classes for s, f in batch)
        student, final = one_hot[[s for s, _ in batch]], one_hot[[f for _, f in batch]]
        for queued in itertools.product(range(classes), repeat=m):
            early = student if temporal else None
            loss = temporal_contrast(student, final, early, one_hot[list(queued)], temperature=tau)
            total += weight / classes**m * loss.item()
    return total


@pytest.mark.parametrize(("classes", "b", "m"), [(2, 3, 0), (2, 2, 2), (3, 2, 1), (4, 1, 2)])
@pytest.mark.parametrize("right", [0.6, 0.95])
def test_infonce_bounds_the_information_from_below(classes: int, b: int, m: int, right: float) -> None:
    """Eq. 11 with N = B − 1 + M negatives, at the best critic and at others; the temporal negative keeps it valid."""
    information, ceiling = channel_information(classes, right), math.log(b + m)
    best = 1 / math.log(right * (classes - 1) / (1 - right))  # exp(1/τ) is then the ratio of the densities
    bounds = {tau: ceiling - expected_contrast(classes, right, b, m, tau, False) for tau in (best, 0.07, 3.0)}
    assert all(bound <= information for bound in bounds.values())
    assert 0 < bounds[best] == max(bounds.values())  # it says something, and the best critic says most
    assert ceiling - expected_contrast(classes, right, b, m, best, True) <= bounds[best]


# Prop. 2: suppression and angles


@several
@given(d=st.integers(3, 9), k=st.integers(1, 2), margin=st.sampled_from([0.05, 0.1, 0.5]), seed=seeds)
def test_where_suppression_is_zero_the_angle_is_at_least_arccos_of_the_margin(
    d: int, k: int, margin: float, seed: int
) -> None:
    u, rows = orthonormal(d, k, seed=seed), normal(12, d, seed=seed + 1)
    rows[::2] -= 0.97 * rows[::2] @ u @ u.T  # half of the rows lie close to the complement
    for row in rows:
        angle = principal_angles(unit(row[None]).T, u)[0]
        satisfied = bool(suppression(row[None], u, margin) == 0)
        assert satisfied == bool(angle >= math.acos(margin))
        if satisfied:  # then every direction of the subspace is that far away
            inside = unit(normal(20, k, seed=seed + 2) @ u.T)
            assert (torch.arccos((inside @ unit(row[None]).T).abs()) >= math.acos(margin) - 1e-9).all()


# S-Prop. 1–2: gradients


@pytest.mark.parametrize("tau", [0.07, 0.5])
@pytest.mark.parametrize("by", ["z", "h"])
def test_contrast_pulls_to_the_final_and_pushes_from_the_early_state(
    monkeypatch: pytest.MonkeyPatch, tau: float, by: str
) -> None:
    """∂L/∂z_S = −1/τ [(1 − p_F) z_F − p_E z_E − Σ p_k ν_k], and its tangential part for raw features."""
    raw = 2.5 * normal(1, 6)
    z_s, z_f, z_e, rest = unit(raw)[0], *unit(normal(2, 6, seed=1)), unit(normal(5, 6, seed=2))
    powers = [math.exp(float(z_s @ v) / tau) for v in (z_f, z_e, *rest)]
    p_f, p_e, *p = (power / sum(powers) for power in powers)
    repelled = torch.stack([p_k * v for p_k, v in zip(p, rest, strict=True)]).sum(0)
    expected = -1 / tau * ((1 - p_f) * z_f - p_e * z_e - repelled)  # (D,)
    rows = (unit(raw) if by == "z" else raw).requires_grad_()
    if by == "z":
        monkeypatch.setattr(asd, "unit", identity)
    (gradient,) = torch.autograd.grad(temporal_contrast(rows, z_f[None], z_e[None], rest, temperature=tau), rows)
    close(gradient, expected[None] if by == "z" else tangential(raw.detach(), expected[None]))


@pytest.mark.parametrize("by", ["z", "h"])
def test_suppression_descends_inside_the_subspace(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """∂ℓ/∂h̄ = P h̄ / ‖P h̄‖, a unit vector of the span; nothing where the hinge rests."""
    u, raw = orthonormal(7, 3), 3.0 * normal(4, 7, seed=1)
    raw[3] -= raw[3] @ u @ u.T  # a row outside the subspace
    inside = unit(raw) @ u @ u.T
    expected = torch.where(torch.arange(4)[:, None] < 3, inside / inside.norm(dim=1, keepdim=True), 0.0)
    rows = (unit(raw) if by == "z" else raw).requires_grad_()
    if by == "z":
        monkeypatch.setattr(subspace, "unit", identity)
    (gradient,) = torch.autograd.grad(4 * suppression(rows, u), rows)
    close(gradient, expected if by == "z" else tangential(raw.detach(), expected))
    if by == "z":
        close(gradient.norm(dim=1), [1, 1, 1, 0])
        close(gradient @ u @ u.T, gradient)
    before, after = (projection(x, u) for x in (rows, rows - 1e-3 * gradient))
    assert (after[:3] < before[:3]).all()


# Theorem 4: when Δh finds the shortcut block


def uncorrelated(robust: Tensor, shortcut: Tensor) -> Tensor:
    """Displacements r ± s (2B, D): each r meets s and −s, so E[r sᵀ] is exactly zero."""
    return torch.cat([robust + shortcut, robust - shortcut])


@several
@given(p=st.integers(1, 4), q=st.integers(2, 5), k=st.integers(1, 2), scale=st.floats(0.1, 4), seed=seeds)
def test_uncorrelated_and_dominant_shortcuts_are_found(p: int, q: int, k: int, scale: float, seed: int) -> None:
    axes = orthonormal(p + q, p + q, seed=seed)
    v_r, v_s = axes[:, :p], axes[:, p:]  # the two blocks, orthogonal and together everything
    r, s = scale * normal(15, p, seed=seed + 1) @ v_r.T, (normal(15, q, seed=seed + 2) + 0.5) @ v_s.T
    rows = uncorrelated(r, s)
    g_r, g_s = second_moment(r), second_moment(s)
    close(second_moment(rows), g_r + g_s)  # no cross-moment
    robust, shortcut = torch.linalg.eigvalsh(g_r).flip(0), torch.linalg.eigvalsh(g_s).flip(0)
    basis, _ = top_directions(rows, k)
    result = span(basis) @ v_r.numpy()  # what lies in the robust block
    if shortcut[k - 1] > robust[0] + 1e-3:  # Eq. 13
        close(result, 0 * result, 1e-9)
        close(span(basis), span(leading_eigenvectors(g_s, k)[0]), 1e-8)
        joint = torch.linalg.eigvalsh(second_moment(rows)).flip(0)
        close(joint[k - 1] - joint[k], shortcut[k - 1] - torch.maximum(shortcut[k], robust[0]))  # the gap
    elif robust[0] > shortcut[k - 1] + 1e-3:  # without Eq. 13 a robust direction comes along
        close(np.linalg.norm(result, 2), 1.0, 1e-8)


def test_correlated_components_defeat_the_theorem() -> None:
    """Step 1 does not follow from Assumption 3: r = z e₁ and s = 2z e₃ satisfy it and Eq. 13 with G_s = 4, G_r = 1."""
    z, e = normal(500, 1), torch.eye(3, dtype=torch.float64)
    r, s = z * e[0], 2 * z * e[2]
    assert leading_eigenvectors(second_moment(s), 1)[1] > 3.9 * leading_eigenvectors(second_moment(r), 1)[1]
    basis, _ = top_directions(r + s, 1)
    close(basis[:, 0].abs(), [1 / math.sqrt(5), 0, 2 / math.sqrt(5)])  # not e₃: a fifth of its energy is robust
    result, _ = top_directions(uncorrelated(r, s), 1)
    close(result[:, 0].abs(), [0, 0, 1])  # the same two moments, uncorrelated


# Davis–Kahan


def turned(moment: Tensor, error: Tensor, k: int) -> float:
    """‖sin Θ‖₂ between the top-K eigenspaces of a symmetric matrix and of the same matrix with an error."""
    before, after = (torch.linalg.eigh(x)[1][:, -k:] for x in (moment, moment + error))
    return principal_angles(before, after).max().sin().item()


@several
@given(d=st.integers(2, 7), k=st.integers(1, 6), size=st.floats(0.01, 0.6), seed=seeds)
def test_davis_kahan_holds_with_the_factor_two(d: int, k: int, size: float, seed: int) -> None:
    k = min(k, d - 1)
    moment = second_moment(normal(2 * d, d, seed=seed))
    values = torch.linalg.eigvalsh(moment).flip(0)
    gap = (values[k - 1] - values[k]).item()
    noise = normal(d, d, seed=seed + 1)
    error = size * gap * (noise + noise.T) / torch.linalg.matrix_norm(noise + noise.T, 2)  # ‖E‖ = size × gap
    assert turned(moment, error, k) <= 2 * size + 1e-9


def test_davis_kahan_fails_with_the_printed_constant() -> None:
    """diag(1, 0) has gap 1. With ‖E‖ = 0.4 the axis turns by arctan(4/3)/2, whose sine 1/√5 exceeds 0.4."""
    moment = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))
    error = 0.4 * torch.tensor([[-0.8, 0.6], [0.6, 0.8]], dtype=torch.float64)
    assert torch.linalg.matrix_norm(error, 2).item() == pytest.approx(0.4)
    sine = turned(moment, error, 1)
    assert sine == pytest.approx(1 / math.sqrt(5))
    assert 0.4 < sine <= 2 * 0.4
