"""Variance explained by a factor against loops and scipy's analysis of variance; ends and class means by hand."""
# N samples, K directions, G groups

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.analysis import class_means, ends, explained, plain
from tests.test_subspace import close, normal, seeds, several


def draw(count: int, groups: int, seed: int) -> torch.Tensor:
    return torch.randint(groups, (count,), generator=torch.Generator().manual_seed(seed))


@several
@given(count=st.integers(3, 40), groups=st.integers(1, 5), k=st.integers(1, 3), seed=seeds)
def test_explained_equals_its_loop(count: int, groups: int, k: int, seed: int) -> None:
    x, factor = normal(count, k, seed=seed), draw(count, groups, seed + 1)
    x[:, 0] += factor
    result = explained(x, factor)
    between, total = [], []
    for column in x.T.tolist():
        mean = math.fsum(column) / count
        total.append(math.fsum((value - mean) ** 2 for value in column))
        pieces = [[v for v, g in zip(column, factor.tolist(), strict=True) if g == group] for group in range(groups)]
        between.append(math.fsum(len(p) * (math.fsum(p) / len(p) - mean) ** 2 for p in pieces if p))
    close(result.each, [b / t for b, t in zip(between, total, strict=True)], 1e-10)
    assert result.pooled == pytest.approx(sum(between) / sum(total), abs=1e-10)
    g = len(set(factor.tolist()))
    assert (result.count, result.groups) == (count, g)
    if count > g:
        close(result.adjusted, [eta - (g - 1) / (count - g) * (1 - eta) for eta in result.each], 1e-10)  # Kelley's ε²


def test_explained_by_hand() -> None:
    x = torch.tensor([[1.0, 5.0], [1.0, 7.0], [3.0, 5.0], [3.0, 7.0]])
    result = explained(x, torch.tensor([0, 0, 9, 9]))
    assert result.each == (1.0, 0.0)
    assert result.adjusted == pytest.approx((1.0, -0.5))  # 1 − 1 · 3/2
    assert result.pooled == 0.5


def test_chance_is_taken_out() -> None:
    """Without any relation η² is (G − 1)/(N − 1) on average, ε² is 0."""
    result = [explained(normal(50, 8, seed=i), draw(50, 10, 1000 + i)) for i in range(60)]
    assert np.mean([each.each for each in result]) == pytest.approx(9 / 49, abs=0.01)
    assert np.mean([each.adjusted for each in result]) == pytest.approx(0, abs=0.01)
    assert np.mean([each.pooled_adjusted for each in result]) == pytest.approx(0, abs=0.01)


def test_ends_by_hand() -> None:
    x = torch.tensor([[0.0, 1.0], [5.0, -1.0], [-2.0, 1.0], [5.0, 0.0]])
    result = ends(x, 2)
    assert result.positive == ((1, 3), (0, 2))  # ties by number
    assert result.negative == ((2, 0), (1, 3))
    assert ends(x, 9).positive[0] == (1, 3, 0, 2)
    assert ends(x[:, :0], 2).values() == {"positive": [], "negative": []}
    assert ends(x[:0], 2).values() == {"positive": [[], []], "negative": [[], []]}


def test_class_means_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]])
    result = class_means(x, torch.tensor([2, 2, 0]), 3)
    assert plain(result) == [[5.0, 5.0], [None, None], [2.0, 1.0]]
    with pytest.raises(ValueError, match="0 … 1"):
        class_means(x, torch.tensor([2, 2, 0]), 2)


def test_what_is_undefined_is_null() -> None:
    constant, factor = normal(1, 1).expand(301, 1) * 1e3, torch.arange(301) % 2  # its mean is it only up to rounding
    result = [
        explained(constant, factor).values(),
        explained(torch.cat([constant, normal(301, 1)], dim=1), factor).values(),
        explained(normal(3, 2), torch.arange(3)).values(),
        explained(normal(0, 2), torch.arange(0)).values(),
        explained(normal(4, 0), torch.arange(4)).values(),
        explained(normal(1, 2), torch.tensor([5])).values(),
    ]
    json.dumps(result, allow_nan=False)
    assert result[0]["each"] == result[0]["adjusted"] == [None]
    assert result[1]["each"][0] is None
    assert result[1]["pooled"] == pytest.approx(result[1]["each"][1])
    assert result[2]["each"] == pytest.approx([1, 1])
    assert result[2]["adjusted"] == [None, None]
    with pytest.raises(ValueError, match="do not belong"):
        explained(normal(3, 2), torch.arange(4))
    with pytest.raises(ValueError, match="must be"):
        ends(normal(3), 2)
