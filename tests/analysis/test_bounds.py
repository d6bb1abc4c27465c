"""InfoNCE bounds against loops from the paper's equations, the training loss, and cases solved by hand."""
# N negatives, M rows of the pool, D features

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.analysis import infonce, pick
from antishortcut.methods.asd import temporal_contrast
from antishortcut.subspace import unit
from tests.analysis.test_stream import cut, places, three
from tests.analysis.test_student import loop_cosine
from tests.test_subspace import normal, seeds, several


@several
@given(count=st.integers(1, 12), m=st.integers(1, 9), at=places, tau=st.sampled_from([0.07, 1.0]), seed=seeds)
def test_bounds_equal_their_loops_in_any_chunking(count: int, m: int, at: list[int], tau: float, seed: int) -> None:
    features, pool = three(count, 4, seed), normal(m, 4, seed=seed + 9)
    result = infonce(cut(features, at), pool, temperature=tau)
    losses: dict[str, list[float]] = {"binary": [], "full": [], "temporal": []}
    for student, final, early in zip(*(rows.tolist() for rows in features.values()), strict=True):
        positive, negative = (math.exp(loop_cosine(student, other) / tau) for other in (final, early))
        rest = [math.exp(loop_cosine(student, other) / tau) for other in pool.tolist()]
        losses["binary"].append(-math.log(positive / (positive + negative)))
        losses["full"].append(-math.log(positive / (positive + math.fsum(rest))))  # S-Eq. 1
        losses["temporal"].append(-math.log(positive / (positive + negative + math.fsum(rest))))  # Eq. 5–6
    assert result.binary == pytest.approx(math.log(2) - math.fsum(losses["binary"]) / count, abs=1e-10)
    assert result.full == pytest.approx(math.log(m + 1) - math.fsum(losses["full"]) / count, abs=1e-10)
    assert result.temporal == pytest.approx(math.log(m + 1) - math.fsum(losses["temporal"]) / count, abs=1e-10)
    assert result.temporal <= result.full <= result.ceiling == math.log(m + 1)
    assert result.binary <= math.log(2)


@pytest.mark.parametrize("temporal", [False, True])
def test_the_full_bound_is_that_of_the_training_loss(temporal: bool) -> None:
    """A pool that is the batch itself, each row's own left out, is Eq. 6 with in-batch negatives."""
    features = three(20, 6)
    result = infonce(cut(features, [4, 11]), features["final"], torch.arange(20))
    early = features["early"] if temporal else None
    loss = temporal_contrast(features["student"], features["final"], early)
    assert (result.temporal if temporal else result.full) == pytest.approx(math.log(20) - loss.item(), abs=1e-10)
    assert result.negatives == 19
    queue = normal(7, 6, seed=5)
    both = infonce([features], torch.cat([features["final"], queue]), torch.tensor([*range(20), *[-1] * 7]))
    loss = temporal_contrast(features["student"], features["final"], early, unit(queue))
    assert (both.temporal if temporal else both.full) == pytest.approx(math.log(27) - loss.item(), abs=1e-10)


def test_a_pool_of_some_rows_gives_every_row_as_many_negatives() -> None:
    features, index = three(9, 4), torch.tensor([7, 2, 4, 0])
    result = infonce(cut(features, [3]), pick(cut(features, [5]), "final", index), index)
    losses = []
    for row in range(9):
        pool = [i for i in index.tolist() if i != row][:3]  # the last one is left out where none is its own
        h_s, finals = features["student"][row].tolist(), features["final"].tolist()
        positive, *rest = (math.exp(loop_cosine(h_s, finals[i]) / 0.07) for i in (row, *pool))
        losses.append(-math.log(positive / (positive + math.fsum(rest))))
    assert result.negatives == 3
    assert result.full == pytest.approx(math.log(4) - math.fsum(losses) / 9, abs=1e-10)


def test_bounds_by_hand() -> None:
    """cos = 1 to the final and 0 to the early state and to all others: L = log(1 + N e^{−1/τ})."""
    e = torch.eye(5)
    stream = [{"student": 2 * e[:1], "final": 3 * e[:1], "early": e[1:2]}]
    result = infonce(stream, e[2:], temperature=0.5)
    assert result.binary == pytest.approx(math.log(2) - math.log(1 + math.exp(-2)))
    assert result.full == pytest.approx(math.log(4) - math.log(1 + 3 * math.exp(-2)))
    assert result.temporal == pytest.approx(math.log(4) - math.log(1 + 4 * math.exp(-2)))


def test_without_negatives_only_the_binary_bound_is_defined() -> None:
    for pool, index in ((None, None), (torch.zeros(0, 2), None), (normal(1, 2), torch.tensor([0]))):
        result = infonce([three(3, 2)], pool, index).values()
        assert result["full"] is result["temporal"] is result["ceiling"] is None
        assert result["negatives"] == 0
        json.dumps(result, allow_nan=False)


def test_mistakes_are_told() -> None:
    features = three(3, 2)
    with pytest.raises(ValueError, match="positive"):
        infonce([features], temperature=0)
    with pytest.raises(ValueError, match="must number"):
        infonce([features], normal(2, 2), torch.tensor([0]))
    with pytest.raises(ValueError, match="twice"):
        infonce([features], normal(2, 2), torch.tensor([1, 1]))
