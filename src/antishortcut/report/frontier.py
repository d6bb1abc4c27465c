"""The frontier of the dial: what its levels cost on ordinary images, and what they bring where a shortcut lies."""

from collections.abc import Iterable

import altair as alt

from antishortcut.config.recipe import DIALS
from antishortcut.report.charts import Figure, Panel, Rows, base, colour, tooltips
from antishortcut.report.collect import BASELINE, Collected, StudentRun
from antishortcut.report.stats import summary

METHOD = "contrast+hint"
ORDINARY = ("test accuracy", "iid accuracy")  # the first that all have
FEARED = ("conflict accuracy", "without accuracy", "uncorrelated accuracy", "hard_accuracy")
KINDS = {"chosen": "#D55E00", "another level": "#0072B2", "kd": "#8A8A8A"}


def frontier_figure(runs: Collected) -> Figure:
    """A dot per level, the mean over seeds, joined from mild to strong; a panel per set that is feared.

    Levels are runs of contrast+hint with different settings of the dial; the chosen one is called contrast+hint.
    """
    note = "Up is better where the shortcut lies, right is better on ordinary images. Means over seeds."
    levels = _levels(runs.students)
    empty = Figure("frontier", "What the dial's levels cost and bring", note)
    shared = [set(student.values) for group in levels.values() for student in group]
    x = next((column for column in ORDINARY if all(column in columns for columns in shared)), None)
    if len(levels) < 2 or x is None:
        return empty
    baseline = [student for student in runs.students if student.run.name == BASELINE and x in student.values]
    panels = []
    for y in (column for column in FEARED if all(column in columns for columns in shared)):
        rows: Rows = [_row(group, x, y, order) for order, group in enumerate(levels.values())]
        known = [student for student in baseline if y in student.values]
        rows += [_row(known, x, y, -1) | {"kind": "kd"}] if known else []
        panels.append(_panel(rows, x, y))
    return Figure(empty.name, empty.title, note, panels, KINDS)


def _levels(students: Iterable[StudentRun]) -> dict[str, list[StudentRun]]:
    """Runs by their settings of the dial, from none to strong."""
    groups: dict[tuple[float, ...], list[StudentRun]] = {}
    for student in students:
        if student.run.method in DIALS:
            setting = tuple(float(student.run.options.get(key, 0)) for key in DIALS[student.run.method])
            groups.setdefault(setting, []).append(student)
    return {str(setting): groups[setting] for setting in sorted(groups)}


def _row(group: list[StudentRun], x: str, y: str, order: int) -> dict[str, object]:
    names = sorted({student.run.name for student in group})
    level = next((name.removeprefix(f"{METHOD}-") for name in names if name != METHOD), names[0])
    return {
        "level": "kd" if order < 0 else level,
        "kind": "chosen" if METHOD in names else "another level",
        "x": summary([student.values[x] for student in group]).mean,
        "y": summary([student.values[y] for student in group]).mean,
        "seeds": len({student.run.seed for student in group}),
        "order": order,
    }


def _panel(rows: Rows, x: str, y: str) -> Panel:
    scale = alt.Scale(zero=False, padding=12)
    place = {
        "x": alt.X("x:Q", title=x, scale=scale, axis=alt.Axis(tickCount=5, format="~g")),
        "y": alt.Y("y:Q", title=y, scale=scale, axis=alt.Axis(tickCount=5, format="~g")),
    }
    line = base("levels").mark_line(color=KINDS["another level"], opacity=0.5).encode(**place, order="order:Q")
    dots = base("dots").mark_point(size=90, filled=True, opacity=1).encode(
        **place, color=colour(KINDS, "kind"), tooltip=tooltips("level:N", "seeds:Q", x=".3f", y=".3f")
    )  # fmt: skip
    text = base("dots").mark_text(dy=-12, fontSize=11).encode(**place, text="level:N")
    marked = [(f"{row['level']}{' (chosen)' * (row['kind'] == 'chosen')}", row) for row in rows]
    words = "; ".join(f"{name}: {row['x']:.3f}, {row['y']:.3f}" for name, row in marked)
    data = {"levels": [row for row in rows if row["order"] >= 0], "dots": rows}
    return Panel(f"{y} against {x}", 260, (line, dots, text), data, alt=words)
