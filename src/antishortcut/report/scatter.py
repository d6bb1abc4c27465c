"""One score against another, run by run: can the one be used to choose by?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

import altair as alt
import polars as pl

from antishortcut.errors import UserError
from antishortcut.report.charts import PALETTE, Figure, Panel, Rows, base, colour, style, tooltips
from antishortcut.report.collect import BASELINE, DRAWN, Found, Student
from antishortcut.report.stats import summary
from antishortcut.report.table import Table, arrow, better, chosen, signed

LEAST = 3  # runs of a suite and seed, for a choice among them
WAYS = {1: "more is better", -1: "less is better", 0: "no way is better, the most is taken for the best"}
PICKS = ("suite", "seed", "runs", "correlation", "chosen", "best", "regret", f"regret of {BASELINE}")  # head of picks()
SHAPES = ("circle", "square", "triangle-up")  # of seven colours, then they come again


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
        students = tuple(s for s in found.students if x in s.values and y in s.values)
        if not students:
            raise UserError(f"--scatter: no run here has both {x!r} and {y!r}")
        groups: dict[tuple[str, int], list[Student]] = {}
        for s in students:
            groups.setdefault((s.run.suite, s.run.seed), []).append(s)
        choices = [_choice(group, x, y) for group in groups.values() if len(group) >= LEAST]
        return cls(x, y, students, _spearman(students, x, y), tuple(choices))

    @property
    def ranked(self) -> list[Choice]:
        """The groups that have a correlation."""
        return [choice for choice in self.choices if choice.spearman is not None]

    @property
    def compared(self) -> list[Choice]:
        """The groups regrets are averaged over: those that have the baseline, if any has."""
        return [choice for choice in self.choices if choice.baseline is not None] or list(self.choices)

    @property
    def within(self) -> float | None:
        """The mean of the correlations within suite and seed."""
        return _mean(choice.spearman for choice in self.choices)

    @property
    def regrets(self) -> tuple[float | None, float | None]:
        """The mean regret of choosing by x, and of always choosing the baseline, over the same groups."""
        return _mean(choice.regret for choice in self.compared), _mean(choice.baseline for choice in self.compared)

    def numbers(self) -> list[list[str]]:
        """What it comes to: a line of words, number, and over how many."""
        ours, reference = self.regrets
        same = _groups(self.compared)
        return [
            ["rank correlation (Spearman), all runs", signed(self.spearman, 2), f"{len(self.students)} runs"],
            ["rank correlation within suite and seed, mean", signed(self.within, 2), _groups(self.ranked)],
            [f"regret of choosing by {self.x}", _plain(ours), same],
            [f"regret of always choosing {BASELINE}", _plain(reference), same],
        ]

    def picks(self) -> list[list[str]]:
        """Group by group: what was chosen, what would have been best, and the regrets."""
        rows = []
        for c in self.choices:
            regrets = _plain(c.regret), _plain(c.baseline)
            rows.append([c.suite, str(c.seed), str(c.runs), signed(c.spearman, 2), c.picked, c.best, *regrets])
        return rows

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
        ours, reference = self.regrets
        return {
            "x": self.x, "y": self.y, "runs": len(self.students), "spearman": self.spearman,
            "spearman_within": self.within, "groups": len(self.ranked), "regret": ours, f"regret_{BASELINE}": reference,
            "regret_groups": len(self.compared), "choices": [asdict(choice) for choice in self.choices],
        }  # fmt: skip


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return summary(known).mean if known else None


def _groups(choices: Sequence[Choice]) -> str:
    count = len(choices)
    return f"{sum(choice.runs for choice in choices)} runs in {count} group{'s' * (count != 1)}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _higher_is_better(students: Sequence[Student], column: str) -> list[float]:
    return [(better(column) or 1) * s.values[column] for s in students]


def _spearman(students: Sequence[Student], x: str, y: str) -> float | None:
    """Of ranks, ties sharing theirs; None where it means nothing."""
    ranks = (pl.Series(_higher_is_better(students, column)) for column in (x, y))
    value = pl.select(pl.corr(*ranks, method="spearman")).item()
    return None if value is None or not math.isfinite(value) else float(value)


def _choice(group: Sequence[Student], x: str, y: str) -> Choice:
    xs, ys = _higher_is_better(group, x), _higher_is_better(group, y)
    top, best = max(xs), max(ys)
    picked = [(s.run.name, value) for s, at, value in zip(group, xs, ys, strict=True) if at == top]
    return Choice(
        suite=group[0].run.suite,
        seed=group[0].run.seed,
        runs=len(group),
        spearman=_spearman(group, x, y),
        picked=", ".join(name for name, _ in picked),
        best=", ".join(s.run.name for s, value in zip(group, ys, strict=True) if value == best),
        regret=best - summary([value for _, value in picked]).mean,
        baseline=next((best - value for s, value in zip(group, ys, strict=True) if s.run.name == BASELINE), None),
    )


def scatter_figure(scatter: Scatter, found: Found) -> Figure:
    """A dot per run. Colours mean suites; methods when there is one suite, as elsewhere unless these are too many."""
    several = len({s.run.suite for s in found.students}) > 1
    word = attrgetter("run.suite" if several else "method" if len(found.groups) <= DRAWN else "run.method")
    names = list(dict.fromkeys(word(s) for s in found.students))
    x, y = scatter.x, scatter.y
    rows: Rows = [
        {"method": s.method, "seed": str(s.run.seed), "group": word(s), "x": s.values[x], "y": s.values[y]}
        for s in scatter.students
    ]
    looks = {name: paint for name, (paint, _) in style(names).items()}
    shapes = [SHAPES[number // len(PALETTE) % len(SHAPES)] for number in range(len(names))]
    room, axis = alt.Scale(zero=False), alt.Axis(tickCount=6, format="~g")
    tips = [alt.Tooltip(f"{at}:Q", title=column, format=".3f") for at, column in (("x", x), ("y", y))]
    layer = base("scatter").mark_point(size=55, filled=True, opacity=0.8).encode(
        x=alt.X("x:Q", title=f"{x} {arrow(x)}".rstrip(), scale=room, axis=axis),
        y=alt.Y("y:Q", title=f"{y} {arrow(y)}".rstrip(), scale=room, axis=axis),
        color=colour(looks, "group"),
        shape=alt.Shape("group:N", scale=alt.Scale(domain=names, range=shapes), title=None),
        tooltip=[*tooltips("method:N", "seed:N"), *tips],
    )  # fmt: skip
    title = f"{y} against {x}"
    message = "; ".join(" ".join(line) for line in scatter.numbers())
    panel = Panel(title, 340, (layer,), {"scatter": rows}, told=message)
    note = f"A dot is a run, a colour a {'suite' if several else 'method'}."
    key = {
        name if shape == SHAPES[0] else f"{name} ({shape.partition('-')[0]})": looks[name]
        for name, shape in zip(names, shapes, strict=True)
    }
    return Figure("scatter", title, note, (panel,), key, wide=True)
