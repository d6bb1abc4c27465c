"""The figure of a scatter: a dot per run."""

from __future__ import annotations

from operator import attrgetter

import altair as alt

from antishortcut.report.charts import PALETTE, Figure, Panel, Rows, base, colour, style, tooltips
from antishortcut.report.collect import DRAWN, Found
from antishortcut.report.columns import arrow
from antishortcut.report.scatter import Scatter

SHAPES = ("circle", "square", "triangle-up")  # of seven colours, then they come again


def scatter_figure(scatter: Scatter, found: Found) -> Figure:
    """Colours mean suites; methods when there is one suite, as elsewhere on the page unless these are too many."""
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
    layer = base("scatter").mark_point(size=55, filled=True, opacity=0.8).encode(
        x=alt.X("x:Q", title=f"{x} {arrow(x)}".rstrip(), scale=room, axis=axis),
        y=alt.Y("y:Q", title=f"{y} {arrow(y)}".rstrip(), scale=room, axis=axis),
        color=colour(looks, "group"),
        shape=alt.Shape("group:N", scale=alt.Scale(domain=names, range=shapes), title=None),
        tooltip=[
            *tooltips("method:N", "seed:N"),
            alt.Tooltip("x:Q", title=x, format=".3f"),
            alt.Tooltip("y:Q", title=y, format=".3f"),
        ],
    )  # fmt: skip
    told = "; ".join(" ".join(line) for line in scatter.numbers())
    title = f"{y} against {x}"
    panel = Panel(title, 340, (layer,), {"scatter": rows}, told=told)
    note = f"A dot is a run, a colour a {'suite' if several else 'method'}."
    key = {
        name if shape == SHAPES[0] else f"{name} ({shape.partition('-')[0]})": looks[name]
        for name, shape in zip(names, shapes, strict=True)
    }
    return Figure("scatter", title, note, (panel,), key, wide=True)
