"""Numbers over seeds: mean ± standard deviation, and differences between runs that share their seeds. No torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import nctdtr, stdtrit  # scipy.stats takes most of a second to import

TINY = 1e-12  # of the values' size: a smaller spread is the rounding of equal differences


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation (ddof 1); one value has no deviation."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True)
class Paired:
    """Mean of a − b over pairs, its t interval, Cohen's d_z = mean / standard deviation, and the sign test."""

    difference: float
    low: float | None
    high: float | None
    effect: float | None
    count: int
    sign_p: float  # one-sided, of a > b


def summary(values: Sequence[float]) -> Summary:
    """x̄ and s = √(Σ (x − x̄)² / (n − 1)) of at least one value."""
    count = len(values)
    if count == 0:
        raise ValueError("no values to summarise")
    mean = math.fsum(values) / count
    if count == 1:
        return Summary(mean, None, 1)
    return Summary(mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (count - 1)), count)


def paired(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Paired:
    """d̄ ± t_{n−1} · s_d / √n for d = a − b, pair by pair; no interval below two pairs.

    The effect is None where it means nothing: one pair, or differences that are all equal.
    """
    result = summary([x - y for x, y in zip(a, b, strict=True)])
    if result.std is None:
        return Paired(result.mean, None, None, None, 1, sign_test(a, b))
    half = float(stdtrit(float(result.count - 1), (1 + level) / 2)) * result.std / math.sqrt(result.count)
    size = max(abs(x) for x in (*a, *b))
    effect = result.mean / result.std if result.std > TINY * size else None
    return Paired(result.mean, result.mean - half, result.mean + half, effect, result.count, sign_test(a, b))


def sign_test(a: Sequence[float], b: Sequence[float]) -> float:
    """One-sided p of a > b by signs alone: P(X ≥ wins) for X ~ Bin(n, ½), ties left out; 3 of 3 give 0.125.

    Only to reproduce the paper's (S-Sec. A.6): with three seeds it cannot fall below 0.125; `paired` says more.
    """
    differences = [x - y for x, y in zip(a, b, strict=True) if x != y]
    count, wins = len(differences), sum(d > 0 for d in differences)
    return float(sum(math.comb(count, k) for k in range(wins, count + 1)) / 2**count)


def power(effect: float, count: int, level: float = 0.95) -> float:
    """How often a two-sided paired t test finds a true effect d_z: P(|T| > t_{n−1}), T noncentral with |d_z| √n."""
    shift, bar = abs(effect) * math.sqrt(count), float(stdtrit(float(count - 1), (1 + level) / 2))
    low, high = (float(nctdtr(float(count - 1), shift, at)) for at in (-bar, bar))
    return 1 - (0.0 if math.isnan(high) else high) + (0.0 if math.isnan(low) else low)  # far tails come back as nan


def seeds_needed(effect: float, target: float = 0.8, level: float = 0.95) -> int:
    """Smallest number of paired seeds that shows a true effect d_z, which is not zero, with that power."""
    low, high = 1, 2  # power grows with n: enough at `high`, not at `low`
    while power(effect, high, level) < target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(effect, middle, level) >= target else (middle, high)
    return high
