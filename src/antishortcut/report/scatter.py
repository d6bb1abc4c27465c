"""One score against another, run by run: can the one be used to choose by?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from antishortcut.errors import UserError
from antishortcut.report.collect import BASELINE, Found, Student
from antishortcut.report.columns import better, chosen
from antishortcut.report.table import Table, signed
from antishortcut.stats import summary

LEAST = 3  # runs of a suite and seed, for a choice among them
WAYS = {1: "more is better", -1: "less is better", 0: "no way is better, the most is taken for the best"}
PICKS = ("suite", "seed", "runs", "correlation", "chosen", "best", "regret", f"regret of {BASELINE}")  # head of picks()


@dataclass(frozen=True)
class Choice:
    """Among the runs of one suite and seed: which x would choose, and what that costs in y."""

    suite: str
    seed: int
    runs: int
    spearman: float | None  # None where x or y is the same for all
    picked: str  # several names when x is the same
    best: str
    regret: float  # best y − y of the picked, in the better direction; the mean when x picks several
    baseline: float | None  # the regret of picking the baseline


@dataclass(frozen=True)
class Scatter:
    """Dots and what they say. Where less is better a score counts negative, so + is always: better goes with better."""

    x: str
    y: str
    students: tuple[Student, ...]  # that have both
    spearman: float | None
    choices: tuple[Choice, ...]

    @classmethod
    def of(cls, found: Found, table: Table, wanted: str) -> Scatter:
        columns = chosen(wanted, table.every, "--scatter") if table.every else []
        if len(columns) != 2:
            raise UserError(f'--scatter {wanted!r}: wants two columns, like "iid accuracy,conflict accuracy"')
        x, y = columns
        held = tuple(s for s in found.students if x in s.values and y in s.values)
        if not held:
            raise UserError(f"--scatter: no run here has both {x!r} and {y!r}")
        groups: dict[tuple[str, int], list[Student]] = {}
        for s in held:
            groups.setdefault((s.run.suite, s.run.seed), []).append(s)
        choices = [_choice(group, x, y) for group in groups.values() if len(group) >= LEAST]
        return cls(x, y, held, _spearman(held, x, y), tuple(choices))

    @property
    def within(self) -> tuple[float | None, list[Choice]]:
        """The mean of the correlations within suite and seed, and the groups that have one."""
        groups = [choice for choice in self.choices if choice.spearman is not None]
        found = [choice.spearman for choice in groups if choice.spearman is not None]
        return (summary(found).mean if found else None), groups

    @property
    def compared(self) -> list[Choice]:
        """The groups regrets are averaged over: those that have the baseline, if any has."""
        return [choice for choice in self.choices if choice.baseline is not None] or list(self.choices)

    @property
    def regrets(self) -> tuple[float | None, float | None]:
        """The mean regret of choosing by x, and of always choosing the baseline, over the same groups."""
        ours = [choice.regret for choice in self.compared]
        theirs = [choice.baseline for choice in self.compared if choice.baseline is not None]
        return (summary(ours).mean if ours else None), (summary(theirs).mean if theirs else None)

    def numbers(self) -> list[list[str]]:
        """What it comes to: a line of words, number, and over how many."""
        mean, groups = self.within
        ours, theirs = self.regrets
        same = _groups(self.compared)
        return [
            ["rank correlation (Spearman), all runs", signed(self.spearman, 2), f"{len(self.students)} runs"],
            ["rank correlation within suite and seed, mean", signed(mean, 2), _groups(groups)],
            [f"regret of choosing by {self.x}", _plain(ours), same],
            [f"regret of always choosing {BASELINE}", _plain(theirs), same],
        ]

    def picks(self) -> list[list[str]]:
        """Group by group: what was chosen, what would have been best, and the regrets."""
        return [
            [
                c.suite,
                str(c.seed),
                str(c.runs),
                signed(c.spearman, 2),
                c.picked,
                c.best,
                _plain(c.regret),
                _plain(c.baseline),
            ]
            for c in self.choices
        ]

    def told(self) -> str:
        """How to read the numbers."""
        ways = "; ".join(f"{column}: {WAYS[better(column)]}" for column in (self.x, self.y))
        return (
            f"{ways}. A positive correlation: better in the one goes with better in the other. Regret: among the "
            f"runs of one suite and seed ({LEAST} or more), how far the run with the best {self.x} falls short of the "
            f"best {self.y} (the mean, if several share it); mean over the groups that have {BASELINE}, if any has."
        )

    def flat(self) -> dict[str, Any]:
        """For JSON."""
        mean, groups = self.within
        ours, theirs = self.regrets
        return {
            "x": self.x, "y": self.y, "runs": len(self.students), "spearman": self.spearman,
            "spearman_within": mean, "groups": len(groups), "regret": ours, f"regret_{BASELINE}": theirs,
            "regret_groups": len(self.compared), "choices": [asdict(choice) for choice in self.choices],
        }  # fmt: skip


def _groups(choices: Sequence[Choice]) -> str:
    count = len(choices)
    return f"{sum(choice.runs for choice in choices)} runs in {count} group{'s' * (count != 1)}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _turned(students: Sequence[Student], column: str) -> list[float]:
    """So that more is better."""
    return [(better(column) or 1) * s.values[column] for s in students]


def _spearman(students: Sequence[Student], x: str, y: str) -> float | None:
    """Of ranks, ties sharing theirs; None where it means nothing."""
    found = pl.select(pl.corr(*(pl.Series(_turned(students, c)) for c in (x, y)), method="spearman")).item()
    return None if found is None or not math.isfinite(found) else float(found)


def _choice(group: Sequence[Student], x: str, y: str) -> Choice:
    xs, ys = _turned(group, x), _turned(group, y)
    top, best = max(xs), max(ys)
    picked = [(s.run.name, value) for s, at, value in zip(group, xs, ys, strict=True) if at == top]
    base = [best - value for s, value in zip(group, ys, strict=True) if s.run.name == BASELINE]
    return Choice(
        suite=group[0].run.suite,
        seed=group[0].run.seed,
        runs=len(group),
        spearman=_spearman(group, x, y),
        picked=", ".join(name for name, _ in picked),
        best=", ".join(s.run.name for s, value in zip(group, ys, strict=True) if value == best),
        regret=best - summary([value for _, value in picked]).mean,
        baseline=base[0] if base else None,
    )
