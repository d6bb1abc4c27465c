"""One score against another, run by run: can the one be used to choose by?"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

import altair as alt
import polars as pl

from antishortcut.errors import UserError
from antishortcut.report.charts import PALETTE, Figure, Panel, Rows, base, colour, style, tooltips
from antishortcut.report.collect import BASELINE, Collected, StudentRun
from antishortcut.report.stats import summary
from antishortcut.report.table import ResultTable, arrow, better, select_columns, signed

LEAST = 3  # runs of a suite and seed, for a choice among them
WAYS = {1: "more is better", -1: "less is better", 0: "no way is better, the most is taken for the best"}
PICKS = ("suite", "seed", "runs", "chosen", "best", "regret", f"regret of {BASELINE}")  # head of picks()


@dataclass(frozen=True)
class Choice:
    """Among the runs of one suite and seed: which x would choose, and what that costs in y."""

    suite: str
    seed: int
    runs: int
    picked: str  # several names when x is the same
    best: str
    regret: float  # best y − y of the picked, in the better direction; the mean when x picks several
    baseline: float | None  # the regret of picking the baseline


class ScatterAnalysis:
    """Two columns of all runs. Where less is better a score counts negative: + is always better with better."""

    def __init__(self, table: ResultTable, text: str) -> None:
        columns = select_columns(text, table.every, "--scatter") if table.every else []
        if len(columns) != 2:
            raise UserError(f'--scatter {text!r}: wants two columns, like "iid accuracy,conflict accuracy"')
        self.x, self.y = x, y = columns
        self.students = [s for s in table.runs.students if x in s.values and y in s.values]
        if not self.students:
            raise UserError(f"--scatter: no run here has both {x!r} and {y!r}")
        groups: dict[tuple[str, int], list[StudentRun]] = {}
        for s in self.students:
            groups.setdefault((s.run.suite, s.run.seed), []).append(s)
        self.choices = [_choice(group, x, y) for group in groups.values() if len(group) >= LEAST]
        ranks = (pl.Series(_higher_is_better(self.students, column)) for column in (x, y))
        spearman = pl.select(pl.corr(*ranks, method="spearman")).item()
        self.spearman = None if spearman is None or not math.isfinite(spearman) else float(spearman)
        # regrets are averaged over the groups that have the baseline, if any has
        self.compared = [choice for choice in self.choices if choice.baseline is not None] or self.choices
        self.regret = _mean(choice.regret for choice in self.compared)
        self.baseline = _mean(choice.baseline for choice in self.compared)

    def numbers(self) -> list[list[str]]:
        """Description, number, and over how many."""
        groups = f"{len(self.compared)} group{'s' * (len(self.compared) != 1)} of one suite and seed"
        return [
            ["rank correlation (Spearman)", signed(self.spearman, 2), f"{len(self.students)} runs"],
            [f"regret of choosing by {self.x}", _text(self.regret), groups],
            [f"regret of always choosing {BASELINE}", _text(self.baseline), groups],
        ]

    def picks(self) -> list[list[str]]:
        """Group by group: what was chosen, what would have been best, and the regrets."""
        return [
            [c.suite, str(c.seed), str(c.runs), c.picked, c.best, _text(c.regret), _text(c.baseline)]
            for c in self.choices
        ]

    def explanation(self) -> str:
        ways = "; ".join(f"{column}: {WAYS[better(column)]}" for column in (self.x, self.y))
        return (
            f"{ways}. A positive correlation: better in the one goes with better in the other. Regret: among the "
            f"runs of one suite and seed ({LEAST} or more), how far the run with the best {self.x} falls short of the "
            f"best {self.y} (the mean, if several share it); mean over the groups that have {BASELINE}, if any has."
        )

    def flat(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "x": self.x, "y": self.y, "runs": len(self.students), "spearman": self.spearman, "regret": self.regret,
            f"regret_{BASELINE}": self.baseline, "regret_groups": len(self.compared),
            "choices": [asdict(choice) for choice in self.choices],
        }  # fmt: skip


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return summary(known).mean if known else None


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _higher_is_better(students: Sequence[StudentRun], column: str) -> list[float]:
    return [(better(column) or 1) * s.values[column] for s in students]


def _choice(group: Sequence[StudentRun], x: str, y: str) -> Choice:
    names, xs, ys = [s.run.name for s in group], _higher_is_better(group, x), _higher_is_better(group, y)
    best, picked = max(ys), [index for index, value in enumerate(xs) if value == max(xs)]
    return Choice(
        suite=group[0].run.suite,
        seed=group[0].run.seed,
        runs=len(group),
        picked=", ".join(names[index] for index in picked),
        best=", ".join(name for name, value in zip(names, ys, strict=True) if value == best),
        regret=best - summary([ys[index] for index in picked]).mean,
        baseline=best - ys[names.index(BASELINE)] if BASELINE in names else None,
    )


def scatter_figure(scatter: ScatterAnalysis, runs: Collected) -> Figure:
    """A dot per run. Colours mean suites; methods when there is one suite."""
    several = len({s.run.suite for s in runs.students}) > 1
    group_of = attrgetter("run.suite" if several else "method")
    x, y = scatter.x, scatter.y
    rows: Rows = [
        {"method": s.method, "seed": str(s.run.seed), "group": group_of(s), "x": s.values[x], "y": s.values[y]}
        for s in scatter.students
    ]
    colours = {name: paint for name, (paint, _) in style(dict.fromkeys(group_of(s) for s in runs.students)).items()}
    scale, axis = alt.Scale(zero=False), alt.Axis(tickCount=6, format="~g")
    tips = [alt.Tooltip(f"{field}:Q", title=column, format=".3f") for field, column in (("x", x), ("y", y))]
    layer = base("scatter").mark_point(size=55, filled=True, opacity=0.8).encode(
        x=alt.X("x:Q", title=f"{x} {arrow(x)}".rstrip(), scale=scale, axis=axis),
        y=alt.Y("y:Q", title=f"{y} {arrow(y)}".rstrip(), scale=scale, axis=axis),
        color=colour(colours, "group"),
        tooltip=[*tooltips("method:N", "seed:N"), *tips],
    )  # fmt: skip
    title = f"{y} against {x}"
    note = f"A dot is a run, a colour a {'suite' if several else 'method'}; colours repeat after {len(PALETTE)}."
    panel = Panel(title, 340, (layer,), {"scatter": rows}, alt="; ".join(" ".join(line) for line in scatter.numbers()))
    return Figure("scatter", title, note, [panel], colours, wide=True)
