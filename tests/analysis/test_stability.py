"""Stability of the eigenspace between folds and over batch sizes, against loops with numpy and scipy."""
# N samples, B rows of a batch, D features, K directions

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.analysis.geometry import batch_angles, batch_sizes, bootstrap, folds
from antishortcut.analysis.moments import Moments, to_json
from antishortcut.subspace import random_angle
from tests.analysis.test_moments import three
from tests.test_subspace import normal, orthonormal, seeds, several, slow_directions, slow_moment


def slow_angle(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.rad2deg(scipy.linalg.subspace_angles(a, b)).mean())


@several
@given(count=st.integers(1, 60), number=st.integers(1, 12), seed=seeds)
def test_folds_are_disjoint_equal_and_seeded(count: int, number: int, seed: int) -> None:
    number = min(number, count)
    result = folds(count, number, seed)
    assert {len(fold) for fold in result} == {count // number}
    joined = torch.cat(result).tolist()
    assert len(set(joined)) == len(joined) == count // number * number
    assert joined == torch.cat(folds(count, number, seed)).tolist()


@several
@given(number=st.integers(2, 5), width=st.sampled_from([6, 40]), seed=seeds)
def test_bootstrap_equals_a_loop(number: int, width: int, seed: int) -> None:
    """Folds are larger than D = 6 and smaller than D = 40."""
    _, final, early = three(53, width, seed)
    index = folds(53, number, seed)
    bases = [slow_directions(slow_moment((early - final)[fold]), 2)[0] for fold in index]
    whole = slow_directions(slow_moment((early - final)[torch.cat(index)]), 2)[0]
    pairs = [slow_angle(a, b) for a, b in itertools.combinations(bases, 2)]
    to_whole = [slow_angle(a, whole) for a in bases]
    result = bootstrap(final, early, index, k=2)
    assert (result["parts"], result["rows"], result["pairs"]) == (number, 53 // number, len(pairs))
    assert (result["mean"], result["to_whole"]) == pytest.approx((np.mean(pairs), np.mean(to_whole)), abs=1e-5)
    assert result["to_whole_std"] == pytest.approx(np.std(to_whole, ddof=1), abs=1e-5)
    if len(pairs) > 1:
        assert result["std"] == pytest.approx(np.std(pairs, ddof=1), abs=1e-5)
    assert result["random"] == pytest.approx(math.degrees(random_angle(2, 2, width)))


def test_a_planted_direction_is_stable_and_noise_is_not() -> None:
    final, planted = normal(600, 10), orthonormal(10, 2, seed=1)
    early = final + 5 * normal(600, 2, seed=2) @ planted.T + 0.05 * normal(600, 10, seed=3)
    result = bootstrap(final, early, folds(600), k=2)
    assert (result["parts"], result["pairs"], result["rows"]) == (10, 45, 60)  # as in the paper
    assert result["mean"] < 1 < 60 < result["random"]
    assert bootstrap(final, final + normal(600, 10, seed=4), folds(600), k=2)["mean"] > 30


def test_batch_sizes_double_up_to_half_of_the_rows() -> None:
    assert batch_sizes(5000) == (32, 64, 128, 256, 512, 1024, 2048)
    assert batch_sizes(128) == (32, 64)
    assert batch_sizes(63) == ()


@several
@given(seed=seeds)
def test_batch_angles_equal_a_loop(seed: int) -> None:
    """Sizes below and above D = 6, so that both Gram matrices are used."""
    _, final, early = three(50, 6, seed)
    whole = Moments(final, early).shortcut(2)
    delta = (early - final)[torch.randperm(50, generator=torch.Generator().manual_seed(0))]
    rows = batch_angles(final, early, whole, (3, 5, 6, 11, 25), batches=4)
    for row, (size, count) in zip(rows, ((3, 4), (5, 4), (6, 4), (11, 4), (25, 2)), strict=True):
        batches = [delta[i * size : (i + 1) * size] for i in range(count)]
        bases = [slow_directions(slow_moment(batch), 2)[0] for batch in batches]
        to_whole = np.mean([slow_angle(basis, whole.numpy()) for basis in bases])
        between = np.mean([slow_angle(a, b) for a, b in itertools.combinations(bases, 2)])
        assert (row["to_whole"], row["between"]) == pytest.approx((to_whole, between), abs=1e-5)
        assert row["reference"] == pytest.approx(rows[0]["to_whole"] * math.sqrt(3 / size))


def test_small_batches_need_no_large_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    eigh = torch.linalg.eigh

    def recorded(matrix: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(matrix))
        values, vectors = eigh(matrix)
        return values, vectors

    monkeypatch.setattr(torch.linalg, "eigh", recorded)
    batch_angles(*three(64, 40)[1:], orthonormal(40, 2), (8, 16), batches=2)
    assert sorted(sizes) == [8, 8, 16, 16]


@pytest.mark.parametrize("k", [2, 9])
def test_equal_states_have_no_angles(k: int) -> None:
    rows = normal(30, 3)
    result = to_json(bootstrap(rows, rows, folds(30), k))
    assert result["mean"] is result["random"] is None
    none = to_json(batch_angles(rows, rows, Moments(rows, rows).shortcut(k), (4, 8, 100)))
    assert [(row["to_whole"], row["between"]) for row in none] == [(None, None)] * 3
    _, final, early = three(30, 3)
    few = to_json(batch_angles(final, early, Moments(final, early).shortcut(k), (1, 20, 100)))
    assert few[1]["between"] is few[2]["to_whole"] is None  # one batch, none
