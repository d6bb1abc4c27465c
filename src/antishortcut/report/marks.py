"""Marks beside a mean: the best of its suite, better or worse than the baseline, and whether that is sure."""

from __future__ import annotations

from dataclasses import dataclass

from antishortcut.report.collect import BASELINE
from antishortcut.report.columns import better
from antishortcut.report.stats import Paired

BEST, SURE = "★", "*"
MARKS = {1: "▲", -1: "▼", 0: ""}  # better than the baseline, worse, neither


@dataclass(frozen=True)
class Mark:
    """Of one method in one column."""

    best: bool = False
    way: int = 0  # 1 better than the baseline, −1 worse, 0 the same, or not compared
    sure: bool = False  # the interval of the difference leaves zero out

    @property
    def against(self) -> str:
        return MARKS[self.way] + SURE * self.sure

    @property
    def words(self) -> str:
        """The same for those who hear the page."""
        told = {1: f"better than {BASELINE}", -1: f"worse than {BASELINE}", 0: ""}[self.way]
        return told + ", the interval leaves zero out" * self.sure

    def __str__(self) -> str:
        return BEST * self.best + self.against


def mark(column: str, value: Paired | None, best: bool) -> Mark:
    """From the difference to the baseline, seed by seed; without one, only whether it is the best."""
    if value is None or value.difference == 0:
        return Mark(best)
    return Mark(best, better(column) * (1 if value.difference > 0 else -1), leaves_zero_out(value))


def leaves_zero_out(value: Paired) -> bool:
    """Whether the interval does; one pair has none."""
    return value.low is not None and value.high is not None and not value.low <= 0 <= value.high


def legend(compared: bool, suites: int = 1, best: str = BEST, sure: str = SURE) -> str:
    """What the marks mean, in a line; `best` and `sure` as they are written there."""
    told = f"{best}: best of the column" + " in its suite" * (suites > 1)
    if not compared:
        return f"{told}."
    return (
        f"{told}; {MARKS[1]} better, {MARKS[-1]} worse than {BASELINE} over the seeds in common; {sure}: the 95 % "
        "interval of that difference leaves zero out (Student’s t, not corrected for looking at many)."
    )
