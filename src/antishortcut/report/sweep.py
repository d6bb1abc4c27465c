"""How scores depend on one numeric setting: lines of runs that differ in nothing but it, as a table and as a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from antishortcut.errors import UserError, suggest
from antishortcut.report.charts import GREY, Figure, Layers, Panel, Rows, base, colour, style
from antishortcut.report.collect import BASELINE, DRAWN, Collected, Student, natural
from antishortcut.report.notes import flat
from antishortcut.report.reader import number
from antishortcut.report.score_figures import column_title
from antishortcut.report.stats import Summary, paired, summary
from antishortcut.report.table import MARKS, Mark, ResultTable, against, arrow, better, values_of

IGNORED = {"kind", "suite", "name", "seed", "teacher", "early", "keep"}  # a line's runs may differ in these
OPTIONS = "options."  # of the method; a person may leave it out
WORD = 24  # characters of a setting in a label
APART, ALL_APART = 0.012, 0.06  # of the axis: between two lines, so that intervals do not hide each other; at most
WIDE = 8.0  # times the smallest value: from here on the axis is logarithmic
TICKS = 8  # values that are written at the axis one by one
RULE = [4, 3]  # dashes of the baseline
Fields = dict[str, Any]  # dotted name → value


@dataclass(frozen=True)
class SweepLine:
    """Values of the setting from the smallest, and at each the seeds of one suite."""

    label: str
    suite: str | None  # None where every value has a suite of its own
    fields: Fields  # what its runs share
    points: tuple[tuple[float, list[Student]], ...]


@dataclass(frozen=True)
class SweepCell:
    """Mean ± deviation over seeds, and whether it is surely better or worse than the baseline."""

    score: Summary
    mark: str

    @property
    def mean(self) -> str:
        return f"{self.score.mean:.3f}".replace("-", "−")

    @property
    def spread(self) -> str:
        return ("" if self.score.std is None else f"± {self.score.std:.3f} ") + f"({self.score.count})"

    def __str__(self) -> str:
        return f"{self.mean} {self.spread} {self.mark}".rstrip()


@dataclass(frozen=True)
class SweepRow:
    """A line at a value, or the baseline of a suite."""

    label: str
    value: float | None  # None for the baseline
    method: str
    cells: dict[str, SweepCell]

    @property
    def at(self) -> str:
        return BASELINE if self.value is None else f"{self.value:g}"


class Sweep:
    """Lines over a setting, and the baseline of each suite."""

    def __init__(self, runs: Collected, key: str, columns: Sequence[str]) -> None:
        self.key, self.columns = key, list(columns)
        self.lines = lines_over(key, runs.students)
        self.base: dict[str, list[Student]] = {}  # suite → its baseline
        for s in runs.students:
            if s.run.name == BASELINE:
                self.base.setdefault(s.run.suite, []).append(s)

    def rows(self) -> list[SweepRow]:
        """Line by line, the baseline before the first line of its suite."""
        rows: list[SweepRow] = []
        suites: set[str | None] = set()
        for line in self.lines:
            if line.suite in self.base and line.suite not in suites:
                base = self.base[line.suite]
                rows.append(SweepRow(line.suite, None, base[0].method, self._cells(base)))
            suites.add(line.suite)
            rows += [SweepRow(line.label, value, group[0].method, self._cells(group)) for value, group in line.points]
        return rows

    def _cells(self, students: Sequence[Student]) -> dict[str, SweepCell]:
        base = self.base.get(students[0].run.suite, ())
        cells = {}
        for column in self.columns:
            if values := values_of(students, column):
                mark = Mark.of(column, against(students, base, column))
                cells[column] = SweepCell(summary(values), MARKS[mark.way if mark.sure else 0])
        return cells

    def head(self) -> list[str]:
        return ["line", self.key, *(f"{column} {arrow(column)}".strip() for column in self.columns)]

    def texts(self) -> list[list[str]]:
        return [[row.label, row.at, *(str(row.cells.get(c, "–")) for c in self.columns)] for row in self.rows()]

    def brief(self) -> list[list[str]]:
        """The same for a terminal, means and marks only."""
        cells = [(row, [row.cells.get(column) for column in self.columns]) for row in self.rows()]
        return [[row.label, row.at, *(f"{c.mean} {c.mark}".rstrip() if c else "–" for c in cs)] for row, cs in cells]

    def explanation(self) -> str:
        return (
            f"Mean ± standard deviation (seeds). ▲ better, ▼ worse than {BASELINE} of the suite: the 95 % interval of "
            "the difference, seed by seed over the seeds in common, leaves zero out (Student’s t, not corrected for "
            "looking at many). The runs of a line differ in nothing but the setting, the seed and the name."
        )

    def flat(self) -> dict[str, Any]:
        """For JSON."""
        rows = []
        for row in self.rows():
            tree: dict[str, Any] = {"line": row.label, "value": BASELINE if row.value is None else row.value}
            for column, cell in row.cells.items():
                tree |= {column: cell.score.mean, f"{column} ±": cell.score.std, f"{column} seeds": cell.score.count}
                tree |= {f"{column} mark": cell.mark}
            rows.append(tree)
        return {"setting": self.key, "columns": self.columns, "rows": rows}


def sweep_columns(table: ResultTable) -> list[str]:
    """Of the first table, the columns in which higher is better; `best` was selected on the same data."""
    return [column for column in table.columns if better(column) > 0 and column != "best"]


# --- runs → lines ---


def lines_over(key: str, students: Sequence[Student]) -> list[SweepLine]:
    """All lines with two values or more, suite by suite."""
    settings = [_settings(s) for s in students]
    field = _field(key, settings)
    groups: dict[str, tuple[Fields, list[tuple[float, Student]]]] = {}
    for s, fields in zip(students, settings, strict=True):
        if isinstance(value := fields.pop(field, None), float):
            if field.startswith("data."):
                del fields["fingerprint"]  # other data by design
            groups.setdefault(repr(sorted(fields.items())), (fields, []))[1].append((value, s))
    lines = [line for fields, runs in groups.values() for line in _split(fields, runs) if len(line.points) > 1]
    if not lines:
        values = sorted({value for _, runs in groups.values() for value, _ in runs})
        raise UserError(
            f"--sweep {key}: no two runs differ in nothing but it, their seeds and names; its values here: "
            + ", ".join(f"{value:g}" for value in values)
        )
    return _labelled(lines)


def _settings(student: Student) -> Fields:
    """What decides the result, as dotted names; a number is a number, however it was written."""
    fields = dict(flat(student.run.model_dump(mode="json", exclude=IGNORED)))
    del fields["model.weights"]  # their digest is there
    return {name: value if (x := number(value)) is None else x for name, value in fields.items()}


def _field(key: str, settings: Sequence[Fields]) -> str:
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


def _split(fields: Fields, runs: list[tuple[float, Student]]) -> Iterator[SweepLine]:
    """Runs with equal settings, apart by suite unless every value has a suite of its own."""
    teachers = dict.fromkeys(str(s.run.teacher) for _, s in runs)
    first: dict[tuple[str, float, int], Student] = {}  # a second one is the same run by another name
    for value, s in runs:
        one = first.setdefault((s.run.suite, value, s.run.seed), s)
        if one.run.hash != s.run.hash and len(teachers) > 1:  # or has another teacher
            for teacher in teachers:
                own = [(x, each) for x, each in runs if str(each.run.teacher) == teacher]
                yield from _split(fields | {"teacher": teacher}, own)
            return
    suites: dict[str, dict[float, list[Student]]] = {}
    for (suite, value, _), s in first.items():
        suites.setdefault(suite, {}).setdefault(value, []).append(s)
    points = sorted(((value, group) for each in suites.values() for value, group in each.items()), key=lambda p: p[0])
    if len(suites) == len(points) == len({value for value, _ in points}) > 1:
        yield SweepLine("", None, fields, tuple(points))
        return
    for suite in dict.fromkeys(group[0].run.suite for _, group in points):
        yield SweepLine("", suite, fields, tuple(p for p in points if p[1][0].run.suite == suite))


def _labelled(lines: list[SweepLine]) -> list[SweepLine]:
    """By suite; named by it, the method where there are several, and settings where these do not tell lines apart."""
    methods = list(dict.fromkeys(line.fields["method"] for line in lines))
    alike: dict[tuple[str | None, str], list[Fields]] = {}
    for line in lines:
        alike.setdefault((line.suite, line.fields["method"]), []).append(line.fields)
    differ = {group: _differing(fields) for group, fields in alike.items()}

    def order(line: SweepLine) -> Any:
        method = line.fields["method"]
        values = [line.fields.get(name) for name in differ[line.suite, method]]
        ranks = [(0, value, "") if isinstance(value, float) else (1, 0.0, str(value)) for value in values]
        return natural(line.suite or ""), methods.index(method), ranks

    labelled: dict[str, SweepLine] = {}
    for line in sorted(lines, key=order):
        method = line.fields["method"]
        label = [] if line.suite is None else [line.suite]
        label += [method] if len(methods) > 1 or line.suite is None else []
        label += [f"{name.rpartition('.')[2]}={_short(line.fields.get(name))}" for name in differ[line.suite, method]]
        label += [f"#{len(labelled)}"] if " ".join(label) in labelled else []  # they differ in what was cut off
        labelled[" ".join(label)] = replace(line, label=" ".join(label))
    return list(labelled.values())


def _differing(several: list[Fields]) -> list[str]:
    """Names of settings that are not the same in all; the data's fingerprint only where nothing else differs."""
    names = dict.fromkeys(name for fields in several for name in fields)
    differ = [name for name in names if len({repr(fields.get(name)) for fields in several}) > 1]
    return [name for name in differ if name != "fingerprint"] or differ


