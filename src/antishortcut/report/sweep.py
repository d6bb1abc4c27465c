"""How scores depend on one numeric setting: lines of methods that differ in nothing but it, as table and figure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from antishortcut.config.recipe import Run
from antishortcut.errors import UserError, suggest
from antishortcut.report.charts import Figure, Layers, Panel, Rows, base, colour, style, tooltips
from antishortcut.report.collect import BASELINE, DRAWN, Collected
from antishortcut.report.paper_pairs import dotted
from antishortcut.report.reader import number
from antishortcut.report.score_figures import column_title
from antishortcut.report.stats import paired
from antishortcut.report.table import ResultTable, arrow, better, values_of

IGNORED = {"kind", "suite", "name", "seed", "teacher", "early", "keep"}  # a line's runs may differ in these
OPTIONS = "options."  # of the method; a person may leave it out
WIDE = 8.0  # times the smallest value: from here on the axis is logarithmic
RULE = [4, 3]  # dashes of the baseline
Fields = dict[str, Any]  # dotted name → value


@dataclass(frozen=True)
class SweepLine:
    """Methods by the value of the setting, from the smallest."""

    suite: str | None  # None where every value has a suite of its own
    fields: Fields  # what its runs share
    points: dict[float, str]
    label: str = ""


class Sweep:
    """Lines over a setting, and the baseline of each suite. The cells are those of the result table."""

    def __init__(self, table: ResultTable, key: str) -> None:
        usual = [column for column in table.columns if better(column) > 0 and column != "best"]
        self.key, self.table = key, table if table.selected else replace(table, selected=tuple(usual))
        self.columns = self.table.columns
        self.lines = lines_over(key, table.runs)
        groups = table.runs.groups.items()
        self.base = {group[0].run.suite: method for method, group in groups if group[0].run.name == BASELINE}

    def rows(self) -> list[tuple[str, float | None, str]]:
        """Label, value and method: line by line, the baseline, which has no value, before the first of its suite."""
        rows: list[tuple[str, float | None, str]] = []
        suites: set[str | None] = set()
        for line in self.lines:
            if line.suite in self.base and line.suite not in suites:
                rows.append((line.suite, None, self.base[line.suite]))
            suites.add(line.suite)
            rows += [(line.label, value, method) for value, method in line.points.items()]
        return rows

    def head(self) -> list[str]:
        return ["line", self.key, "seeds", *(f"{column} {arrow(column)}".strip() for column in self.columns)]

    def texts(self) -> list[list[str]]:
        marks = {column: self.table.marks(column) for column in self.columns}
        return [
            [label, BASELINE if value is None else f"{value:g}", str(self.table.seeds[method])]
            + [f"{' '.join(self.table.texts(method, c)).strip()} {marks[c][method]}".rstrip() for c in marks]
            for label, value, method in self.rows()
        ]

    def explanation(self) -> str:
        return (
            f"Mean ± standard deviation over seeds. {self.table.legend()} The runs of a line differ in nothing but "
            "the setting, the seed and the name."
        )

    def flat(self) -> dict[str, Any]:
        """For JSON."""
        cells = {row["method"]: row for row in self.table.rows()}
        rows = [{"line": label, "value": value} | cells[method] for label, value, method in self.rows()]
        return {"setting": self.key, "columns": self.columns, "rows": rows}


# --- runs → lines ---


def lines_over(key: str, runs: Collected) -> list[SweepLine]:
    """All lines with two values or more. Of every method the settings of its first seed count."""
    settings = {method: _settings(group[0].run) for method, group in runs.groups.items()}
    field = _field(key, settings.values())
    groups: dict[str, tuple[Fields, list[tuple[float, str]]]] = {}
    for method, fields in settings.items():
        if isinstance(value := fields.pop(field, None), float):
            if field.startswith("data."):
                del fields["fingerprint"]  # other data by design
            if field.startswith(OPTIONS):  # which do not change a teacher; other settings may
                fields["teacher"] = str(runs.groups[method][0].run.teacher)
            groups.setdefault(repr(sorted(fields.items())), (fields, []))[1].append((value, method))
    lines = [line for group in groups.values() for line in _split(*group, runs) if len(line.points) > 1]
    if not lines:
        values = ", ".join(f"{x:g}" for x in sorted({x for _, points in groups.values() for x, _ in points}))
        raise UserError(f"--sweep {key}: no two runs differ in nothing but it and their seeds; its values: {values}")
    return _labelled(lines)


def _settings(run: Run) -> Fields:
    """What decides the result, as dotted names; a number is a number, however it was written."""
    fields = dict(dotted(run.model_dump(mode="json", exclude=IGNORED)))
    del fields["model.weights"]  # their digest is there
    return {name: value if (x := number(value)) is None else x for name, value in fields.items()}


def _field(key: str, settings: Iterable[Fields]) -> str:
    """The dotted name that a person means by `strength` or `optim.lr`."""
    values: dict[str, set[float]] = {}
    for fields in settings:
        for name, value in fields.items():
            if isinstance(value, float):
                values.setdefault(name, set()).add(value)
    for name in (key, OPTIONS + key):
        if name in values:
            return name
    if not values:
        raise UserError(f"--sweep {key}: no finished student here yet")
    known = {name.removeprefix(OPTIONS): len(each) for name, each in values.items()}
    ends = [name for name in known if name.endswith(f".{key}")]
    varying = [name for name, count in known.items() if count > 1]
    hint = f"; did you mean {' or '.join(map(repr, ends))}?" if ends else suggest(key, varying or known)
    raise UserError(f"--sweep: no run here has {key!r} as a number{hint}")


def _split(fields: Fields, points: list[tuple[float, str]], runs: Collected) -> Iterator[SweepLine]:
    """Methods with equal settings, apart by suite unless every value has a suite of its own."""
    suites: dict[str | None, dict[float, str]] = {}
    for value, method in points:
        suites.setdefault(runs.groups[method][0].run.suite, {}).setdefault(value, method)
    if len(suites) == len(points) == len({value for value, _ in points}):
        suites = {None: dict(points)}
    for suite, own in suites.items():
        yield SweepLine(suite, fields, dict(sorted(own.items())))


def _labelled(lines: list[SweepLine]) -> list[SweepLine]:
    """Named by the suite, the method, and settings where these do not tell lines apart."""
    labelled = []
    for line in lines:
        suite, method = line.suite, line.fields["method"]
        alike = [each.fields for each in lines if (each.suite, each.fields["method"]) == (suite, method)]
        fields = {name.rpartition(".")[2]: line.fields.get(name) for name in _differing(alike)}
        shown = {name: f"{x:g}" if isinstance(x, float) else "–" if x is None else x for name, x in fields.items()}
        values = [f"{name}={x}" for name, x in shown.items()]
        labelled.append(replace(line, label=" ".join([suite, method, *values] if suite else [method, *values])))
    return labelled


def _differing(several: list[Fields]) -> list[str]:
    """Names of settings that are not the same in all; data and teacher, as hashes, only where nothing else differs."""
    names = dict.fromkeys(name for fields in several for name in fields)
    differ = [name for name in names if len({repr(fields.get(name)) for fields in several}) > 1]
    return [name for name in differ if name not in ("fingerprint", "teacher")] or differ


# --- the figure ---


def sweep_figure(sweep: Sweep) -> Figure:
    """Scores over the setting, a panel per score and a line per group of methods; the baseline is a dashed rule."""
    lines, table = sweep.lines[:DRAWN], sweep.table
    looks = style(line.label for line in lines)
    rules: dict[str, str] = {}  # baseline → word of the legend
    for line in lines:
        if line.suite in sweep.base and sweep.base[line.suite] not in rules:
            word = rules[sweep.base[line.suite]] = f"{BASELINE} of {line.suite}"
            looks[word] = (looks[line.label][0], RULE)
    values = sorted({value for line in lines for value in line.points})
    logarithmic = values[0] > 0 and values[-1] / values[0] >= WIDE
    kind: dict[str, Any] = {"type": "log"} if logarithmic else {"zero": False}
    ticks = alt.Axis(values=values, format=".4~g", grid=False, labelOverlap="greedy")
    axis = alt.X("x:Q", title=sweep.key, scale=alt.Scale(nice=False, padding=14, **kind), axis=ticks)
    panels = []
    for index, column in enumerate(sweep.columns):
        if means := _means(lines, table.runs, column):
            dashed: Rows = [
                {"line": word, "method": method, "value": cell.mean, "seeds": cell.count}
                for method, word in rules.items()
                if (cell := table.cells[method].get(column))
            ]
            layers, data = _layers(index, axis, looks, means, dashed, better(column) > 0)
            text = "; ".join(f"{row['line']} at {row['x']:g}: {row['value']:.3f}" for row in means)
            text += "".join(f"; {row['line']}: {row['value']:.3f}" for row in dashed)
            title = f"{column_title(table, column)} {arrow(column)}".rstrip()
            panels.append(Panel(title, 200, layers, data, alt=text))
    few = "" if len(lines) == len(sweep.lines) else f" The first {len(lines)} of {len(sweep.lines)} lines are drawn."
    note = (
        f"A line joins runs that differ in nothing but {sweep.key}, the seed and the name: mean over seeds and its "
        "95 % interval (Student’s t) where there are two seeds or more, cut at the panel’s edge. Dashed: "
        f"{BASELINE} of the suite, in the colour of its first line.{few}"
    )
    key = {f"{word} (dashed)" if dash is RULE else word: paint for word, (paint, dash) in looks.items()}
    return Figure("sweep", f"How scores depend on {sweep.key}", note, panels, key)


def _means(lines: Sequence[SweepLine], runs: Collected, column: str) -> Rows:
    """A row per line and value: the mean, and its interval where there are several seeds."""
    rows: Rows = []
    for line in lines:
        for value, method in line.points.items():
            if seeds := values_of(runs.groups[method], column):
                mean = paired(seeds, [0.0] * len(seeds))
                row = {"line": line.label, "method": method, "x": value, "value": mean.difference, "seeds": mean.count}
                rows.append(row | ({} if mean.low is None else {"low": mean.low, "high": mean.high}))
    return rows


def _layers(
    index: int, across: alt.X, looks: dict[str, tuple[str, list[int]]], means: Rows, dashed: Rows, share: bool
) -> tuple[Layers, dict[str, Rows]]:
    """Bands, rules, lines and dots, from the back to the front, and their data."""
    bands, rules, points = (f"{name}{index}" for name in ("bands", "rules", "sweep"))
    paint = colour({word: paint for word, (paint, _) in looks.items()}, "line")
    scale = alt.Scale(domain=list(looks), range=[dash for _, dash in looks.values()])
    dash = alt.StrokeDash("line:N", scale=scale, title=None)
    room = _scale([row["value"] for row in (*means, *dashed)], share)
    up = alt.Y("value:Q", title=None, scale=room, axis=alt.Axis(tickCount=5, format="~g"))
    tips = tooltips("line:N", "x:Q", "seeds:Q", value=".3f")
    low, high = alt.Y("low:Q", title=None, scale=room), alt.Y2("high")
    start = base(points).encode(x=across, y=up, color=paint)
    layers = (
        base(bands).mark_area(fillOpacity=0.15, clip=True).encode(x=across, y=low, y2=high, color=paint),
        base(rules).mark_rule(strokeWidth=1.5).encode(y=up, color=paint, strokeDash=dash, tooltip=[tips[0], *tips[2:]]),
        start.mark_line(strokeWidth=2.2).encode(strokeDash=dash),
        start.mark_point(size=45, filled=True, opacity=1).encode(tooltip=tips),
    )
    return layers, {points: means, bands: [row for row in means if "low" in row], rules: dashed}


def _scale(means: list[float], share: bool) -> alt.Scale:
    """As high as the means and as much again for their intervals, which are huge with two seeds.

    A share, like an accuracy, stays between 0 and 1.
    """
    low, high = min(means), max(means)
    room = 0.6 * (high - low) or 0.05
    least, most = low - room, high + room
    if share and 0 <= low <= high <= 1:
        least, most = max(least, 0.0), min(most, 1.0)
    return alt.Scale(domain=[least, most], nice=False)
