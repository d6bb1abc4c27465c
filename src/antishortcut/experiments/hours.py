"""What the paper says its runs cost, in A100-hours; what it does not say is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antishortcut.config.recipe import Recipe
from antishortcut.experiments.jobs import Job, Suite
from antishortcut.experiments.pairs import ALL_HOURS, LARGE_HOURS, OTHER_HOURS, PAIRS, RUN_HOURS

SOURCES = {  # hours of a run: where the paper has them from
    RUN_HOURS: f"{RUN_HOURS:g} h a CIFAR-100 run of ASD",
    LARGE_HOURS: f"{OTHER_HOURS:g} h for nine runs of P11–P13",
}


@dataclass(frozen=True)
class Hours:
    kinds: Mapping[float, int]  # hours of a run: how many such runs
    silent: Mapping[str, int]  # pairs whose hours the paper does not give: how many runs

    @property
    def known(self) -> float:
        return sum(hours * runs for hours, runs in self.kinds.items())

    def __str__(self) -> str:
        rest = ", ".join(f"{runs} of {pair}" for pair, runs in self.silent.items())
        if not self.kinds:
            return f"the paper does not say what these runs cost ({rest})"
        parts = " + ".join(f"{runs} × {hours:.1f} h" for hours, runs in sorted(self.kinds.items()))
        sources = ", ".join(text for hours, text in SOURCES.items() if hours in self.kinds)
        told = (
            f"{round(self.known, 1):,g} A100-hours as the paper counts ({parts}; {sources}; teachers and evaluation "
            f"not counted); the paper reports {ALL_HOURS:g} in all, without baselines"
        )
        return f"{told}; runs it gives no hours for are left out: {rest}" if rest else told

    def as_json(self) -> dict[str, Any]:
        each = [{"hours": hours, "runs": runs} for hours, runs in sorted(self.kinds.items())]
        return {"a100_hours": self.known if self.kinds else None, "each": each, "left_out": dict(self.silent)}


def reported_hours(suite: Suite) -> Hours | None:
    """Of a suite's students; None for runs that are not of the paper's size."""
    known = {pair: PAIRS[pair].recipe() for pair in {job.suite for job in suite.jobs} & PAIRS.keys()}
    if not suite.jobs or not all(job.suite in known and _full(job, known[job.suite]) for job in suite.jobs):
        return None
    told = [(job.suite, PAIRS[job.suite].hours) for job in suite.jobs]
    kinds = Counter(hours for _, hours in told if hours is not None)
    return Hours(dict(kinds), dict(Counter(pair for pair, hours in told if hours is None)))


def _full(job: Job, known: Recipe) -> bool:
    """Whether epochs and images are the paper's."""
    return (job.recipe.length, job.recipe.data) == (known.length, known.data)
