"""Figures of the error on corrupted images: by kind, by severity, one by one."""

from __future__ import annotations

from statistics import fmean

from antishortcut.report.charts import ONE, Figure, Panel, Rows, lines, means, upright
from antishortcut.report.collect import BASELINE, Found
from antishortcut.report.columns import KINDS
from antishortcut.report.robustness import bar_panels, dots, titled, told
from antishortcut.report.scores import CORRUPTIONS, SEVERITIES
from antishortcut.report.table import Table

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
        theirs = errors.get((s.run.suite, s.run.seed), {})
        if against and (s.run.name == BASELINE or not theirs):
            continue
        for corruption, held in s.errors.items():
            if not against or corruption in theirs:
                value = held[-1] - (theirs[corruption][-1] if against else 0.0)
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
