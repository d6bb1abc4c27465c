"""One description of each chart, for the page (interactive) and for figures/ (SVG and PNG)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
import vl_convert

from antishortcut.folder import replacing
from antishortcut.report.collect import Found

# Okabe & Ito's colours that hold on white and on black: no black, no yellow, a grey. Then they come again, dashed.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8A8A8A")
DASHES = ([1, 0], [6, 3], [2, 2])
POINTS = 20_000  # in the lines of single seeds; more make a page slow and no line clearer
LOOK: dict[str, Any] = {
    "view": {"stroke": None},
    "axis": {"titleFontWeight": "normal", "titlePadding": 8, "labelFontSize": 11, "titleFontSize": 11},
    "title": {"anchor": "start", "fontSize": 13},
}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Panel:
    """Layers that name their data, and the data by name. Every row of the data says its `method`."""

    title: str
    height: int
    layers: tuple[alt.Chart, ...]
    hover: tuple[alt.Chart, ...]  # only on the page: unseen points by the thousand cost a PNG half a minute
    data: dict[str, Rows]

    def still(self, width: int) -> alt.LayerChart | alt.FacetChart:
        return alt.layer(*self.layers).properties(width=width, height=self.height, title=self.title)

    def spec(self) -> dict[str, Any]:
        """Vega-Lite for the page, as wide as its place there; the page has one legend for all its charts."""
        fit = alt.AutoSizeParams(type="fit-x", contains="padding")
        chart = alt.layer(*self.layers, *self.hover).properties(height=self.height, width="container", autosize=fit)
        look = LOOK | {"background": None, "font": "system-ui, sans-serif", "legend": {"disable": True}}
        return dict(chart.to_dict()) | {"datasets": self.data, "config": look}


@dataclass(frozen=True)
class Figure:
    """Panels that belong together."""

    name: str
    title: str
    note: str
    panels: tuple[Panel, ...]


def style(methods: Iterable[str]) -> dict[str, tuple[str, list[int]]]:
    """Colour and dashes of each method, the same in every chart."""
    return {
        method: (PALETTE[number % len(PALETTE)], DASHES[number // len(PALETTE) % len(DASHES)])
        for number, method in enumerate(methods)
    }


def figures(found: Found) -> list[Figure]:
    """Accuracy over epochs, losses over time, accuracy by test set; those there are data for."""
    methods = list(found.groups)
    drawn = [_accuracy(found, methods), _losses(found, methods), _scores(found, methods)]
    return [figure for figure in drawn if figure.panels]


def draw(figure: Figure, folder: Path) -> None:
    """figures/<name>.svg and .png: the panels side by side, with a legend."""
    width = 560 if len(figure.panels) == 1 else 260
    whole = alt.concat(*(panel.still(width) for panel in figure.panels), columns=3)
    spec = dict(whole.resolve_scale(color="shared", strokeDash="shared").to_dict())
    legend = {"orient": "bottom", "columns": 6, "symbolType": "stroke", "symbolStrokeWidth": 3, "labelFontSize": 12}
    spec["config"] = LOOK | {"font": "sans-serif", "legend": legend}
    spec["datasets"] = {name: rows for panel in figure.panels for name, rows in panel.data.items()}
    svg = vl_convert.vegalite_to_svg(spec)
    for ending, content in (("svg", svg.encode()), ("png", vl_convert.svg_to_png(svg, scale=2))):
        with replacing(folder / f"{figure.name}.{ending}") as file:
            file.write(content)


def _accuracy(found: Found, methods: list[str]) -> Figure:
    points = [(s.method, str(s.run.seed), epoch, value) for s in found.students for epoch, value in s.curve]
    panels: tuple[Panel, ...] = ()
    if points:
        schema = {"method": pl.String, "seed": pl.String, "epoch": pl.Float64, "value": pl.Float64}
        seeds = pl.DataFrame(points, schema=schema, orient="row")
        data = {"mean": _means(seeds), "seeds": _thinned(seeds)}
        thin = _line(methods, "seeds", "accuracy").mark_line(strokeWidth=1, strokeOpacity=0.5).encode(detail="seed:N")
        bold, hover = _lines(methods, "mean", data["mean"], "accuracy")
        panels = (Panel(f"{_judges(found)} set", 300, (thin, bold), (hover,), data),)
    note = "Bold: mean over seeds; thin: single seeds. Point at a line for its numbers."
    return Figure("accuracy", f"Accuracy on the {_judges(found)} set during training", note, panels)


def _losses(found: Found, methods: list[str]) -> Figure:
    points = [(s.method, term, epoch, value) for s in found.students for epoch, term, value in s.terms]
    schema = {"method": pl.String, "term": pl.String, "epoch": pl.Float64, "value": pl.Float64}
    panels: list[Panel] = []
    for (term,), part in pl.DataFrame(points, schema=schema, orient="row").group_by("term", maintain_order=True):
        name = f"term{len(panels)}"
        rows = _means(part)
        line, hover = _lines(methods, name, rows, "loss")
        panels.append(Panel(str(term), 160, (line,), (hover,), {name: rows}))
    note = "The weighted terms that are summed, mean over seeds. A method shows where it has the term."
    return Figure("losses", "Loss terms over time", note, tuple(panels))


def _scores(found: Found, methods: list[str]) -> Figure:
    columns = {name for s in found.students for name in s.values if name.endswith(" accuracy")}
    shown = {name: name.removesuffix(" accuracy") for name in sorted(columns)} or {"last": _judges(found)}
    panels: list[Panel] = []
    for column, title in shown.items():
        rows = [
            {"method": s.method, "seed": str(s.run.seed), "value": s.values[column]}
            for s in found.students
            if column in s.values
        ]
        if rows:
            name = f"scores{len(panels)}"
            panels.append(Panel(title, 26 * len(methods), _bars(methods, name), (), {name: rows}))
    return Figure("scores", "Accuracy by test set", "Bars: mean over seeds; dots: single seeds.", tuple(panels))


def _judges(found: Found) -> str:
    return " / ".join(dict.fromkeys(student.judge for student in found.students))


def _means(seeds: pl.DataFrame) -> Rows:
    value = pl.col("value")
    means = seeds.group_by("method", "epoch").agg(value.mean(), value.std().alias("std"), pl.len().alias("seeds"))
    rows = means.with_columns(value.round_sig_figs(5), pl.col("std").round_sig_figs(3)).sort("method", "epoch")
    return [{key: x for key, x in row.items() if x is not None} for row in rows.iter_rows(named=True)]


def _thinned(seeds: pl.DataFrame) -> Rows:
    """Every n-th epoch of all seeds' lines, counted from the last, so that POINTS are enough."""
    every = -(-len(seeds) // POINTS)
    rank = pl.col("epoch").rank("dense", descending=True).over("method", "seed") - 1  # 0 is the last epoch
    return seeds.filter(rank % every == 0).with_columns(pl.col("value").round_sig_figs(5)).to_dicts()


def _colour(methods: list[str]) -> alt.Color:
    scale = alt.Scale(domain=methods, range=[colour for colour, _ in style(methods).values()])
    return alt.Color("method:N", scale=scale, title=None)


def _line(methods: list[str], data: str, title: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name=data)).encode(
        x=alt.X("epoch:Q", title="epoch", axis=alt.Axis(format="~f", grid=False, tickCount=6)),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
        color=_colour(methods),
    )


