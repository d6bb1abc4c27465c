"""Statistics against cases solved by hand and against scipy."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from antishortcut.stats import Paired, Summary, paired, summary

VALUES = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=2, max_size=8)


def test_summary_by_hand() -> None:
    assert summary([2.0, 4.0, 6.0]) == Summary(4.0, 2.0, 3)  # deviations −2, 0, 2: √(8 / 2)
    assert summary([5]) == Summary(5.0, None, 1)


def test_summary_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        summary([])


@given(VALUES)
def test_summary_as_the_standard_library(values: list[float]) -> None:
    found = summary(values)
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.std == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_three_pairs_by_hand() -> None:
    # differences 1, 2, 3: mean 2, deviation 1; t(0.975; 2) = 4.302653, so the half width is 4.302653 / √3 = 2.484138
    found = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found.difference == 2
    assert found.low == pytest.approx(-0.484138, abs=1e-6)
    assert found.high == pytest.approx(4.484138, abs=1e-6)
    assert found.effect == pytest.approx(2.0)
    assert found.count == 3


def test_one_pair_has_no_interval() -> None:
    assert paired([0.5], [0.25]) == Paired(0.25, None, None, None, 1)


def test_equal_differences_have_no_effect_size() -> None:
    found = paired([0.3, 0.4, 0.7], [0.1, 0.2, 0.5])  # 0.2 each, up to rounding
    assert found.effect is None
    assert found.low == pytest.approx(0.2)
    assert found.high == pytest.approx(0.2)
    assert paired([1.0, 1.0], [1.0, 1.0]).effect is None


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_interval_as_scipy(level: float) -> None:
    a, b = [0.71, 0.69, 0.74, 0.70], [0.68, 0.70, 0.70, 0.69]
    found = paired(a, b, level)
    known = stats.ttest_rel(a, b).confidence_interval(level)
    assert (found.low, found.high) == pytest.approx((known.low, known.high))


@given(VALUES)
def test_swapping_sides_turns_the_sign(values: list[float]) -> None:
    zeros = [0.0] * len(values)
    one, two = paired(values, zeros), paired(zeros, values)
    assert one.difference == -two.difference
    assert one.low is not None
    assert two.high is not None
    assert math.isclose(one.low, -two.high, abs_tol=1e-9)
    assert (one.effect is None) == (two.effect is None)


def test_what_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="2 values against 1"):
        paired([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="level"):
        paired([1.0], [1.0], level=95)
