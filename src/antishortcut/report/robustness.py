"""Figures of what a student leans on: test sets, decisions between shape and texture, groups, an attack."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import altair as alt

from antishortcut.report.charts import (
    CUES,
    ONE,
    Figure,
    Panel,
    Rows,
    bars,
    base,
    colour,
    lines,
    means,
    method_colour,
    tooltips,
    upright,
)  # fmt: skip
from antishortcut.report.collect import BASELINE, Found, Student
from antishortcut.report.reader import CORRUPTIONS, SEVERITIES
from antishortcut.report.table import KINDS, Table, better, opening, parts, words
from antishortcut.report.training_curves import judges

MOST_GROUPS = 24  # groups of images drawn; the worst when there are more
BAR = 26  # pixels


def differences(found: Found, table: Table) -> list[Figure]:
    """Paired differences with their intervals, a panel per score."""
    methods = list(found.groups)  # for their colours
    panels = []
    known = {column for values in table.differences.values() for column in values}
    columns = [column for column in table.compared() if column in known]
    firsts = {parts(column)[0]: column for column in reversed(columns)}  # of every set its first score
    for number, column in enumerate(reversed(firsts.values())):
        name = f"difference{number}"
        held = {method: values.get(column) for method, values in table.differences.items()}
        rows: Rows = [
            {"method": method, "difference": value.difference, "pairs": value.count}
            | ({} if value.low is None else {"low": value.low, "high": value.high})
            for method, value in held.items()
            if value
        ]
        way = "right is better" if better(column) > 0 else "left is better"
        told = ", ".join(f"{row['method']} {row['difference']:+.3f}" for row in rows)
        group, score = parts(column)
        title = f"{score if group == 'training' else f'{titled(table, group)}, {words(score)}'}: {way}"
        layers = _whiskers(methods, name, any("low" in row for row in rows))
        panels.append(Panel(title, BAR * len(held), layers, {name: rows} | ONE, told=told))
    note = (
        f"Mean difference to {BASELINE} seed by seed, and its 95 % interval where there are two pairs or more; of "
        "every set its first score. The grey line is no difference."
    )
    return [Figure("differences", f"Difference to {BASELINE}, drawn", note, tuple(panels))]


def _whiskers(methods: Sequence[str], data: str, wide: bool) -> tuple[alt.Chart, ...]:
    """A dot per method and, where there are intervals, its whisker."""
    start = base(data).encode(
        y=alt.Y("method:N", sort=list(methods), title=None), color=method_colour(methods).legend(None)
    )
    shown = ("difference", "low", "high") if wide else ("difference",)
    tips = [alt.Tooltip("method:N"), *(alt.Tooltip(f"{key}:Q", format="+.3f") for key in shown)]
    across = alt.X("difference:Q", title=None, axis=alt.Axis(tickCount=5, format="+~g", grid=True))
    whisker = start.mark_rule(strokeWidth=3, opacity=0.55).encode(x=alt.X("low:Q", title=None), x2=alt.X2("high"))
    dot = start.mark_point(size=90, filled=True, opacity=1).encode(x=across, tooltip=tips)
    return (upright(0.0), whisker, dot) if wide else (upright(0.0), dot)


def leaning(found: Found, table: Table) -> list[Figure]:
    methods = list(found.groups)
    figures = [*_sets(found, table), _decisions(found, table, methods)]
    return [*figures, _groups(found, methods), _attack(found, methods)]


def titled(table: Table, words: str, group: str | None = None) -> str:
    """A set, by its name or in other words, with how its images came about."""
    source = table.source(group or words)
    return f"{words} ({source})" if source else words


def seeds(found: Found, value: Callable[[Student], float | None]) -> Rows:
    """A row per run that has the value."""
    held = ((s, value(s)) for s in found.students)
    return [{"method": s.method, "seed": str(s.run.seed), "value": x} for s, x in held if x is not None]


def told(rows: Rows) -> str:
    """Means in words, for who does not see the chart."""
    values = [{"method": row["method"], "value": row["value"]} for row in rows]
    return ", ".join(f"{row['method']} {row['value']:.3f}" for row in means(values))


def _sets(found: Found, table: Table) -> list[Figure]:
    """mIoU, where there are masks, and accuracy of each set; without any, the score of the training."""

    def figure(name: str, score: str, titles: Mapping[str, str]) -> Figure:
        note = "Bars: mean over seeds; dots: single seeds, or a line of ± one standard deviation when they are many."
        return Figure(name, f"{opening(score)} by test set", note, bar_panels(found, "scores", titles, score))

    held = {score: [name for name in table.every if name.endswith(f" {score}")] for score in ("miou", "accuracy")}
    dense = {parts(name)[0] for name in held["miou"]}
    pixels = bool(dense) and {parts(name)[0] for name in held["accuracy"]} <= dense
    figures = []
    for score, columns in held.items():
        shown = {name: titled(table, parts(name)[0]) for name in columns}
        label = "pixel accuracy" if pixels and score == "accuracy" else words(score)
        figures += [figure("scores" if score == "accuracy" else f"scores-{score}", label, shown)] if shown else []
    return figures or [figure("scores", table.primary_metric, {"last": judges(found.students)})]


def bar_panels(found: Found, name: str, titles: Mapping[str, str], score: str) -> tuple[Panel, ...]:
    """A panel of bars for each column that there is, given with its title."""
    methods = list(found.groups)
    panels: list[Panel] = []
    for column, title in titles.items():
        rows = seeds(found, lambda s, column=column: s.values.get(column))  # type: ignore[misc]
        if rows:
            data = f"{name}{len(panels)}"
            layers = bars(methods, data, rows, score)
            panels.append(Panel(title, BAR * len(methods), layers, {data: rows}, told=told(rows)))
    return tuple(panels)


def _decisions(found: Found, table: Table, methods: list[str]) -> Figure:
    """Images whose shape is of one class and whose texture of another: what decides."""
    panels: list[Panel] = []
    pixels: set[bool] = set()
    for group in dict.fromkeys(parts(name)[0] for name in table.every):
        rows: Rows = []
        for method, cells in table.cells.items():
            shares = {cue: cells.get(f"{group} by_{cue}") for cue in ("shape", "texture")}
            means = {cue: cell.mean for cue, cell in shares.items() if cell}
            if len(means) == 2:
                means["neither"] = max(0.0, 1 - sum(means.values()))
                rows += [{"method": method, "decided by": cue, "share": round(x, 5)} for cue, x in means.items()]
        if rows:
            name = f"decisions{len(panels)}"
            pixels.add(f"{group} miou" in table.every)
            of = "pixels" if f"{group} miou" in table.every else "images"
            text = ", ".join(f"{row['method']} by {row['decided by']} {row['share']:.2f}" for row in rows)
            layers = _stack(methods, name, of)
            panels.append(Panel(titled(table, group), BAR * len(methods), layers, {name: rows}, told=text))
    things = {(True,): "Pixels", (False, True): "Images, and pixels of masks,"}.get(tuple(sorted(pixels)), "Images")
    note = (
        f"{things} whose shape belongs to one class and whose texture to another: the share that was called by its "
        "shape, by its texture, and by neither; mean over seeds."
    )
    return Figure("decisions", "Shape or texture", note, tuple(panels), CUES)


def _stack(methods: Sequence[str], data: str, of: str) -> tuple[alt.Chart, ...]:
    order = "indexof(['shape', 'texture', 'neither'], datum['decided by'])"
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".0%")
    return (
        base(data)
        .mark_bar(size=17)
        .transform_calculate(order=order)
        .encode(
            y=alt.Y("method:N", sort=list(methods), title=None),
            x=alt.X("share:Q", stack="zero", title=f"share of {of}", scale=alt.Scale(domain=[0, 1]), axis=axis),
            color=colour(CUES, "decided by"),
            order=alt.Order("order:Q"),
            tooltip=[*tooltips("method:N", "decided by:N"), alt.Tooltip("share:Q", format=".3f")],
        ),
    )


def dots(methods: Sequence[str], data: str, field: str, order: list[str], title: str) -> tuple[alt.Chart, ...]:
    """A row per word of a field, a dot per method."""
    tips = [*tooltips("method:N", f"{field}:N", "seeds:Q"), alt.Tooltip("value:Q", format=".3f")]
    axis = alt.Axis(grid=True, labelLimit=220)
    return (
        base(data)
        .mark_point(size=70, filled=True, opacity=0.9)
        .encode(
            y=alt.Y(f"{field}:N", sort=order or None, title=None, axis=axis),
            x=alt.X("value:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6, format="~g")),
            color=method_colour(methods),
            tooltip=tips,
        ),
    )


def _groups(found: Found, methods: list[str]) -> Figure:
    rows = means(
        [{"method": s.method, "group": name, "value": x} for s in found.students for name, x in s.groups.items()]
    )
    lowest: dict[str, float] = {}
    for row in rows:
        lowest[row["group"]] = min(row["value"], lowest.get(row["group"], 1.0))
    order = sorted(lowest, key=lambda group: (lowest[group], group))[:MOST_GROUPS]
    rows = [row for row in rows if row["group"] in order]
    few = "" if len(lowest) <= MOST_GROUPS else f" The {MOST_GROUPS} worst of {len(lowest)} groups."
    note = (
        "Accuracy on images of one class that share a second fact, the worst group first; mean over seeds. In "
        f"brackets: how many images there are, and few images say little.{few}"
    )
    layers = dots(methods, "groups", "group", order, "accuracy")
    worst = {row["method"]: row for row in sorted(rows, key=lambda row: -row["value"])}
    text = "Worst group: " + ", ".join(f"{m} {row['value']:.3f} on {row['group']}" for m, row in worst.items())
    panels = (Panel("groups", 20 * len(order) + 20, layers, {"groups": rows}, told=text),)
    return Figure("groups", "Groups of images", note, panels if rows else (), wide=True)


def _attack(found: Found, methods: list[str]) -> Figure:
    points: Rows = []
    for s in found.students:
        for name, value in s.values.items():
            if match := re.fullmatch(r"attack (?:clean|([0-9.]{1,8})/255)", name):
                points.append({"method": s.method, "radius": float(match[1] or 0), "value": value})
    rows = means(sorted(points, key=lambda row: float(row["radius"])))
    note = (
        "Accuracy when every pixel may be moved by up to radius/255 against the model (projected gradient descent), "
        "mean over seeds. The method does not aim at this: it shows where its claim ends."
    )
    line, hover = lines(methods, "attack", rows, "radius", "accuracy", zero=True)
    panels = (Panel("attack", 200, (line,), {"attack": rows}, (hover,)),)
    return Figure("attack", "Under attack", note, panels if rows else (), wide=True)


# --- Figures of the error on corrupted images: by kind, by severity, one by one ---

SHOWN = {"mce": "all fifteen"} | {kind: kind for kind in KINDS}


def corrupted(found: Found, table: Table) -> list[Figure]:
    methods = list(found.groups)
    return [_kinds(found, table), _severities(found, methods), _each_corruption(found, methods)]


def _kinds(found: Found, table: Table) -> Figure:
    titles = {f"{CORRUPTIONS} {score}": f"{title} ↓" for score, title in SHOWN.items()}
    note = (
        "Share of wrong answers at the strongest severity, less is better. Bars: mean over seeds; dots: single seeds. "
        "Texture stands for what changes local statistics: contrast, elastic transform, pixelate, JPEG."
    )
    title = f"Error on {titled(table, 'corrupted images', CORRUPTIONS)}, by kind"
    return Figure("corruptions", title, note, bar_panels(found, "kinds", titles, "error"))


def _severities(found: Found, methods: list[str]) -> Figure:
    """Mean error over the corruptions of a kind, severity by severity; 0 is the clean set."""
    every = list(dict.fromkeys(corruption for s in found.students for corruption in s.errors))
    kinds = {"all": every} | {kind: [c for c in members if c in every] for kind, members in KINDS.items()}
    panels: list[Panel] = []
    for kind, members in kinds.items():
        points: Rows = []
        for s in found.students:
            held = [s.errors[c] for c in members if c in s.errors]
            if len(held) == len(members) > 0:
                levels = [fmean(errors[at] for errors in held) for at in range(SEVERITIES)]
                if (clean := s.values.get(f"{CORRUPTIONS} clean_error")) is not None:
                    points.append({"method": s.method, "severity": 0, "value": clean})
                points += [{"method": s.method, "severity": at, "value": x} for at, x in enumerate(levels, start=1)]
        if rows := means(points):
            name = f"severity{len(panels)}"
            line, hover = lines(methods, name, rows, "severity", "error", zero=True)
            ends = told([row for row in rows if row["severity"] == SEVERITIES])
            panels.append(Panel(kind, 180, (line,), {name: rows}, (hover,), f"At severity {SEVERITIES}: {ends}"))
    note = (
        "Mean error over the corruptions of a kind as they get stronger, mean over seeds; severity 0 is the clean set."
    )
    return Figure("severities", "Error as corruptions get stronger", note, tuple(panels))


def _each_corruption(found: Found, methods: list[str]) -> Figure:
    """Severity 5, corruption by corruption; against the baseline seed by seed where it is there."""
    errors = {(s.run.suite, s.run.seed): s.errors for s in found.students if s.run.name == BASELINE and s.errors}
    against = any(s.run.name != BASELINE and (s.run.suite, s.run.seed) in errors for s in found.students if s.errors)
    points: Rows = []
    for s in found.students:
        reference = errors.get((s.run.suite, s.run.seed), {})
        if against and (s.run.name == BASELINE or not reference):
            continue
        for corruption, held in s.errors.items():
            if not against or corruption in reference:
                value = held[-1] - (reference[corruption][-1] if against else 0.0)
                points.append({"method": s.method, "corruption": corruption.replace("_", " "), "value": value})
    rows = means(points)
    order = [c.replace("_", " ") for members in KINDS.values() for c in members]
    title = f"difference of the error to {BASELINE}" if against else "error"
    layers = ((upright(0.0),) if against else ()) + dots(methods, "each", "corruption", order, title)
    note = "At severity 5, mean over seeds; ordered by kind: texture, noise, blur, weather. " + (
        f"Left of the line is less error than {BASELINE}." if against else "Less is better."
    )
    height = 20 * len({row["corruption"] for row in rows}) + 20
    text = "The table below it has the numbers."
    panels = (Panel("severity 5", height, layers, {"each": rows} | ONE, told=text),)
    return Figure("each-corruption", "Corruption by corruption", note, panels if rows else (), wide=True)


def corruption_table(found: Found) -> tuple[list[str], dict[str, dict[str, float]]]:
    """Corruptions in order, and their mean error at severity 5: corruption → method → mean over seeds."""
    known = [c for members in KINDS.values() for c in members]
    every = dict.fromkeys(corruption for s in found.students for corruption in s.errors)
    names = sorted(every, key=lambda name: known.index(name) if name in known else len(known))
    table: dict[str, dict[str, float]] = {}
    for name in names:
        for method, students in found.groups.items():
            values = [s.errors[name][-1] for s in students if name in s.errors]
            if values:
                table.setdefault(name, {})[method] = fmean(values)
    return names, table
