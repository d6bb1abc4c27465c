"""The figure of a sweep: scores over a setting, a line per group of runs, the baseline as a dashed rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from antishortcut.report.charts import GREY, Figure, Panel, Rows, base, colour, style
from antishortcut.report.collect import BASELINE, DRAWN, Student
from antishortcut.report.columns import arrow, better, parts, words
from antishortcut.report.leaning import titled
from antishortcut.report.sweep import Sweep
from antishortcut.report.swept import Line
from antishortcut.report.table import Table, values_of
from antishortcut.stats import paired, summary

APART, ALL_APART = 0.012, 0.06  # of the axis: between two lines, so that intervals do not hide each other; at most
WIDE = 8.0  # times the smallest value: from here on the axis is logarithmic
TICKS = 8  # values that are written at the axis one by one
RULE = [4, 3]  # dashes of the baseline
Looks = Mapping[str, tuple[str, list[int]]]  # word of the legend → colour and dashes


def sweep_figure(sweep: Sweep, table: Table) -> Figure:
    """A panel per score."""
    lines = sweep.lines[:DRAWN]
    looks = style(line.label for line in lines)
    rules: dict[str, str] = {}  # suite → word of the legend
    for line in lines:
        if line.suite in sweep.base and line.suite not in rules:
            alone = sum(each.suite == line.suite for each in lines) == 1
            rules[line.suite] = f"{BASELINE} of {line.suite}"
            looks[rules[line.suite]] = (looks[line.label][0] if alone else GREY, RULE)
    values = sorted({point.value for line in lines for point in line.points})
    panels = []
    for number, column in enumerate(sweep.columns):
        means = _means(lines, column, values)
        if means:
            dashed = _dashed(rules, sweep.base, column)
            layers, data = _drawing(f"{number}", _across(sweep.key, values), looks, means, dashed, better(column) > 0)
            told = "; ".join(f"{row['line']} at {row['x']:g}: {row['value']:.3f}" for row in means)
            told += "".join(f"; {row['line']}: {row['value']:.3f}" for row in dashed)
            panels.append(Panel(_title(table, column), 200, layers, data, told=told))
    few = "" if len(lines) == len(sweep.lines) else f" The first {len(lines)} of {len(sweep.lines)} lines are drawn."
    note = (
        f"A line joins runs that differ in nothing but {sweep.key}, the seed and the name: mean over seeds and its "
        "95 % interval (Student’s t) where there are two seeds or more, cut at the panel’s edge; lines stand a little "
        f"apart. Dashed: {BASELINE} of the suite, in its line’s colour, or grey where the suite has several lines.{few}"
    )
    key = {f"{word} (dashed)" if dash is RULE else word: paint for word, (paint, dash) in looks.items()}
    return Figure("sweep", f"How scores depend on {sweep.key}", note, tuple(panels), key)


def _title(table: Table, column: str) -> str:
    group, score = parts(column)
    return f"{score if group == 'training' else f'{titled(table, group)}, {words(score)}'} {arrow(column)}".rstrip()


def _logarithmic(values: Sequence[float]) -> bool:
    return values[0] > 0 and values[-1] / values[0] >= WIDE


def _means(lines: Sequence[Line], column: str, values: Sequence[float]) -> Rows:
    """A row per line and value: mean, interval, and where it stands on the axis."""
    first, last = values[0], values[-1]
    step = min(APART, ALL_APART / len(lines))
    rows: Rows = []
    for number, line in enumerate(lines):
        shift = (number - (len(lines) - 1) / 2) * step
        for point in line.points:
            seeds = values_of(point.students, column)
            if not seeds:
                continue
            at = point.value * (last / first) ** shift if _logarithmic(values) else point.value + shift * (last - first)
            found = paired(seeds, [0.0] * len(seeds))  # of the mean itself
            row = {"line": line.label, "method": point.method, "x": point.value, "at": at, "seeds": found.count}
            ends = {} if found.low is None else {"low": found.low, "high": found.high}
            rows.append(row | {"value": found.difference} | ends)
    return rows


def _dashed(rules: Mapping[str, str], base_of: Mapping[str, Sequence[Student]], column: str) -> Rows:
    """A row per suite that has a baseline."""
    return [
        {"line": word, "method": base_of[suite][0].method, "value": summary(seeds).mean, "seeds": len(seeds)}
        for suite, word in rules.items()
        if (seeds := values_of(base_of[suite], column))
    ]


def _across(key: str, values: list[float]) -> alt.X:
    axis = alt.Axis(format=".4~g", grid=False, tickCount=6, labelOverlap="greedy")
    if len(values) <= TICKS:
        axis = alt.Axis(format=".4~g", grid=False, values=values, labelOverlap="greedy")
    scale = alt.Scale(zero=False, nice=False, padding=14)
    if _logarithmic(values):
        scale = alt.Scale(type="log", nice=False, padding=14)
    return alt.X("at:Q", title=key, scale=scale, axis=axis)


def _drawing(
    name: str, across: alt.X, looks: Looks, means: Rows, dashed: Rows, share: bool
) -> tuple[tuple[alt.Chart, ...], dict[str, Rows]]:
    """Rules, whiskers, lines and dots, from the back to the front, and their data."""
    data = {f"sweep{name}": means}
    paint = colour({word: paint for word, (paint, _) in looks.items()}, "line")
    scale = alt.Scale(domain=list(looks), range=[dash for _, dash in looks.values()])
    dash = alt.StrokeDash("line:N", scale=scale, title=None)
    room = _room(means, dashed, share)
    up = alt.Y("value:Q", title=None, scale=room, axis=alt.Axis(tickCount=5, format="~g"))
    tips = [alt.Tooltip("line:N"), alt.Tooltip("x:Q", title="at"), alt.Tooltip("value:Q", format=".3f")]
    start = base(f"sweep{name}").encode(x=across, y=up, color=paint)
    layers = [
        start.mark_line(strokeWidth=2.2).encode(strokeDash=dash),
        start.mark_point(size=45, filled=True, opacity=1).encode(tooltip=[*tips, alt.Tooltip("seeds:Q")]),
    ]
    if sure := [row for row in means if "low" in row]:
        data[f"whiskers{name}"] = sure
        whisker = base(f"whiskers{name}").mark_rule(strokeWidth=1.5, strokeOpacity=0.6, clip=True)
        layers.insert(
            0, whisker.encode(x=across, y=alt.Y("low:Q", title=None, scale=room), y2=alt.Y2("high"), color=paint)
        )
    if dashed:
        data[f"rules{name}"] = dashed
        rule = base(f"rules{name}").mark_rule(strokeWidth=1.5)
        told = [tips[0], tips[2], alt.Tooltip("seeds:Q")]
        layers.insert(0, rule.encode(y=up, color=paint, strokeDash=dash, tooltip=told))
    return tuple(layers), data


def _room(means: Rows, dashed: Rows, share: bool) -> alt.Scale:
    """As high as the means and as much again for their intervals, which with two seeds would fill a wall.

    A share, like an accuracy, has no room below 0 and above 1.
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
