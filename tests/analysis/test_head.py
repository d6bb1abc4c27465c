"""The head's share of a subspace and the change of logits by shifts in it (S-Prop. 3)."""
# C classes, D features, K directions

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.analysis import head_share, head_shift
from tests.test_subspace import normal, orthonormal, seeds, several


@several
@given(c=st.integers(1, 5), d=st.integers(1, 7), k=st.integers(1, 7), seed=seeds)
def test_norms_are_numpys_with_the_projector_written_out(c: int, d: int, k: int, seed: int) -> None:
    w, u = normal(c, d, seed=seed), orthonormal(d, min(k, d), seed=seed + 1)
    result = head_share(w, u, draws=3)
    read = w.numpy() @ u.numpy() @ u.numpy().T
    assert result.spectral == pytest.approx(np.linalg.norm(read, 2), abs=1e-10)
    assert result.frobenius == pytest.approx(np.linalg.norm(read), abs=1e-10)
    assert result.whole_spectral == pytest.approx(np.linalg.norm(w.numpy(), 2), abs=1e-10)
    assert result.whole_frobenius == pytest.approx(np.linalg.norm(w.numpy()), abs=1e-10)
    assert result.spectral_share == pytest.approx(result.spectral / result.whole_spectral)
    assert 0 <= result.frobenius_share <= 1 + 1e-12


def test_share_by_hand() -> None:
    w = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    result = head_share(w, torch.eye(3)[:, [0, 2]])
    assert (result.spectral, result.frobenius, result.whole_spectral, result.whole_frobenius) == (3, 3, 4, 5)
    assert (result.spectral_share, result.frobenius_share) == (0.75, 0.6)


def test_a_random_subspace_has_a_kth_of_the_heads_energy() -> None:
    result = head_share(normal(20, 64), orthonormal(64, 4, seed=1), draws=400)
    assert result.random_frobenius_share == pytest.approx(math.sqrt(4 / 64), rel=0.02)
    assert result.frobenius_share == pytest.approx(result.random_frobenius_share, rel=0.3)
    again = head_share(normal(20, 64), orthonormal(64, 4, seed=1), draws=400)
    assert again == result  # seeded
    blind = head_share(normal(20, 64) @ torch.diag((torch.arange(64) >= 4).double()), torch.eye(64)[:, :4])
    assert blind.spectral_share == 0 < 0.2 < blind.random_spectral_share


@several
@given(c=st.integers(1, 4), d=st.integers(2, 6), k=st.integers(1, 6), size=st.floats(0.01, 100), seed=seeds)
def test_no_shift_exceeds_the_bound(c: int, d: int, k: int, size: float, seed: int) -> None:
    w, u = normal(c, d, seed=seed), orthonormal(d, min(k, d), seed=seed + 1)
    result = head_shift(w, u, size, draws=50, seed=seed)
    assert result.bound == pytest.approx(size * head_share(w, u, draws=1).spectral)
    assert result.mean <= result.largest * (1 + 1e-12)
    assert result.largest <= result.bound * (1 + 1e-12)  # S-Prop. 3
    assert result == head_shift(w, u, size, draws=50, seed=seed)


def test_shift_by_hand() -> None:
    w = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    line = head_shift(w, torch.eye(3)[:, :1], 2.0)
    assert (line.mean, line.largest, line.bound) == pytest.approx((6, 6, 6))  # only one direction, both ways
    plane = head_shift(w, torch.eye(3)[:, :2], 1.0, draws=4000)
    around = np.linspace(0, 2 * np.pi, 100_000)
    assert plane.mean == pytest.approx(np.hypot(3 * np.cos(around), 4 * np.sin(around)).mean(), abs=0.02)
    assert 3.99 < plane.largest <= plane.bound == pytest.approx(4)
    sphere = head_shift(4 * torch.eye(3), torch.eye(3)[:, :1], 2.0)
    assert sphere.random == pytest.approx(8)  # every direction alike


def test_no_direction_and_no_head() -> None:
    none, zero = torch.zeros(3, 0), torch.zeros(2, 3)
    result = [
        head_share(normal(2, 3), none).values(),
        head_shift(normal(2, 3), none).values(),
        head_share(zero, orthonormal(3, 2)).values(),
        head_shift(zero, orthonormal(3, 2)).values(),
    ]
    json.dumps(result, allow_nan=False)
    assert result[0]["spectral"] is result[1]["bound"] is result[2]["spectral_share"] is None
    assert result[3]["bound"] == 0
    with pytest.raises(ValueError, match="rows of 3"):
        head_share(zero, orthonormal(4, 2))
