"""Moments, directions and angles against loops, numpy and scipy, in any chunking; cases solved by hand."""
# N samples, D features, K directions

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.analysis import Moments, Scatter, angles
from tests.analysis.test_stream import cut, places, three
from tests.test_subspace import close, normal, orthonormal, seeds, several, slow_directions, slow_moment, span


def axes(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@several
@given(count=st.integers(1, 40), width=st.integers(1, 6), at=places, seed=seeds)
def test_moments_are_the_loops_in_any_chunking(count: int, width: int, at: list[int], seed: int) -> None:
    features = three(count, width, seed)
    result = Moments.of(cut(features, at))
    rows = {
        "final": features["final"],
        "early": features["early"],
        "delta": features["early"] - features["final"],
    }
    assert (result.count, result.width) == (count, width)
    for role, x in rows.items():
        scatter: Scatter = getattr(result, role)
        close(scatter.mean, [sum(column) / count for column in x.T.tolist()], 1e-12)
        close(scatter.moment(centred=False), slow_moment(x), 1e-12)
        close(scatter.moment(centred=True), slow_moment(x - x.mean(dim=0)), 1e-12)
        assert scatter.power == pytest.approx(sum(v * v for row in x.tolist() for v in row) / count, abs=1e-12)


@several
@given(count=st.integers(2, 40), at=st.integers(1, 39), seed=seeds)
def test_moments_of_parts_add_up(count: int, at: int, seed: int) -> None:
    features = three(count, 4, seed)
    first, second = cut(features, [min(at, count - 1)])
    whole, joint, updated = Moments.of([features]), Moments.of([first]) + Moments.of([second]), Moments.of([first])
    updated.update(second)
    for other in (joint, updated):
        assert other.count == count
        close(other.delta.moment(centred=True), whole.delta.moment(centred=True), 1e-12)
        close(other.final.moment(centred=False), whole.final.moment(centred=False), 1e-12)
        close(other.early.mean, whole.early.mean, 1e-12)


def test_a_large_mean_does_not_eat_a_small_variance() -> None:
    rows = 1e-3 * normal(400, 3)
    scatter = Moments.of([{"final": rows + 1e6, "early": rows + 1e6}]).final
    close(scatter.moment(centred=True), np.cov(rows.numpy().T, bias=True), 0, 1e-5)  # a difference of squares: nothing


@several
@given(count=st.integers(1, 30), width=st.integers(1, 7), k=st.integers(1, 9), at=places, seed=seeds)
def test_directions_are_numpys(count: int, width: int, k: int, at: list[int], seed: int) -> None:
    features = three(count, width, seed)
    result = Moments.of(cut(features, at))
    delta = features["early"] - features["final"]
    for basis, moment in (
        (result.shortcut(k), slow_moment(delta)),
        (result.pca("final", k), slow_moment(features["final"] - features["final"].mean(dim=0))),
        (result.pca("early", k), slow_moment(features["early"] - features["early"].mean(dim=0))),
    ):
        rank = np.linalg.matrix_rank(moment, hermitian=True)
        assert basis.shape == (width, min(k, rank))
        close(basis.T @ basis, np.eye(basis.shape[1]), 1e-10)
        _, values = slow_directions(moment, min(k, rank))
        close(np.diag(basis.numpy().T @ moment @ basis.numpy()), values, 1e-9)  # holds where eigenvalues are close, too
        assert all(column[np.argmax(np.abs(column))] > 0 for column in basis.numpy().T)


@pytest.mark.parametrize("k", [1, 3])
def test_abandoned_directions_are_scipys_generalised_eigenvectors(k: int) -> None:
    features = three(60, 6)
    final, delta = features["final"].numpy(), (features["early"] - features["final"]).numpy()
    s_f, s_d = final.T @ final / 60, delta.T @ delta / 60
    _, vectors = scipy.linalg.eigh(s_d, s_f + 0.01 * np.trace(s_f) / 6 * np.eye(6))
    result = Moments.of(cut(features, [7, 40])).abandoned(k)
    close(span(result), span(scipy.linalg.orth(vectors[:, ::-1][:, :k])), 1e-8)


def test_displaced_and_abandoned_by_hand() -> None:
    """Axis 0 moves most and stays in use; axis 2 is in use early and empty in the end."""
    final = axes((3, 1, 0), (-3, 1, 0), (3, -1, 0), (-3, -1, 0))
    early = axes((-3, 1, 2), (3, 1, -2), (-3, -1, 2), (3, -1, -2))
    moments = Moments.of([{"final": final, "early": early}])  # Δh = (∓6, 0, ±2), one line: both are correlated
    close(moments.shortcut(2)[:, 0].abs(), axes((3, 0, 1)).div(math.sqrt(10))[0], 1e-12)
    assert moments.shortcut(2).shape == (3, 1)
    second = moments + Moments.of([{"final": final, "early": early * axes((1, 1, -1))}])  # now they are not
    close(span(second.shortcut(1)), np.diag([1, 0, 0]), 1e-12)
    close(span(second.abandoned(1)), np.diag([0, 0, 1]), 1e-12)
    close(span(second.pca("final", 1)), np.diag([1, 0, 0]), 1e-12)


def test_spectrum_and_eigengap_by_hand() -> None:
    delta = axes((2, 3, 0), (2, -3, 0), (2, 0, 1), (2, 0, -1))  # mean (2, 0, 0), squares 4, 4.5, 0.5
    moments = Moments.of([{"final": torch.zeros(4, 3), "early": delta}])
    assert moments.spectrum(centred=False) == pytest.approx((4.5, 4.0, 0.5))
    assert moments.spectrum(centred=True) == pytest.approx((4.5, 0.5, 0.0), abs=1e-15)
    assert moments.spectrum(centred=False, count=2) == pytest.approx((4.5, 4.0))
    gap, centred = moments.eigengap(1, centred=False), moments.eigengap(1, centred=True)
    second = moments.eigengap(2, centred=False)
    assert (gap.absolute, gap.relative) == pytest.approx((0.5, 0.5 / 4.5))
    assert (second.absolute, second.relative) == pytest.approx((3.5, 3.5 / 4.5))
    assert (centred.absolute, centred.relative) == pytest.approx((4.0, 4.0 / 4.5))
    assert moments.eigengap(3, centred=False).values() == {"absolute": None, "relative": None}  # there is no λ₄
    moved = moments.moved()
    assert (moved.count, moved.width) == (4, 3)
    assert moved.common == pytest.approx(4 / 9)
    assert math.isnan(moved.size)  # against no features at all


def test_geometry_is_scipys() -> None:
    features = three(200, 12)
    x, y = features["final"], features["early"]
    bases = [slow_directions(slow_moment(r), 4)[0] for r in (y - x, x - x.mean(dim=0), y - y.mean(dim=0))]
    result = Moments.of(cut(features, [33, 120])).geometry(4)
    for ours, (a, b) in (
        (result.shortcut_final, (bases[0], bases[1])),
        (result.shortcut_early, (bases[0], bases[2])),
        (result.final_early, (bases[1], bases[2])),
    ):
        reference = np.sort(np.rad2deg(scipy.linalg.subspace_angles(a, b)))
        close(ours.each, reference, 1e-6)
        assert ours.mean == pytest.approx(reference.mean(), abs=1e-6)
        assert 50 < ours.random < 65


@several
@given(scale=st.floats(1e-3, 1e3), seed=seeds)
def test_geometry_does_not_depend_on_rotation_or_scale(scale: float, seed: int) -> None:
    features, turn = three(60, 5, seed), orthonormal(5, 5, seed=seed)
    ours = Moments.of([features]).geometry(2)
    turned = Moments.of([{role: scale * rows @ turn for role, rows in features.items()}]).geometry(2)
    for pair in ("shortcut_final", "shortcut_early", "final_early"):
        close(getattr(turned, pair).each, getattr(ours, pair).each, 1e-5)


def test_angles_by_hand() -> None:
    e = torch.eye(4)
    half = (e[:, 1:2] + e[:, 2:3]) / math.sqrt(2)
    result = angles(e[:, :2], torch.cat([e[:, :1], half], dim=1))
    close(result.each, [0, 45], 1e-5)
    assert result.mean == pytest.approx(22.5, abs=1e-5)
    assert angles(e[:, :2], e[:, :0]).values() == {"mean": None, "each": [], "random": None}
    with pytest.raises(ValueError, match="not of one space"):
        angles(e, torch.eye(3))


def test_equal_states_have_no_direction_but_principal_components() -> None:
    rows = normal(20, 4, dtype=torch.float32)
    moments = Moments.of([{"final": rows, "early": rows}])
    assert moments.shortcut().shape == moments.abandoned().shape == (4, 0)
    assert moments.pca("early", 9).shape == (4, 4)
    assert moments.spectrum(centred=False) == (0.0,) * 4
    assert moments.eigengap(2, centred=False).values() == {"absolute": None, "relative": None}
    result = moments.geometry(2)
    assert result.shortcut_final.values() == {"mean": None, "each": [], "random": None}
    assert result.final_early.mean == pytest.approx(0, abs=1e-6)
    assert moments.moved().values() == {"count": 20, "width": 4, "size": 0.0, "common": None}
