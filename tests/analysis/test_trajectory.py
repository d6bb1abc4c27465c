"""Energy in subspaces, abandoned or reused directions, and candidates judged on samples they were not fitted on."""
# N samples, D features, K directions

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.analysis import Moments, energies, energy, judge, judge_streams, reuse
from tests.analysis.test_stream import cut, places, three
from tests.test_subspace import close, normal, orthonormal, seeds, several, slow_directions, slow_moment


@several
@given(count=st.integers(1, 30), k=st.integers(1, 4), at=places, seed=seeds)
def test_energy_equals_its_loop_in_any_chunking(count: int, k: int, at: list[int], seed: int) -> None:
    features, basis = three(count, 4, seed), orthonormal(4, k, seed=seed)
    result = energies(cut(features, at), {"u": basis}, ("early",))["early"]["u"]
    rows, columns = features["early"].tolist(), basis.T.tolist()
    inside = [[math.fsum(h * u for h, u in zip(row, column, strict=True)) ** 2 for column in columns] for row in rows]
    whole = [math.fsum(h * h for h in row) for row in rows]
    shares = [math.fsum(part) / total for part, total in zip(inside, whole, strict=True)]
    assert result.mean == pytest.approx(math.fsum(shares) / count, abs=1e-12)
    close(result.each, [math.fsum(column) / math.fsum(whole) for column in zip(*inside, strict=True)], 1e-12)
    assert result.pooled == pytest.approx(math.fsum(result.each))
    assert (result.count, result.directions, result.random) == (count, k, k / 4)


def test_energy_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]])  # 9/25 and 0; 9 of 29; one row of none
    result = energy(rows, torch.eye(3)[:, :2])
    assert (result.mean, result.pooled) == pytest.approx((0.5, 25 / 29))
    assert result.each == pytest.approx((9 / 29, 16 / 29))
    assert (result.count, result.undefined) == (2, 1)
    assert energy(rows, torch.eye(3)).mean == pytest.approx(1)


def test_reuse_is_the_energy_of_each_direction_without_a_second_pass() -> None:
    features, basis = three(40, 5), orthonormal(5, 3)
    result = reuse(Moments.of(cut(features, [13])), basis)
    early, final = energy(features["early"], basis), energy(features["final"], basis)
    close(result.early, early.each, 1e-12)
    close(result.final, final.each, 1e-12)
    close(result.kept, np.array(final.each) / np.array(early.each), 1e-12)
    assert result.random == 1 / 5


def test_displaced_directions_may_be_reused_where_abandoned_ones_are_not() -> None:
    """Solved by hand: axis 0 turns round and stays in use, axis 2 is used early only."""
    final = torch.tensor([[3.0, 1.0, 0.0], [-3.0, 1.0, 0.0]]).repeat(2, 1)
    early = torch.tensor([[-3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [-3.0, 1.0, -2.0], [3.0, 1.0, -2.0]])
    moments = Moments.of([{"final": final, "early": early}])
    displaced, abandoned = reuse(moments, moments.shortcut(1)), reuse(moments, moments.abandoned(1))
    assert (displaced.early[0], displaced.final[0]) == pytest.approx((9 / 14, 9 / 10))
    assert displaced.abandoned == 0
    assert (abandoned.early[0], abandoned.final[0], abandoned.kept[0]) == pytest.approx((4 / 14, 0, 0), abs=1e-12)
    assert abandoned.abandoned == 1


@pytest.mark.parametrize("select", ["displaced", "abandoned"])
def test_judgement_equals_its_loop(select: str) -> None:
    a, b = three(60, 5), three(45, 5, seed=7)
    moments = {}
    for name, half in (("a", a), ("b", b)):
        delta, final = slow_moment(half["early"] - half["final"]), slow_moment(half["final"])
        _, vectors = scipy.linalg.eigh(delta, final + 0.01 * np.trace(final) / 5 * np.eye(5))
        abandoned = np.linalg.qr(vectors[:, ::-1][:, :2])[0]
        moments[name] = slow_directions(delta, 2)[0] if select == "displaced" else abandoned
    u = moments["a"]
    result = judge(a["early"], a["final"], b["early"], b["final"], k=2, select=select)  # type: ignore[arg-type]
    shares = {}
    for role in ("early", "final"):
        rows = b[role].numpy()
        shares[role] = np.mean(((rows @ u) ** 2).sum(axis=1) / (rows**2).sum(axis=1))
    assert (result.early, result.final) == pytest.approx((shares["early"], shares["final"]), abs=1e-9)
    assert result.lost == pytest.approx(1 - shares["final"] / shares["early"], abs=1e-9)
    delta_b = (b["early"] - b["final"]).numpy()
    assert result.explained == pytest.approx(((delta_b @ u) ** 2).sum() / (delta_b**2).sum(), abs=1e-9)
    reference = np.sort(np.rad2deg(scipy.linalg.subspace_angles(u, moments["b"])))
    close(result.agreement.each, reference, 1e-5)
    assert (result.select, result.directions, result.random) == (select, 2, 2 / 5)
    streamed = judge_streams(cut(a, [7]), cut(b, [3, 30]), k=2, select=select)  # type: ignore[arg-type]
    assert (streamed.early, streamed.lost) == pytest.approx((result.early, result.lost), abs=1e-10)


def test_noise_vouches_for_itself_only_on_its_own_half() -> None:
    """A state that differs by noise alone: on the samples of the fit it seems to explain much, on others K/D."""
    final = normal(60, 40)
    early = final + normal(60, 40, seed=1)
    half = slice(0, 30), slice(30, 60)
    fair = judge(early[half[0]], final[half[0]], early[half[1]], final[half[1]])
    circular = judge(early[half[0]], final[half[0]], early[half[0]], final[half[0]])
    assert circular.explained > 0.3
    assert fair.explained == pytest.approx(0.1, abs=0.05)
    assert fair.agreement.mean == pytest.approx(fair.agreement.random, abs=8)


def test_a_planted_abandoned_shortcut_is_lost() -> None:
    final, planted = normal(400, 8) @ torch.diag(torch.tensor([1.0] * 7 + [0.01], dtype=torch.float64)), torch.eye(8)[7]
    early = final + 2 * normal(400, 1, seed=1) * planted
    result = judge(early[:200], final[:200], early[200:], final[200:], k=1)
    assert result.lost > 0.99
    assert result.explained == pytest.approx(1)
    assert result.agreement.mean == pytest.approx(0, abs=1e-4)
    assert result.reuse.abandoned == 1


def test_what_is_undefined_is_null() -> None:
    rows, zero = normal(6, 3), torch.zeros(6, 3)
    none = energy(rows, torch.zeros(3, 0))
    result = [
        none.values(),
        energy(zero, orthonormal(3, 2)).values(),
        judge(rows, rows, rows, rows).values(),
        judge(rows[:1], rows[1:2], rows[2:3], rows[3:4], k=9).values(),
        judge(zero, zero, rows, zero, select="abandoned").values(),
        reuse(Moments.of([{"final": zero, "early": zero}]), orthonormal(3, 2)).values(),
    ]
    json.dumps(result, allow_nan=False)
    assert result[0]["mean"] is result[0]["random"] is result[1]["mean"] is result[2]["lost"] is None
    assert result[5]["kept"] == [None, None]
    with pytest.raises(ValueError, match="unknown directions"):
        judge(rows, rows, rows, rows, select="both")  # type: ignore[arg-type]
