"""Variance explained by a factor, samples at the ends of directions, and what a classifier reads (S-Prop. 3)."""
# N samples, K directions, G groups, C classes, D features

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.analysis.directions import class_means, extremes, head_share, head_shift, variance_explained
from antishortcut.analysis.moments import to_json
from tests.test_subspace import close, normal, orthonormal, seeds, several


def draw(count: int, groups: int, seed: int) -> torch.Tensor:
    return torch.randint(groups, (count,), generator=torch.Generator().manual_seed(seed))


@several
@given(count=st.integers(8, 40), groups=st.integers(1, 5), k=st.integers(1, 3), seed=seeds)
def test_variance_explained_equals_a_loop(count: int, groups: int, k: int, seed: int) -> None:
    x, factor = normal(count, k, seed=seed), draw(count, groups, seed + 1)
    x[:, 0] += factor
    between, total = [], []
    for column in x.T.tolist():
        mean = math.fsum(column) / count
        total.append(math.fsum((value - mean) ** 2 for value in column))
        members = [[v for v, g in zip(column, factor.tolist(), strict=True) if g == group] for group in range(groups)]
        between.append(math.fsum(len(m) * (math.fsum(m) / len(m) - mean) ** 2 for m in members if m))
    g = len(set(factor.tolist()))
    shares = [b / t for b, t in zip([*between, sum(between)], [*total, sum(total)], strict=True)]  # η²
    each, pooled = variance_explained(x, factor)
    close([*each, pooled], [eta - (g - 1) / (count - g) * (1 - eta) for eta in shares], 1e-10)  # Kelley's ε²


def test_variance_explained_by_hand() -> None:
    x = torch.tensor([[1.0, 5.0], [1.0, 7.0], [3.0, 5.0], [3.0, 7.0]])
    each, pooled = variance_explained(x, torch.tensor([0, 0, 9, 9]))
    assert each == pytest.approx([1.0, -0.5])  # η² = 1 and 0; 1 − 1 · 3/2
    assert pooled == pytest.approx(1 - 0.5 * 3 / 2)


def test_chance_explains_nothing() -> None:
    """Without any relation η² is (G − 1)/(N − 1) on average, ε² is 0."""
    result = [variance_explained(normal(50, 8, seed=i), draw(50, 10, 1000 + i)) for i in range(60)]
    assert np.mean([each for each, _ in result]) == pytest.approx(0, abs=0.01)
    assert np.mean([pooled for _, pooled in result]) == pytest.approx(0, abs=0.01)


def test_variance_that_is_not_there_is_not_explained() -> None:
    constant, factor = normal(1, 1).expand(301, 1) * 1e3, torch.arange(301) % 2  # its mean is it only up to rounding
    assert to_json(variance_explained(constant, factor)) == [[None], None]
    each, pooled = variance_explained(torch.cat([constant, normal(301, 1)], dim=1), factor)
    assert math.isnan(each[0])
    assert pooled == pytest.approx(each[1])
    assert to_json(variance_explained(normal(3, 2), torch.arange(3))) == [[None, None], None]  # a group per sample


def test_extremes_by_hand() -> None:
    x = torch.tensor([[0.0, 1.0], [5.0, -1.0], [-2.0, 1.0], [5.0, 0.0]])
    assert extremes(x, 2) == ([[1, 3], [0, 2]], [[2, 0], [1, 3]])  # ties by number
    assert extremes(x, 9)[0][0] == [1, 3, 0, 2]
    assert extremes(x[:, :0], 2) == ([], [])


def test_class_means_by_hand() -> None:
    result = class_means(torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]]), torch.tensor([2, 2, 0]), 3)
    assert to_json(result.tolist()) == [[5.0, 5.0], [None, None], [2.0, 1.0]]


@several
@given(c=st.integers(1, 5), d=st.integers(1, 7), k=st.integers(1, 7), seed=seeds)
def test_head_share_equals_numpy(c: int, d: int, k: int, seed: int) -> None:
    w, u = normal(c, d, seed=seed), orthonormal(d, min(k, d), seed=seed + 1)
    result = head_share(w, u, draws=3)
    inside = w.numpy() @ u.numpy() @ u.numpy().T
    for name, order in (("spectral", 2), ("frobenius", None)):
        assert result[name] == pytest.approx(np.linalg.norm(inside, order), abs=1e-10)
        assert result[f"whole_{name}"] == pytest.approx(np.linalg.norm(w.numpy(), order), abs=1e-10)
        assert result[f"{name}_share"] == pytest.approx(result[name] / result[f"whole_{name}"])


def test_head_share_by_hand() -> None:
    result = head_share(torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]]), torch.eye(3)[:, [0, 2]])
    values = {"spectral": 3, "frobenius": 3, "whole_spectral": 4, "whole_frobenius": 5}
    assert (values | {"spectral_share": 0.75, "frobenius_share": 0.6}).items() <= result.items()


@several
@given(c=st.integers(1, 4), d=st.integers(2, 6), k=st.integers(1, 6), size=st.floats(0.01, 100), seed=seeds)
def test_no_shift_exceeds_the_bound(c: int, d: int, k: int, size: float, seed: int) -> None:
    w, u = normal(c, d, seed=seed), orthonormal(d, min(k, d), seed=seed + 1)
    result = head_shift(w, u, size, draws=50, seed=seed)
    assert result["bound"] == pytest.approx(size * head_share(w, u, draws=1)["spectral"])
    assert result["mean"] <= result["largest"] * (1 + 1e-12)
    assert result["largest"] <= result["bound"] * (1 + 1e-12)  # S-Prop. 3
    assert result == head_shift(w, u, size, draws=50, seed=seed)


def test_head_shift_by_hand() -> None:
    w = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    line = head_shift(w, torch.eye(3)[:, :1], 2.0)
    assert (line["mean"], line["largest"], line["bound"]) == pytest.approx((6, 6, 6))  # one direction, both ways
    plane = head_shift(w, torch.eye(3)[:, :2], 1.0, draws=4000)
    around = np.linspace(0, 2 * np.pi, 100_000)
    assert plane["mean"] == pytest.approx(np.hypot(3 * np.cos(around), 4 * np.sin(around)).mean(), abs=0.02)
    assert 3.99 < plane["largest"] <= plane["bound"] == pytest.approx(4)
    assert head_shift(4 * torch.eye(3), torch.eye(3)[:, :1], 2.0)["random"] == pytest.approx(8)  # every direction alike


def test_no_direction_and_a_zero_head() -> None:
    nothing, zero = torch.zeros(3, 0), torch.zeros(2, 3)
    assert to_json(head_share(normal(2, 3), nothing))["spectral"] is None
    assert to_json(head_share(normal(2, 3), nothing))["random_spectral_share"] is None
    assert to_json(head_shift(normal(2, 3), nothing))["bound"] is None
    assert to_json(head_share(zero, orthonormal(3, 2)))["spectral_share"] is None
    assert head_shift(zero, orthonormal(3, 2))["bound"] == 0
