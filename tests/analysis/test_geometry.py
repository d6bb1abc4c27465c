"""Energy in subspaces, abandoned and reused directions, and directions measured on held-out samples."""
# N samples, D features, K directions

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.analysis.geometry import Kind, energy, held_out_directions, reuse
from antishortcut.analysis.moments import Moments, to_json
from tests.analysis.test_moments import three
from tests.test_subspace import close, normal, orthonormal, seeds, several, slow_directions, slow_moment


@several
@given(count=st.integers(1, 30), k=st.integers(1, 4), seed=seeds)
def test_energy_equals_a_loop(count: int, k: int, seed: int) -> None:
    rows, basis = three(count, 4, seed)[2], orthonormal(4, k, seed=seed)
    shares = []
    for row in rows.tolist():
        inside = [math.fsum(h * u for h, u in zip(row, column, strict=True)) ** 2 for column in basis.T.tolist()]
        shares.append(math.fsum(inside) / math.fsum(h * h for h in row))
    assert energy(rows, basis) == pytest.approx(math.fsum(shares) / count, abs=1e-12)


def test_energy_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]])  # 1, 0, undefined
    assert energy(rows, torch.eye(3)[:, :2]) == pytest.approx(0.5)
    assert energy(rows, torch.eye(3)) == pytest.approx(1)
    assert math.isnan(energy(rows, torch.zeros(3, 0)))
    assert math.isnan(energy(torch.zeros(6, 3), orthonormal(3, 2)))


def test_displaced_directions_may_be_reused_where_abandoned_ones_are_not() -> None:
    """Solved by hand: axis 0 changes sign and stays in use, axis 2 is used early only."""
    final = torch.tensor([[3.0, 1.0, 0.0], [-3.0, 1.0, 0.0]]).repeat(2, 1)
    early = torch.tensor([[-3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [-3.0, 1.0, -2.0], [3.0, 1.0, -2.0]])
    moments = Moments(final, early)
    displaced, abandoned = reuse(moments, moments.shortcut(1)), reuse(moments, moments.abandoned(1))
    assert (displaced["early"][0], displaced["final"][0]) == pytest.approx((9 / 14, 9 / 10))
    assert displaced["kept"][0] == pytest.approx(9 / 10 / (9 / 14))
    assert (displaced["abandoned"], displaced["random"]) == (0, 1 / 3)
    shares = [abandoned[key][0] for key in ("early", "final", "kept")]
    assert shares == pytest.approx([4 / 14, 0, 0], abs=1e-12)
    assert abandoned["abandoned"] == 1


@pytest.mark.parametrize("kind", ["displaced", "abandoned"])
def test_held_out_directions_equal_a_loop(kind: Kind) -> None:
    _, final, early = three(105, 5)
    fit, test = torch.arange(60), torch.arange(60, 105)
    bases = []
    for half in (fit, test):
        delta, moment = slow_moment((early - final)[half]), slow_moment(final[half])
        _, vectors = scipy.linalg.eigh(delta, moment + 0.01 * np.trace(moment) / 5 * np.eye(5))
        abandoned = np.linalg.qr(vectors[:, ::-1][:, :2])[0]
        bases.append(slow_directions(delta, 2)[0] if kind == "displaced" else abandoned)
    result = held_out_directions(early, final, fit, test, k=2, kind=kind)
    shares = {}
    for state, features in (("early", early), ("final", final)):
        rows = features[test].numpy()
        shares[state] = np.mean(((rows @ bases[0]) ** 2).sum(axis=1) / (rows**2).sum(axis=1))
        assert result[state] == pytest.approx(shares[state], abs=1e-9)
    assert result["lost"] == pytest.approx(1 - shares["final"] / shares["early"], abs=1e-9)
    delta = (early - final)[test].numpy()
    assert result["explained"] == pytest.approx(((delta @ bases[0]) ** 2).sum() / (delta**2).sum(), abs=1e-9)
    close(result["agreement"]["each"], np.sort(np.rad2deg(scipy.linalg.subspace_angles(*bases))), 1e-5)
    assert (result["select"], result["directions"], result["random"]) == (kind, 2, 2 / 5)


def test_noise_is_explained_only_on_its_own_half() -> None:
    """A state that differs by noise alone: on the samples of the fit it seems to explain much, on others K/D."""
    final = normal(60, 40)
    early = final + normal(60, 40, seed=1)
    a, b = torch.arange(30), torch.arange(30, 60)
    fair, circular = held_out_directions(early, final, a, b), held_out_directions(early, final, a, a)
    assert circular["explained"] > 0.3
    assert fair["explained"] == pytest.approx(0.1, abs=0.05)
    assert fair["agreement"]["mean"] == pytest.approx(fair["agreement"]["random"], abs=8)


def test_undefined_numbers_are_null() -> None:
    rows, zero, first = normal(6, 3), torch.zeros(6, 3), torch.arange(1)
    same = to_json(held_out_directions(rows, rows, torch.arange(3), torch.arange(3, 6)))
    assert same["lost"] is same["random"] is same["explained"] is None
    assert held_out_directions(rows, zero, first, first + 1, k=9)["directions"] == 1
    assert to_json(held_out_directions(zero, zero, first, first, kind="abandoned"))["lost"] is None
    assert to_json(reuse(Moments(zero, zero), orthonormal(3, 2)))["kept"] == [None, None]