def _short(value: Any) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)[:WORD]


# --- the figure ---


def sweep_figure(sweep: Sweep, table: ResultTable) -> Figure:
    """Scores over the setting, a panel per score and a line per group of runs; the baseline is a dashed rule."""
    lines = sweep.lines[:DRAWN]
    looks = style(line.label for line in lines)
    rules: dict[str, str] = {}  # suite → word of the legend
    for line in lines:
        if line.suite in sweep.base and line.suite not in rules:
            single = sum(each.suite == line.suite for each in lines) == 1
            rules[line.suite] = f"{BASELINE} of {line.suite}"
            looks[rules[line.suite]] = (looks[line.label][0] if single else GREY, RULE)
    values = sorted({value for line in lines for value, _ in line.points})
    panels = []
    for index, column in enumerate(sweep.columns):
        if means := _means(lines, column, values):
            dashed: Rows = [
                {"line": word, "method": sweep.base[suite][0].method, "value": summary(seeds).mean, "seeds": len(seeds)}
                for suite, word in rules.items()
                if (seeds := values_of(sweep.base[suite], column))
            ]
            layers, data = _layers(str(index), _axis(sweep.key, values), looks, means, dashed, better(column) > 0)
            text = "; ".join(f"{row['line']} at {row['x']:g}: {row['value']:.3f}" for row in means)
            text += "".join(f"; {row['line']}: {row['value']:.3f}" for row in dashed)
            title = f"{column_title(table, column)} {arrow(column)}".rstrip()
            panels.append(Panel(title, 200, layers, data, alt=text))
    few = "" if len(lines) == len(sweep.lines) else f" The first {len(lines)} of {len(sweep.lines)} lines are drawn."
    note = (
        f"A line joins runs that differ in nothing but {sweep.key}, the seed and the name: mean over seeds and its "
        "95 % interval (Student’s t) where there are two seeds or more, cut at the panel’s edge; lines stand a little "
        f"apart. Dashed: {BASELINE} of the suite, in its line’s colour, or grey where the suite has several lines.{few}"
    )
    key = {f"{word} (dashed)" if dash is RULE else word: paint for word, (paint, dash) in looks.items()}
    return Figure("sweep", f"How scores depend on {sweep.key}", note, panels, key)


