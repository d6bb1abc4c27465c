"""Paired differences to the baseline, and what they are worth: interval, effect, the seeds they would need.

ASD also stands beside CRD where the paper has it so (S-Table 9), or where a suite has no baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from antishortcut.experiments.printed import find
from antishortcut.report.collect import BASELINE
from antishortcut.report.stats import Paired, seeds_needed
from antishortcut.report.table import CHALLENGER, RIVAL, RIVALS, Table, interval, signed

POWER = 0.8
MOST = 1000  # seeds needed that are still written out


@dataclass(frozen=True)
class Difference:
    """Of a method to the baseline of its suite, or to CRD, in one column."""

    method: str
    column: str
    value: Paired
    p: float | None  # of the paper's sign test, where it has one
    reference: str = BASELINE

    @property
    def title(self) -> str:
        """The method, with whom it is compared where that is not the baseline."""
        return self.method if self.reference == BASELINE else f"{self.method} against {self.reference}"

    @property
    def needed(self) -> int | None:
        return None if self.value.effect is None else _needed(abs(self.value.effect))

    @property
    def seeds(self) -> str:
        """How many seeds it would need, for a person."""
        needed = self.needed
        return "–" if needed is None else f">{MOST}" if needed > MOST else str(needed)

    def texts(self, tested: bool) -> list[str]:
        value = self.value
        told = [signed(value.difference), interval(value), signed(value.effect, 2), str(value.count), self.seeds]
        return [self.title, self.column, *told, *(["–" if self.p is None else f"{self.p:.3f}"] if tested else [])]

    def flat(self) -> dict[str, Any]:
        value = self.value
        return {
            "method": self.method,
            "reference": self.reference,
            "score": self.column,
            "difference": value.difference,
            "low": value.low,
            "high": value.high,
            "effect": value.effect,
            "pairs": value.count,
            "seeds_needed": self.needed,
        } | ({} if self.p is None else {"sign_test": self.p})


@dataclass(frozen=True)
class Differences:
    """All of a table's, method by method."""

    each: tuple[Difference, ...]

    @classmethod
    def of(cls, table: Table) -> Differences:
        each = [
            Difference(method, column, values[column], None)
            for method, values in table.differences.items()
            for column in table.compared()
            if column in values
        ]
        each += [
            Difference(method, column, values[column], table.signs.get(method, {}).get(column), RIVAL)
            for method, values in table.rivalry.items()
            for column in table.compared()
            if column in values
        ]
        return cls(tuple(each))

    @property
    def rows(self) -> dict[str, dict[str, Difference]]:
        """By title and column."""
        rows: dict[str, dict[str, Difference]] = {}
        for one in self.each:
            rows.setdefault(one.title, {})[one.column] = one
        return rows

    @property
    def references(self) -> str:
        """With whom methods are compared."""
        return " and ".join(dict.fromkeys(one.reference for one in self.each))

    @property
    def tested(self) -> bool:
        return any(one.p is not None for one in self.each)

    def head(self) -> list[str]:
        usual = ["method", "score", "difference", "95 % interval", "effect d_z", "pairs", "seeds needed"]
        return usual + ["sign test p"] * self.tested

    def texts(self) -> list[list[str]]:
        return [one.texts(self.tested) for one in self.each]

    def flat(self) -> list[dict[str, Any]]:
        return [one.flat() for one in self.each]

    def told(self) -> list[str]:
        """How to read the table."""
        lines = [
            f"Seeds needed: to show a true difference and spread like those seen here, with a power of {POWER} at the "
            "5 % level (two-sided paired t test); – where it has no spread to go by."
        ]
        if self.tested:
            printed = find("S-Sec. A.6", CHALLENGER, RIVALS, "p of the one-sided sign test").mean
            lines.append(
                f"Sign test: the paper’s own (S-Sec. A.6, which has {printed:g}), one-sided p of being better than "
                f"{RIVAL} by signs alone. Three seeds cannot give less than 0.125; the interval says more."
            )
        return lines


@lru_cache(maxsize=4096)
def _needed(effect: float) -> int | None:
    """It depends on d_z alone; no number of seeds shows a difference of zero."""
    return seeds_needed(effect, 1.0, POWER) if effect > 0 else None
