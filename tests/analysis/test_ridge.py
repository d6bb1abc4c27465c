"""The ridge map: least squares of numpy, a line of scipy, and the same from a stream in any chunking."""
# N samples, d student features, D teacher features

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress

from antishortcut.analysis import Cross, Mapped, ridge_map, standing
from tests.analysis.test_stream import cut, places, three
from tests.test_subspace import close, normal, seeds, several


@several
@given(count=st.integers(1, 40), d=st.integers(1, 5), strength=st.floats(1e-3, 1), at=places, seed=seeds)
def test_the_map_is_numpys_in_any_chunking(count: int, d: int, strength: float, at: list[int], seed: int) -> None:
    features = {"student": normal(count, d, seed=seed) + 3, "final": normal(count, 4, seed=seed + 1) - 2}
    x, y = (rows.numpy() for rows in features.values())
    a, b = x - x.mean(axis=0), y - y.mean(axis=0)
    load = np.sqrt(strength * (a**2).sum() / d) * np.eye(d)  # ridge as further rows of least squares
    matrix = np.linalg.lstsq(np.vstack([a, load]), np.vstack([b, np.zeros((d, 4))]), rcond=None)[0]
    offset = y.mean(axis=0) - x.mean(axis=0) @ matrix
    for result in (
        Cross.of(cut(features, at)).ridge(strength),
        ridge_map(features["student"], features["final"], strength),
    ):
        close(result[0], matrix, 1e-8)
        close(result[1], offset, 1e-8)


def test_ridge_map_finds_a_line_and_a_rotation() -> None:
    x = torch.linspace(-1, 2, 40, dtype=torch.float64)[:, None]
    noise = torch.sin(17 * x)
    matrix, offset = ridge_map(x, 3 * x + 2 + noise, strength=0)
    line = linregress(x[:, 0].numpy(), (3 * x + 2 + noise)[:, 0].numpy())
    assert [float(matrix), float(offset)] == pytest.approx([line.slope, line.intercept])
    generator = torch.Generator().manual_seed(1)
    source = torch.randn(200, 6, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    matrix, offset = ridge_map(source, source @ turn + 1, strength=1e-9)
    assert torch.allclose(matrix, turn, atol=1e-6)
    assert torch.allclose(offset, torch.ones(6, dtype=torch.float64), atol=1e-6)


def test_ridge_map_of_constant_features_is_finite() -> None:
    matrix, offset = ridge_map(torch.ones(10, 4), torch.randn(10, 3))
    assert torch.isfinite(matrix).all()
    assert torch.isfinite(offset).all()
    assert matrix.dtype == offset.dtype == torch.float32


def test_a_mapped_stream_is_the_mapped_rows_and_can_be_read_again() -> None:
    features = three(30, 5) | {"student": normal(30, 3)}
    stream = cut(features, [4, 19])
    matrix, offset = Cross.of(stream).ridge()
    mapped = Mapped(stream, matrix, offset)
    whole = [features | {"student": features["student"] @ matrix + offset}]
    for _ in range(2):
        assert standing(mapped).final.mean == pytest.approx(standing(whole).final.mean, abs=1e-12)