def _logarithmic(values: Sequence[float]) -> bool:
    return values[0] > 0 and values[-1] / values[0] >= WIDE


def _means(lines: Sequence[SweepLine], column: str, values: Sequence[float]) -> Rows:
    """A row per line and value: mean, interval, and where it stands on the axis."""
    first, last = values[0], values[-1]
    step = min(APART, ALL_APART / len(lines))
    rows: Rows = []
    for index, line in enumerate(lines):
        shift = (index - (len(lines) - 1) / 2) * step
        for value, group in line.points:
            if seeds := values_of(group, column):
                at = value * (last / first) ** shift if _logarithmic(values) else value + shift * (last - first)
                mean = paired(seeds, [0.0] * len(seeds))  # with its interval
                row = {"line": line.label, "method": group[0].method, "x": value, "at": at, "seeds": mean.count}
                ends = {} if mean.low is None else {"low": mean.low, "high": mean.high}
                rows.append(row | {"value": mean.difference} | ends)
    return rows


def _axis(key: str, values: list[float]) -> alt.X:
    ticks: dict[str, Any] = {"values": values} if len(values) <= TICKS else {"tickCount": 6}
    kind: dict[str, Any] = {"type": "log"} if _logarithmic(values) else {"zero": False}
    axis = alt.Axis(format=".4~g", grid=False, labelOverlap="greedy", **ticks)
    return alt.X("at:Q", title=key, scale=alt.Scale(nice=False, padding=14, **kind), axis=axis)


