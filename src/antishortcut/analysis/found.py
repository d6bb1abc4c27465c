"""What a diagnostic found, as numbers JSON can hold, and how numbers are gathered over chunks."""
# n values at a time

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

BINS = 40


def plain(value: Any) -> Any:
    """Floats, lists and dicts only; None where a number is not finite."""
    if isinstance(value, Found):
        return value.values()
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(frozen=True)
class Found:
    """What every result is: undefined numbers are NaN in its fields, None in `values()`."""

    def values(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self)}


@dataclass(frozen=True)
class Spread(Found):
    """How one number per row is spread: mean, standard deviation (ddof 1), counts in equal bins from low to high."""

    count: int
    undefined: int  # rows that have no such number: a zero vector has no direction
    mean: float
    std: float
    low: float
    high: float
    histogram: tuple[int, ...]


class Tally:
    """Gathers a Spread chunk by chunk, without cancellation (Chan, Golub & LeVeque 1979)."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.count, self.undefined, self.mean, self.square = 0, 0, 0.0, 0.0
        self.histogram = torch.zeros(BINS, dtype=torch.float64)

    def update(self, values: Tensor, defined: Tensor) -> None:
        """Adds values (n,), of which only the `defined` ones (n,) count."""
        self.undefined += int((~defined).sum())
        values = values[defined].clamp(self.low, self.high)  # rounding may step over an end
        if len(values) == 0:
            return
        n, total, mean = len(values), self.count + len(values), float(values.mean())
        shift = mean - self.mean
        self.square += float((values - mean).square().sum()) + shift**2 * self.count * n / total
        self.mean += shift * n / total
        self.count = total
        self.histogram += torch.histc(values, BINS, self.low, self.high)

    def spread(self) -> Spread:
        mean = self.mean if self.count > 0 else math.nan
        std = math.sqrt(self.square / (self.count - 1)) if self.count > 1 else math.nan
        bins = tuple(int(each) for each in self.histogram)
        return Spread(self.count, self.undefined, mean, std, self.low, self.high, bins)


def ratio(part: float, whole: float) -> float:
    """part / whole, NaN where there is no whole."""
    return part / whole if whole > 0 else math.nan
