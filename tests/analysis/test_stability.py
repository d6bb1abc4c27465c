"""Stability of the eigenspace between parts and over batch sizes, against loops with numpy and scipy."""
# N samples, B rows of a batch, D features, K directions

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.analysis import Chunks, Moments, batch_sizes, bootstrap, growth, parts
from antishortcut.subspace import random_angle
from tests.analysis.test_stream import cut, places, three
from tests.test_subspace import close, normal, orthonormal, seeds, several, slow_directions, slow_moment


def slow_angle(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.rad2deg(scipy.linalg.subspace_angles(a, b)).mean())


@several
@given(at=places, number=st.integers(2, 5), seed=seeds)
def test_bootstrap_equals_its_loop_in_any_chunking(at: list[int], number: int, seed: int) -> None:
    features, part = three(53, 6, seed), parts(53, number, seed)
    delta = features["early"] - features["final"]
    bases = [slow_directions(slow_moment(delta[part == each]), 2)[0] for each in range(number)]
    whole = slow_directions(slow_moment(delta[part >= 0]), 2)[0]
    pairs = [slow_angle(a, b) for a, b in itertools.combinations(bases, 2)]
    apart = [slow_angle(a, whole) for a in bases]
    result = bootstrap(cut(features, at), part, k=2)
    assert (result.parts, result.rows, result.pairs) == (number, 53 // number, number * (number - 1) // 2)
    assert (result.mean, result.to_whole) == pytest.approx((np.mean(pairs), np.mean(apart)), abs=1e-6)
    assert result.to_whole_std == pytest.approx(np.std(apart, ddof=1), abs=1e-6)
    if len(pairs) > 1:
        assert result.std == pytest.approx(np.std(pairs, ddof=1), abs=1e-6)
    assert result.random == pytest.approx(math.degrees(random_angle(2, 2, 6)))


def test_the_papers_split_has_45_pairs_and_a_planted_direction_is_stable() -> None:
    final, planted = normal(600, 10), orthonormal(10, 2, seed=1)
    early = final + 5 * normal(600, 2, seed=2) @ planted.T + 0.05 * normal(600, 10, seed=3)
    result = bootstrap(Chunks({"final": final, "early": early}, size=100), parts(600), k=2)
    assert (result.parts, result.pairs, result.rows) == (10, 45, 60)
    assert result.mean < 1 < 60 < result.random
    noise = bootstrap([{"final": final, "early": final + normal(600, 10, seed=4)}], parts(600), k=2)
    assert noise.mean > 30


@pytest.mark.parametrize("length", [0, 19, 21, 2000])
def test_a_part_for_every_row(length: int) -> None:
    with pytest.raises(ValueError, match="assigned to"):
        bootstrap([three(20, 3)], torch.zeros(length, dtype=torch.int64))
    with pytest.raises(ValueError, match="no part"):
        bootstrap([three(20, 3)], torch.full((20,), -1))


def test_wide_features_take_several_passes_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Chunks(three(100, 6))
    whole = bootstrap(features, parts(100), k=2)
    monkeypatch.setattr("antishortcut.analysis.stability.ROOM", 3 * 8 * 6**2)  # three parts at a time
    assert bootstrap(features, parts(100), k=2) == whole


def test_sizes_double_up_to_half_of_the_rows() -> None:
    assert batch_sizes(5000) == (32, 64, 128, 256, 512, 1024, 2048)
    assert batch_sizes(128) == (32, 64)
    assert batch_sizes(63) == ()


def slow_growth(delta: Tensor, whole: np.ndarray, size: int, most: int) -> tuple[int, float, float]:
    count = min(most, len(delta) // size)
    bases = [slow_directions(slow_moment(delta[i * size : (i + 1) * size]), whole.shape[1])[0] for i in range(count)]
    between = [slow_angle(a, b) for a, b in itertools.combinations(bases, 2)]
    return count, float(np.mean([slow_angle(a, whole) for a in bases])), float(np.mean(between))


@several
@given(at=places, seed=seeds)
def test_growth_equals_its_loop_in_any_chunking(at: list[int], seed: int) -> None:
    """Sizes below and above D = 6, so that both the small and the large side are decomposed."""
    features, sizes = three(50, 6, seed), (3, 5, 6, 11, 25)
    delta = features["early"] - features["final"]
    whole = Moments.of([features]).shortcut(2)
    result = growth(cut(features, at), whole, sizes, batches=4)
    slow = [slow_growth(delta, whole.numpy(), size, 4) for size in sizes]
    assert result.batches == tuple(count for count, _, _ in slow) == (4, 4, 4, 4, 2)
    close(result.to_whole, [to for _, to, _ in slow], 1e-5)
    close(result.between, [between for _, _, between in slow], 1e-5)
    close(result.to_whole_reference, [result.to_whole[0] * math.sqrt(3 / size) for size in sizes], 1e-12)
    close(result.between_reference, [result.between[0] * math.sqrt(3 / size) for size in sizes], 1e-12)


def test_no_large_matrix_for_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[int] = []
    eigh = torch.linalg.eigh

    def recorded(matrix: Tensor) -> tuple[Tensor, Tensor]:
        requested.append(len(matrix))
        values, vectors = eigh(matrix)
        return values, vectors

    monkeypatch.setattr(torch.linalg, "eigh", recorded)
    growth([three(64, 40)], orthonormal(40, 2), (8, 16), batches=2)
    assert sorted(requested) == [8, 8, 16, 16]


@pytest.mark.parametrize("k", [2, 9])
def test_states_that_do_not_differ_or_hardly(k: int) -> None:
    rows = normal(30, 3)
    same = [{"final": rows, "early": rows}]
    result = [
        bootstrap(same, parts(30), k).values(),
        growth(same, Moments.of(same).shortcut(k), (4, 8, 100)).values(),
        bootstrap([three(30, 3)], parts(30), k).values(),
        growth([three(30, 3)], Moments.of([three(30, 3)]).shortcut(k), (1, 4, 20, 100)).values(),
    ]
    json.dumps(result, allow_nan=False)
    assert result[0]["mean"] is result[0]["random"] is None
    assert result[1]["to_whole"] == result[1]["between"] == [None] * 3
    assert result[3]["batches"] == [10, 7, 1, 0]
    assert result[3]["to_whole"][3] is result[3]["between"][2] is None