def _layers(
    name: str, across: alt.X, looks: dict[str, tuple[str, list[int]]], means: Rows, dashed: Rows, share: bool
) -> tuple[Layers, dict[str, Rows]]:
    """Rules, whiskers, lines and dots, from the back to the front, and their data."""
    sure = [row for row in means if "low" in row]
    data = {f"sweep{name}": means, f"whiskers{name}": sure, f"rules{name}": dashed}
    paint = colour({word: paint for word, (paint, _) in looks.items()}, "line")
    scale = alt.Scale(domain=list(looks), range=[dash for _, dash in looks.values()])
    dash = alt.StrokeDash("line:N", scale=scale, title=None)
    room = _scale(means, dashed, share)
    up = alt.Y("value:Q", title=None, scale=room, axis=alt.Axis(tickCount=5, format="~g"))
    line, at = alt.Tooltip("line:N"), alt.Tooltip("x:Q", title="at")
    tips = [alt.Tooltip("value:Q", format=".3f"), alt.Tooltip("seeds:Q")]
    start = base(f"sweep{name}").encode(x=across, y=up, color=paint)
    rule = base(f"rules{name}").mark_rule(strokeWidth=1.5)
    whisker = base(f"whiskers{name}").mark_rule(strokeWidth=1.5, strokeOpacity=0.6, clip=True)
    low = alt.Y("low:Q", title=None, scale=room)
    layers = {
        f"rules{name}": rule.encode(y=up, color=paint, strokeDash=dash, tooltip=[line, *tips]),
        f"whiskers{name}": whisker.encode(x=across, y=low, y2=alt.Y2("high"), color=paint),
    }
    behind = [layer for key, layer in layers.items() if data[key]]
    front = [
        start.mark_line(strokeWidth=2.2).encode(strokeDash=dash),
        start.mark_point(size=45, filled=True, opacity=1).encode(tooltip=[line, at, *tips]),
    ]
    return (*behind, *front), {key: rows for key, rows in data.items() if rows}


def _scale(means: Rows, dashed: Rows, share: bool) -> alt.Scale:
    """As high as the means and as much again for their intervals, which are huge with two seeds.

    A share, like an accuracy, stays between 0 and 1.
    """
    heights = [row["value"] for row in (*means, *dashed)]
    low, high = min(heights), max(heights)
    span = 0.6 * (high - low) or 0.05
    least = max(low - span, min(row.get("low", low) for row in means))
    most = min(high + span, max(row.get("high", high) for row in means))
    edge = 0.06 * ((most - least) or 0.1)
    least, most = min(least, low) - edge, max(most, high) + edge
    if share and 0 <= low <= high <= 1:
        least, most = max(least, 0.0), min(most, 1.0)
    return alt.Scale(domain=[least, most], nice=False)
