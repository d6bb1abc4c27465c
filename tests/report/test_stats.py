"""Statistics against cases solved by hand and against scipy."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from antishortcut.report.stats import Paired, Summary, paired, power, seeds_needed, sign_test, summary


def test_summary_by_hand() -> None:
    assert summary([2.0, 4.0, 6.0]) == Summary(4.0, 2.0, 3)  # deviations −2, 0, 2: √(8 / 2)
    assert summary([5]) == Summary(5.0, None, 1)


def test_three_pairs_by_hand() -> None:
    # differences 1, 2, 3: mean 2, deviation 1; t(0.975; 2) = 4.302653, so the half width is 4.302653 / √3 = 2.484138
    result = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert result.difference == 2
    assert result.low == pytest.approx(-0.484138, abs=1e-6)
    assert result.high == pytest.approx(4.484138, abs=1e-6)
    assert result.effect == pytest.approx(2.0)
    assert result.count == 3


def test_one_pair_has_no_interval() -> None:
    assert paired([0.5], [0.25]) == Paired(0.25, None, None, None, 1, 0.5)


def test_equal_differences_have_no_effect_size() -> None:
    result = paired([0.3, 0.4, 0.7], [0.1, 0.2, 0.5])  # 0.2 each, up to rounding
    assert result.effect is None
    assert result.low == pytest.approx(0.2)
    assert result.high == pytest.approx(0.2)
    assert paired([1.0, 1.0], [1.0, 1.0]).effect is None


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_interval_as_scipy(level: float) -> None:
    a, b = [0.71, 0.69, 0.74, 0.70], [0.68, 0.70, 0.70, 0.69]
    result = paired(a, b, level)
    known = stats.ttest_rel(a, b).confidence_interval(level)
    assert (result.low, result.high) == pytest.approx((known.low, known.high))


def test_what_cannot_be_summed_up_or_paired() -> None:
    with pytest.raises(ValueError, match="no values"):
        summary([])
    with pytest.raises(ValueError, match="zip"):
        paired([1.0, 2.0], [1.0])


def test_signs_by_hand() -> None:
    assert sign_test([3, 2, 1], [0, 0, 0]) == 0.125  # 1 of 8 outcomes: the paper's 3 of 3
    assert sign_test([3, 2, 0, 1], [0, 0, 1, 1]) == 0.5  # 2 of 3, the tie left out: 4 of 8
    assert sign_test([0, 0], [1, 1]) == 1
    assert sign_test([1.0], [1.0]) == 1


@pytest.mark.parametrize(("effect", "seeds"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_of_the_textbook(effect: float, seeds: int) -> None:
    """Two-sided paired t, α 0.05, power 0.8: the table values of Cohen's d_z."""
    assert seeds_needed(effect) == seeds


@given(st.floats(0.3, 4.0), st.sampled_from([0.5, 0.8, 0.9]), st.sampled_from([0.9, 0.95]))
@settings(max_examples=25, deadline=None)
def test_seeds_needed_is_the_first_number_that_is_enough(effect: float, wanted: float, level: float) -> None:
    """The slow twin: scipy's noncentral t, n = 2, 3, …; scipy 1.13 has six digits of it."""

    def result(n: int) -> float:
        bar, shift = stats.t.ppf((1 + level) / 2, n - 1), effect * math.sqrt(n)
        above, below = float(stats.nct.sf(bar, n - 1, shift)), float(stats.nct.cdf(-bar, n - 1, shift))
        return (1.0 if math.isnan(above) else above) + (0.0 if math.isnan(below) else below)  # nan in the far tails

    n = next(n for n in itertools.count(2) if result(n) >= wanted)
    assert seeds_needed(-effect, wanted, level) == n  # the sign does not matter
    assert power(effect, n, level) == pytest.approx(result(n), abs=1e-6)


def test_power_of_large_effects_is_a_number() -> None:
    """Where scipy's far tail of the noncentral t is nan, it counts as zero."""
    assert power(12.6, 5) == pytest.approx(1.0, abs=1e-6)
    assert seeds_needed(12.6) <= 3
