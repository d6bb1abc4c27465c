"""Energy in subspaces, abandoned and reused directions, held-out samples; stability between folds and batches."""
# N samples, B rows of a batch, D features, K directions

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.analysis.moments import (
    Kind,
    Moments,
    batch_angles,
    batch_sizes,
    bootstrap,
    energy,
    folds,
    held_out_directions,
    reuse,
    to_json,
)
from antishortcut.subspace import random_angle
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


# --- Stability ---


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
