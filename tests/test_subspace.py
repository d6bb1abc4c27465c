"""Subspaces against numpy and scipy, cases solved by hand, and what must hold for any rows."""
# B rows, D features, K directions

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.subspace import (
    abandoned_directions,
    leading_eigenvectors,
    padded_directions,
    principal_angles,
    projection,
    random_angle,
    random_bases,
    random_projection,
    second_moment,
    shortcut_subspace,
    top_directions,
    unit,
)

several = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 10_000)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Reproducible normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def orthonormal(d: int, k: int, seed: int = 0) -> Tensor:
    """A random orthonormal basis (D, K)."""
    basis: Tensor = torch.linalg.qr(normal(d, k, seed=seed)).Q
    return basis


def close(ours: Any, theirs: Any, tolerance: float = 1e-10, relative: float = 0.0) -> None:
    """Equal within a tolerance; an absolute one unless told."""
    ours, theirs = (x.detach() if isinstance(x, Tensor) else x for x in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, rtol=relative, atol=tolerance)


def span(basis: Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """UUᵀ, which names a subspace whatever the signs and the rotation of its basis."""
    u = np.asarray(basis, dtype=np.float64)
    return u @ u.T


def slow_moment(rows: Tensor) -> np.ndarray[Any, Any]:
    """Eq. 4 as it is written: a mean of outer products, entry by entry. (D, D)"""
    x: list[list[float]] = rows.double().tolist()
    d = range(rows.shape[1])
    return np.array([[sum(row[p] * row[q] for row in x) / len(x) for q in d] for p in d])


def slow_directions(moment: np.ndarray[Any, Any], k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Top-K eigenvectors (D, K) and eigenvalues (K,) of a moment, largest first."""
    values, vectors = np.linalg.eigh(moment)
    return vectors[:, ::-1][:, :k], values[::-1][:k]


SHAPES = pytest.mark.parametrize(("b", "d"), [(5, 9), (7, 7), (30, 6)], ids=["B<D", "B=D", "B>D"])


@SHAPES
def test_second_moment_is_the_uncentred_loop(b: int, d: int) -> None:
    rows = normal(b, d) + 3.0
    close(second_moment(rows), slow_moment(rows), 1e-12)


@SHAPES
@pytest.mark.parametrize("through", ["rows", "moment"])
@pytest.mark.parametrize("mean", [0.0, 2.0])
def test_directions_agree_with_numpy(b: int, d: int, through: str, mean: float) -> None:
    rows = normal(b, d, seed=b) + mean  # a centred moment would lose the direction of the mean
    basis, values = top_directions(rows, 3) if through == "rows" else leading_eigenvectors(second_moment(rows), 3)
    expected, lambdas = slow_directions(slow_moment(rows), 3)
    close(span(basis), span(expected))
    close(values, lambdas, 0, 1e-10)


def test_directions_by_hand() -> None:
    rows = torch.tensor([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0], [0.0, 0.0, 2.0]], dtype=torch.float64)
    basis, values = top_directions(rows, 2)  # moment diag(18, 0, 4) / 3
    close(basis.abs(), [[1, 0], [0, 0], [0, 1]], 1e-12)
    close(values, [6.0, 4.0 / 3.0], 0, 1e-12)


@several
@given(b=st.integers(1, 12), d=st.integers(1, 12), rank=st.integers(0, 5), k=st.integers(1, 6), seed=seeds)
def test_as_many_orthonormal_directions_as_there_are(b: int, d: int, rank: int, k: int, seed: int) -> None:
    rows = normal(b, rank, seed=seed) @ normal(rank, d, seed=seed + 1)
    rank = min(rank, b, d)
    basis, values = top_directions(rows, k)
    assert basis.shape == (d, min(k, rank))
    assert values.shape == (min(k, rank),)
    close(basis.T @ basis, np.eye(min(k, rank)))
    assert (values.diff() <= 1e-12).all()
    if k >= rank:  # then the span holds every row
        close(rows @ basis @ basis.T, rows, 1e-8)


@several
@given(b=st.integers(1, 12), d=st.integers(1, 12), rank=st.integers(0, 5), k=st.integers(1, 14), seed=seeds)
def test_what_is_not_there_is_a_zero_column(b: int, d: int, rank: int, k: int, seed: int) -> None:
    rows = (normal(b, rank, seed=seed) @ normal(rank, d, seed=seed + 1)).float()
    basis, values, there = padded_directions(rows, k)
    result, lambdas = top_directions(rows, k)
    count = result.shape[1]
    assert basis.shape == (d, min(k, b, d))
    assert there.tolist() == [True] * count + [False] * (len(there) - count)
    assert not basis[:, count:].any()
    assert not values[count:].any()
    assert torch.equal(basis[:, :count], result)
    assert torch.equal(values[:count], lambdas)
    close(basis.T @ basis, np.diag(there.double()), 1e-6)
    outputs = normal(3, d, seed=seed + 2, dtype=torch.float32)
    close(projection(outputs, basis), projection(outputs, result), 1e-6)


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (1, 1)])
def test_zero_rows_have_no_direction(shape: tuple[int, int]) -> None:
    basis, values = top_directions(torch.zeros(shape), 2)
    assert basis.shape == (shape[1], 0)
    assert values.shape == (0,)
    assert leading_eigenvectors(torch.zeros(4, 4), 2)[0].shape == (4, 0)


@pytest.mark.parametrize(("b", "d"), [(8, 40), (40, 8)])
def test_single_precision_comes_back_as_it_went_in(b: int, d: int) -> None:
    rows = normal(b, d, dtype=torch.float32)
    basis, values = top_directions(rows, 4)
    assert basis.dtype == values.dtype == torch.float32
    close(basis.T @ basis, np.eye(4), 1e-6)
    close(span(basis), span(slow_directions(slow_moment(rows), 4)[0]), 1e-5)
    rank_one = second_moment(rows[:, :1] @ rows[:1])
    assert leading_eigenvectors(rank_one, 4)[0].shape == (d, 1)  # the rest is rounding of the moment


@pytest.mark.parametrize(("b", "d", "side"), [(8, 20_000, 8), (50, 6, 6)])
def test_only_the_smaller_side_is_decomposed(monkeypatch: pytest.MonkeyPatch, b: int, d: int, side: int) -> None:
    requested: list[tuple[int, ...]] = []
    eigh = torch.linalg.eigh

    def recorded(matrix: Tensor) -> tuple[Tensor, Tensor]:
        requested.append(tuple(matrix.shape))
        values, vectors = eigh(matrix)
        return values, vectors

    monkeypatch.setattr(torch.linalg, "eigh", recorded)
    basis, _ = top_directions(normal(b, d), 4)  # 20,000² numbers would be 3.2 GB
    assert requested == [(side, side)]
    close(basis.T @ basis, np.eye(4))


def test_no_gradient_flows_through_a_basis() -> None:
    rows = normal(4, 6).requires_grad_()
    assert not top_directions(rows, 2)[0].requires_grad
    assert not leading_eigenvectors(second_moment(rows), 2)[0].requires_grad
    assert not abandoned_directions(second_moment(rows), second_moment(rows), 2)[0].requires_grad


def test_shortcut_subspace_finds_what_was_added_early() -> None:
    final, planted = normal(32, 10), orthonormal(10, 2, seed=1)
    early = final + (normal(32, 2, seed=2) + 1.0) @ planted.T
    close(span(shortcut_subspace(early, final, 2)), span(planted))
    assert shortcut_subspace(normal(32, 10, seed=3), final).shape == (10, 4)  # the paper's K
    assert shortcut_subspace(final, final).shape == (10, 0)


@several
@given(d=st.integers(1, 8), k1=st.integers(1, 8), k2=st.integers(1, 8), seed=seeds)
def test_principal_angles_agree_with_scipy(d: int, k1: int, k2: int, seed: int) -> None:
    a, b = orthonormal(d, min(d, k1), seed=seed), orthonormal(d, min(d, k2), seed=seed + 1)
    ours = principal_angles(a, b)
    close(ours, np.sort(scipy.linalg.subspace_angles(a.numpy(), b.numpy())))
    close(ours, principal_angles(b, a))


@pytest.mark.parametrize("angle", [1e-9, 1e-4, 0.5, math.pi / 4, 1.2, math.pi / 2 - 1e-9, math.pi / 2])
def test_principal_angles_by_hand(angle: float) -> None:
    e = torch.eye(5, dtype=torch.float64)
    tilted = math.cos(angle) * e[1] + math.sin(angle) * e[2]
    plane, other = torch.stack([e[0], e[1]], 1), torch.stack([tilted, e[0]], 1)  # they share the line e₀
    close(principal_angles(plane, other), [0.0, angle], 1e-15, 1e-12)
    close(principal_angles(e[:, 1:2], torch.stack([tilted, e[4]], 1)), [angle], 0, 1e-12)
    assert principal_angles(plane, e[:, :0]).shape == (0,)


@pytest.mark.parametrize("ridge", [0.01, 0.5])
@pytest.mark.parametrize("k", [1, 3])
def test_abandoned_directions_agree_with_scipy(ridge: float, k: int) -> None:
    displacement, final = second_moment(normal(40, 7)), second_moment(normal(40, 7, seed=1) * torch.arange(1, 8))
    basis, values = abandoned_directions(displacement, final, k, ridge)
    loaded = final.numpy() + ridge * np.trace(final) / 7 * np.eye(7)
    lambdas, vectors = scipy.linalg.eigh(displacement.numpy(), loaded)
    top = scipy.linalg.orth(vectors[:, ::-1][:, :k])
    close(span(basis), span(top), 1e-8)
    close(values, lambdas[::-1][:k], 0, 1e-8)
    close(basis.T @ basis, np.eye(k))


def test_displaced_directions_are_reused_and_abandoned_ones_are_not() -> None:
    """Solved by hand: axes 0 and 1 move most but stay in use, axis 4 moves less and ends empty."""
    displacement = torch.diag(torch.tensor([9.0, 9.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64))
    final = torch.diag(torch.tensor([4.0, 4.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    displaced, _ = leading_eigenvectors(displacement, 2)
    abandoned, values = abandoned_directions(displacement, final, 1)
    close(span(displaced), np.diag([1, 1, 0, 0, 0, 0]), 1e-12)
    close(span(abandoned), np.diag([0, 0, 0, 0, 1, 0]), 1e-12)
    close(values, [1 / (0.01 * 10 / 6)], 0, 1e-12)  # 1 / λ
    energy = [float((u.T @ final @ u).trace()) for u in (displaced, abandoned)]
    assert energy == pytest.approx([8.0, 0.0], abs=1e-12)


def test_without_final_features_the_displacement_decides() -> None:
    displacement = second_moment(normal(9, 5))
    basis, _ = abandoned_directions(displacement, torch.zeros(5, 5), 2)
    close(span(basis), span(leading_eigenvectors(displacement, 2)[0]), 1e-12)
    assert abandoned_directions(torch.zeros(5, 5), displacement, 2)[0].shape == (5, 0)


def test_unit_rows_and_their_gradient() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[1.0, 2.0], [5.0, -7.0], [3.0, 4.0]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad((unit(rows) * weight).sum(), rows)
    close(unit(rows), [[0.6, 0.8], [0, 0], [-1, 0]], 1e-15)
    # (w − (w·z) z) / ‖h‖ in each row; the zero row passes on what it is given
    close(gradient, [[(1 - 2.2 * 0.6) / 5, (2 - 2.2 * 0.8) / 5], [5, -7], [0, 4 / 2]], 1e-14)


@several
@given(d=st.integers(1, 9), k=st.integers(1, 9), scale=st.floats(1e-3, 1e3), seed=seeds)
def test_projection_is_the_cosine_of_the_angle_to_the_subspace(d: int, k: int, scale: float, seed: int) -> None:
    basis, rows = orthonormal(d, min(d, k), seed=seed), normal(6, d, seed=seed + 1)
    outputs = projection(rows, basis)
    assert ((outputs >= 0) & (outputs <= 1 + 1e-12)).all()
    close(projection(-scale * rows, basis), outputs, 1e-12)
    close(projection(rows @ basis @ basis.T, basis), np.ones(6))
    angles = torch.stack([principal_angles(unit(row[:, None].T).T, basis)[0] for row in rows])
    close(outputs, angles.cos())


def test_nothing_projects_on_no_subspace() -> None:
    rows = normal(3, 4).requires_grad_()
    outputs = projection(rows, torch.zeros(4, 0, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(outputs.sum(), rows)
    assert outputs.tolist() == [0, 0, 0]
    assert not gradient.any()


@pytest.mark.parametrize(("k", "d"), [(4, 32), (1, 3), (5, 5), (9, 5)])
def test_random_projection_is_what_chance_gives(k: int, d: int) -> None:
    chance = projection(normal(20_000, d), orthonormal(d, min(k, d), seed=1)).square().mean().sqrt()
    assert random_projection(k, d) == pytest.approx(float(chance), rel=0.02)
    assert random_projection(4, 512) == pytest.approx(0.088, abs=5e-4)  # of the paper


def test_random_bases_are_orthonormal_seeded_and_uniform() -> None:
    drawn = list(random_bases(6, 2, 3000, seed=1))
    assert all(torch.equal(a, b) for a, b in zip(drawn, random_bases(6, 2, 3000, seed=1), strict=True))
    close(drawn[7].T @ drawn[7], np.eye(2), 1e-12)
    close(torch.stack([u @ u.T for u in drawn]).mean(dim=0), np.eye(6) / 3, 0.02)  # E[P] = (K/D) I
    assert next(random_bases(3, 9, 1)).shape == (3, 3)


def test_random_angles_between_two_lines_are_known() -> None:
    """In the plane the angle is uniform on [0, π/2]; in space its density is sin θ, so its mean is 1."""
    assert random_angle(1, 1, 2, 20_000) == pytest.approx(math.pi / 4, abs=0.02)
    assert random_angle(1, 1, 3, 20_000) == pytest.approx(1.0, abs=0.02)
    assert random_angle(1, 1, 1) == 0.0


@pytest.mark.parametrize(("k1", "k2", "d"), [(4, 4, 20), (2, 5, 12), (3, 4, 5)])
def test_random_angles_are_the_mean_of_scipys(k1: int, k2: int, d: int) -> None:
    pairs = zip(random_bases(d, k1, 300, seed=2), random_bases(d, k2, 300, seed=3), strict=True)
    reference = np.mean([scipy.linalg.subspace_angles(a.numpy(), b.numpy()) for a, b in pairs])
    assert random_angle(k1, k2, d) == pytest.approx(reference, abs=0.03)
    assert random_angle(k2, k1, d) == pytest.approx(reference, abs=0.03)

    assert math.degrees(random_angle(4, 4, 512)) == pytest.approx(85.8, abs=0.1)  # printed in S-Sec. A.4.5