def _lines(methods: list[str], data: str, rows: Rows, title: str) -> tuple[alt.Chart, alt.Chart]:
    """A line per method, and its numbers where a pointer is near."""
    base = _line(methods, data, title)
    dashes = alt.Scale(domain=methods, range=[dash for _, dash in style(methods).values()])
    lone = len({row["epoch"] for row in rows}) == 1  # no line goes through one point
    line = base.mark_line(strokeWidth=2.2, point=lone).encode(
        strokeDash=alt.StrokeDash("method:N", scale=dashes, title=None)
    )
    near = alt.selection_point(
        name=f"near_{data}", on="pointerover", clear="pointerout", nearest=True, empty=False, fields=["method", "epoch"]
    )
    # the whole row as tooltip: a chosen field that is a word says "undefined" near a point (vega-lite#9707)
    dots = base.mark_point(size=50, filled=True, tooltip=alt.TooltipContent("data")).encode(
        fillOpacity=alt.when(near).then(alt.value(1)).otherwise(alt.value(0))
    )
    return line, dots.add_params(near)


def _bars(methods: list[str], data: str) -> tuple[alt.Chart, ...]:
    """A bar per method from zero, its mean in figures, and a dot per seed."""
    base = alt.Chart(alt.NamedData(name=data)).encode(y=alt.Y("method:N", sort=methods, title=None))
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format="~g")
    mean = alt.X("mean(value):Q", title="accuracy", scale=alt.Scale(domain=[0, 1.15]), axis=axis)  # room for figures
    count = [alt.Tooltip("mean(value):Q", title="mean", format=".3f"), alt.Tooltip("count():Q", title="seeds")]
    colour = _colour(methods).legend(None)  # the axis names them
    bar = base.mark_bar(size=17).encode(x=mean, color=colour, tooltip=["method:N", *count])
    figure = alt.Text("mean(value):Q", format=".3f")
    text = base.mark_text(align="left", dx=8, fontSize=11).encode(x=alt.X("max(value):Q"), text=figure)
    dots = base.mark_point(size=22, filled=True, fill="white", stroke="#222", strokeWidth=1, opacity=1)
    tips = ["method:N", "seed:N", alt.Tooltip("value:Q", title="accuracy", format=".3f")]
    return bar, text, dots.encode(x="value:Q", tooltip=tips)
