"""Moments, directions, angles and the ridge map against loops, numpy and scipy; cases solved by hand."""
# N samples, D features, K directions, d student features

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress
from torch import Tensor

from antishortcut.analysis.moments import Moments, angles, blocks, ridge_map, to_json
from tests.test_subspace import close, normal, orthonormal, seeds, several, slow_directions, slow_moment, span

NOTHING: dict[str, object] = {"mean": None, "each": [], "random": None}


def three(count: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Correlated features of a student, the final and the early state."""
    student, final, early = (normal(count, width, seed=seed + i) for i in range(3))
    return student + final, final + 0.5, early + 0.3 * final - 0.2


def axes(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@several
@given(count=st.integers(1, 30), size=st.integers(1, 9), seed=seeds)
def test_blocks_are_the_rows_in_order(count: int, size: int, seed: int) -> None:
    student, final, _ = three(count, 3, seed)
    result = list(blocks(final.float(), student, size=size))
    assert all(len(a) == len(b) <= size and a.dtype == torch.float64 for a, b in result)
    assert torch.equal(torch.cat([a for a, _ in result]), final.float().double())
    with pytest.raises(ValueError, match="same samples"):
        next(blocks(final, student[1:]))


def test_undefined_numbers_become_null() -> None:
    result = to_json({"a": math.nan, "b": (1.0, math.inf), "c": {"d": [0.5]}})
    assert result == {"a": None, "b": [1.0, None], "c": {"d": [0.5]}}


@several
@given(count=st.integers(1, 40), width=st.integers(1, 6), size=st.integers(1, 20), seed=seeds)
def test_moments_equal_loops_for_any_block_size(count: int, width: int, size: int, seed: int) -> None:
    _, final, early = three(count, width, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "__kwdefaults__", {"index": None, "size": size})
        result = Moments(final, early)
    assert (result.count, result.width) == (count, width)
    for covariance, x in ((result.final, final), (result.early, early), (result.delta, early - final)):
        close(covariance.mean, [sum(column) / count for column in x.T.tolist()], 1e-12)
        close(covariance.moment(centred=False), slow_moment(x), 1e-12)
        close(covariance.moment(centred=True), slow_moment(x - x.mean(dim=0)), 1e-12)
        assert covariance.power == pytest.approx(sum(v * v for row in x.tolist() for v in row) / count, abs=1e-12)


def test_a_large_mean_does_not_hide_a_small_variance() -> None:
    rows = 1e-3 * normal(400, 3)
    moment = Moments(rows + 1e6, rows + 1e6).final.moment(centred=True)
    close(moment, np.cov(rows.numpy().T, bias=True), 0, 1e-5)  # a difference of squares would leave nothing


@several
@given(count=st.integers(1, 30), width=st.integers(1, 7), k=st.integers(1, 9), seed=seeds)
def test_directions_equal_numpy(count: int, width: int, k: int, seed: int) -> None:
    _, final, early = three(count, width, seed)
    result = Moments(final, early)
    for basis, moment in (
        (result.shortcut(k), slow_moment(early - final)),
        (result.pca("final", k), slow_moment(final - final.mean(dim=0))),
        (result.pca("early", k), slow_moment(early - early.mean(dim=0))),
    ):
        rank = np.linalg.matrix_rank(moment, hermitian=True)
        assert basis.shape == (width, min(k, rank))
        close(basis.T @ basis, np.eye(basis.shape[1]), 1e-10)
        _, values = slow_directions(moment, min(k, rank))
        close(np.diag(basis.numpy().T @ moment @ basis.numpy()), values, 1e-9)  # also where eigenvalues are close
        assert all(column[np.argmax(np.abs(column))] > 0 for column in basis.numpy().T)


def test_displaced_and_abandoned_by_hand() -> None:
    """Axis 0 moves most and stays in use; axis 2 is used early and empty in the end."""
    final = axes((3, 1, 0), (-3, 1, 0), (3, -1, 0), (-3, -1, 0))
    early = axes((-3, 1, 2), (3, 1, -2), (-3, -1, 2), (3, -1, -2))
    moments = Moments(final, early)  # Δh = (∓6, 0, ±2), one line: both are correlated
    close(moments.shortcut(2)[:, 0].abs(), axes((3, 0, 1)).div(math.sqrt(10))[0], 1e-12)
    assert moments.shortcut(2).shape == (3, 1)
    second = Moments(final.repeat(2, 1), torch.cat([early, early * axes((1, 1, -1))]))  # now they are not
    close(span(second.shortcut(1)), np.diag([1, 0, 0]), 1e-12)
    close(span(second.abandoned(1)), np.diag([0, 0, 1]), 1e-12)
    close(span(second.pca("final", 1)), np.diag([1, 0, 0]), 1e-12)


def test_spectrum_and_eigengap_by_hand() -> None:
    delta = axes((2, 3, 0), (2, -3, 0), (2, 0, 1), (2, 0, -1))  # mean (2, 0, 0), squares 4, 4.5, 0.5
    moments = Moments(torch.zeros(4, 3), delta)
    assert moments.spectrum(centred=False) == pytest.approx((4.5, 4.0, 0.5))
    assert moments.spectrum(centred=True) == pytest.approx((4.5, 0.5, 0.0), abs=1e-15)
    assert moments.spectrum(centred=False, count=2) == pytest.approx((4.5, 4.0))
    assert moments.eigengap(1, centred=False) == pytest.approx({"absolute": 0.5, "relative": 0.5 / 4.5})
    assert moments.eigengap(2, centred=False) == pytest.approx({"absolute": 3.5, "relative": 3.5 / 4.5})
    assert moments.eigengap(1, centred=True) == pytest.approx({"absolute": 4.0, "relative": 4.0 / 4.5})
    assert to_json(moments.eigengap(3, centred=False)) == {"absolute": None, "relative": None}  # there is no λ₄
    moved = moments.moved()
    assert moved["common"] == pytest.approx(4 / 9)
    assert math.isnan(moved["size"])  # relative to no features at all


def test_geometry_equals_scipy() -> None:
    _, x, y = three(200, 12)
    bases = [slow_directions(slow_moment(r), 4)[0] for r in (y - x, x - x.mean(dim=0), y - y.mean(dim=0))]
    result = Moments(x, y).geometry(4)
    for name, (a, b) in {"shortcut_final": (0, 1), "shortcut_early": (0, 2), "final_early": (1, 2)}.items():
        expected = np.sort(np.rad2deg(scipy.linalg.subspace_angles(bases[a], bases[b])))
        close(result[name]["each"], expected, 1e-6)
        assert result[name]["mean"] == pytest.approx(expected.mean(), abs=1e-6)
        assert 50 < result[name]["random"] < 65


def test_angles_by_hand() -> None:
    e = torch.eye(4)
    half = (e[:, 1:2] + e[:, 2:3]) / math.sqrt(2)
    result = angles(e[:, :2], torch.cat([e[:, :1], half], dim=1))
    close(result["each"], [0, 45], 1e-5)
    assert result["mean"] == pytest.approx(22.5, abs=1e-5)
    assert to_json(angles(e[:, :2], e[:, :0])) == NOTHING


def test_equal_states_have_principal_components_but_no_shortcut() -> None:
    rows = normal(20, 4, dtype=torch.float32)
    moments = Moments(rows, rows)
    assert moments.shortcut().shape == moments.abandoned().shape == (4, 0)
    assert moments.pca("early", 9).shape == (4, 4)
    assert moments.spectrum(centred=False) == (0.0,) * 4
    result = moments.geometry(2)
    assert to_json(result["shortcut_final"]) == NOTHING
    assert result["final_early"]["mean"] == pytest.approx(0, abs=1e-6)
    assert to_json(moments.moved()) == {"count": 20, "width": 4, "size": 0.0, "common": None}


@several
@given(count=st.integers(1, 40), d=st.integers(1, 5), strength=st.floats(1e-3, 1), seed=seeds)
def test_ridge_map_equals_numpy(count: int, d: int, strength: float, seed: int) -> None:
    student, final = normal(count, d, seed=seed) + 3, normal(count, 4, seed=seed + 1) - 2
    x, y = student.numpy(), final.numpy()
    a, b = x - x.mean(axis=0), y - y.mean(axis=0)
    load = np.sqrt(strength * (a**2).sum() / d) * np.eye(d)  # ridge as further rows of least squares
    expected = np.linalg.lstsq(np.vstack([a, load]), np.vstack([b, np.zeros((d, 4))]), rcond=None)[0]
    matrix, offset = ridge_map(student, final, strength)
    close(matrix, expected, 1e-8)
    close(offset, y.mean(axis=0) - x.mean(axis=0) @ expected, 1e-8)


def test_ridge_map_finds_a_line_and_a_rotation() -> None:
    x = torch.linspace(-1, 2, 40, dtype=torch.float64)[:, None]
    y = 3 * x + 2 + torch.sin(17 * x)
    matrix, offset = ridge_map(x, y, strength=0)
    line = linregress(x[:, 0].numpy(), y[:, 0].numpy())
    assert [float(matrix), float(offset)] == pytest.approx([line.slope, line.intercept])
    source, turn = normal(2000, 6), orthonormal(6, 6, seed=1)  # more than one block
    matrix, offset = ridge_map(source, source @ turn + 1, strength=1e-9)
    close(matrix, turn, 1e-6)
    close(offset, np.ones(6), 1e-6)


def test_ridge_map_of_constant_features_is_finite() -> None:
    matrix, offset = ridge_map(torch.ones(10, 4), torch.randn(10, 3))
    assert torch.isfinite(matrix).all()
    assert torch.isfinite(offset).all()
    assert matrix.dtype == offset.dtype == torch.float32


def test_memory_does_not_grow_with_the_number_of_rows() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "diagnose.py"
    command = [sys.executable, str(path), "60000", "256"]  # 123 MB of features; three moments are 1.5 MB
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout)
    assert result["shortcut_mb"] - result["features_mb"] < 60, result
