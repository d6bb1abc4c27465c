"""One description of each chart, for the page (interactive) and for figures/ (SVG and PNG)."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
import vl_convert

from antishortcut.fileio import atomic_write, remove_leftovers
from antishortcut.report.reader import readable

# Okabe & Ito's colours that work on white and on black: no black, no yellow, a grey. Then they come again, dashed.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8A8A8A")
DASHES = ([1, 0], [6, 3], [2, 2])
CUES = {"shape": "#0072B2", "texture": "#E69F00", "neither": "#8A8A8A"}
GREY = "#8A8A8A"
RANDOM = "#C03F3F"  # the line at which a random direction stands
LOOK: dict[str, Any] = {
    "view": {"stroke": None},
    "axis": {"titleFontWeight": "normal", "titlePadding": 8, "labelFontSize": 11, "titleFontSize": 11},
    "title": {"anchor": "start", "fontSize": 13},
    "rule": {"aria": False},  # a line without a name; the chart has its numbers in words
}
ENTRIES = 30  # of a legend, unless it is told to have more
WORD = 20  # characters: longer words of a legend stand four in a row
SINGLE = 60  # runs whose single seeds are drawn; more make a page slow and nothing clearer
BAR = 26  # pixels of a bar with its gap
Rows = list[dict[str, Any]]
Layers = tuple[alt.Chart, ...]
ONE: dict[str, Rows] = {"one": [{"at": 1}]}  # for a mark that is drawn once


@dataclass(frozen=True)
class Panel:
    """Layers that name their data, and the data by name. Rows with a `method` go when it is switched off."""

    title: str
    height: int
    layers: Layers
    data: dict[str, Rows]
    hover: Layers = ()  # only on the page: thousands of invisible points make a PNG take half a minute
    alt: str = ""  # the numbers in words

    def spec(self) -> dict[str, Any]:
        """Vega-Lite for the page, as wide as its place there; the page has one legend for all its charts."""
        size = {"height": self.height, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
        look = LOOK | {"background": None, "font": "system-ui, sans-serif", "legend": {"disable": True}}
        layers = {"$schema": alt.SCHEMA_URL, "layer": _layers((*self.layers, *self.hover))}
        return layers | size | {"datasets": self.data, "config": look}


@dataclass(frozen=True)
class Figure:
    """Panels that belong together."""

    name: str  # of its files
    title: str
    note: str
    panels: Sequence[Panel] = ()
    key: Mapping[str, str] = field(default_factory=dict)  # word → colour, where colours do not mean methods
    method: str | None = None  # the only one it is about
    folded: bool = False  # behind a line that opens it
    opened: bool = False
    wide: bool = False  # a panel takes a whole row
    columns: int = 3  # of its files


def _layers(charts: Iterable[alt.Chart]) -> list[dict[str, Any]]:
    """Layered by hand and unchecked: altair's own way takes seconds for a page. A test draws each."""
    result = (chart.to_dict(validate=False) for chart in charts)
    return [{key: value for key, value in layer.items() if key not in ("$schema", "config")} for layer in result]


def style(methods: Iterable[str]) -> dict[str, tuple[str, list[int]]]:
    """Colour and dashes of each method, the same in every chart."""
    return {
        method: (PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE) % len(DASHES)])
        for index, method in enumerate(methods)
    }


def draw_all(figures: Iterable[Figure], folder: Path) -> None:
    """figures/<name>.svg and .png: the panels side by side, with a legend. Drawn again only if something changed."""
    remove_leftovers(folder)
    due = []
    for figure in figures:
        spec = readable(_whole(figure))  # a character that XML does not allow would end the process
        content = json.dumps([spec, version("vl-convert-python")]).encode()
        mark = f"<!-- {hashlib.sha256(content).hexdigest()} -->\n".encode()
        svg_path, png_path = (folder / f"{figure.name}.{ending}" for ending in ("svg", "png"))
        if not (png_path.is_file() and svg_path.is_file() and svg_path.read_bytes().endswith(mark)):
            due.append((svg_path, png_path, spec, mark))
    with ThreadPoolExecutor(1) as pool:  # one thread draws the next while this one converts the last
        drawings = pool.map(vl_convert.vegalite_to_svg, [spec for _, _, spec, _ in due])
        for (svg_path, png_path, _, mark), svg in zip(due, drawings, strict=True):
            with atomic_write(png_path) as file:
                file.write(vl_convert.svg_to_png(svg, scale=2))
            with atomic_write(svg_path) as file:  # last: its mark says that both are there
                file.write(svg.encode() + b"\n" + mark)


def _whole(figure: Figure) -> dict[str, Any]:
    width = 560 if len(figure.panels) == 1 or figure.wide else 260
    legend = {"orient": "bottom", "columns": 6, "symbolType": "stroke", "symbolStrokeWidth": 3, "labelFontSize": 12}
    panels: Rows = [
        {"layer": _layers(panel.layers), "width": width, "height": panel.height, "title": panel.title}
        for panel in figure.panels
    ]
    coloured = [layer for panel in panels for layer in panel["layer"] if "color" in layer["encoding"]]
    if figure.key and "line" not in {layer["mark"]["type"] for layer in coloured}:
        legend |= {"symbolType": "square", "symbolStrokeWidth": 0}  # of filled marks; a stroke would not be seen
    legend |= {"symbolLimit": len(figure.key)} if len(figure.key) > ENTRIES else {}
    if max(map(len, figure.key), default=0) > WORD:
        legend |= {"columns": 4, "labelLimit": 320}
    return {
        "$schema": alt.SCHEMA_URL,
        "concat": panels,
        "columns": min(figure.columns, len(figure.panels)),
        "resolve": {"scale": {"color": "shared", "strokeDash": "shared"}},
        "config": LOOK | {"font": "sans-serif", "legend": legend},
        "datasets": {name: rows for panel in figure.panels for name, rows in panel.data.items()},
    }


# --- marks ---


def means(points: Rows) -> Rows:
    """One row for those that differ in their value alone: mean over seeds, deviation, and how many they are."""
    if not points:
        return []
    frame, value = pl.DataFrame(points), pl.col("value")
    groups = frame.group_by([name for name in frame.columns if name != "value"], maintain_order=True)
    mean, std = value.mean().round_sig_figs(5), value.std().round_sig_figs(3).alias("std")
    rows = groups.agg(mean, std, pl.len().alias("seeds")).to_dicts()
    return [{key: x for key, x in row.items() if x is not None} for row in rows]  # one seed has no deviation


def mean_texts(rows: Rows) -> str:
    """Means of methods in words, for the alt text of a chart."""
    values = [{"method": row["method"], "value": row["value"]} for row in rows]
    return ", ".join(f"{row['method']} {row['value']:.3f}" for row in means(values))


def base(data: str) -> Any:
    """A chart of named data; Any, as altair is not typed here."""
    return alt.Chart(alt.NamedData(name=data))


def tooltips(*fields: str, **formats: str) -> list[alt.Tooltip]:
    """Spelled out: altair looks a bare string up among thousands of schemas. `formats`: number → its format."""
    return [*map(alt.Tooltip, fields), *(alt.Tooltip(f"{name}:Q", format=form) for name, form in formats.items())]


def colour(names: Mapping[str, str], field: str = "method") -> alt.Color:
    """A fixed colour for each word of a field."""
    scale = alt.Scale(domain=list(names), range=list(names.values()))
    return alt.Color(f"{field}:N", scale=scale, title=None)


def method_colour(methods: Sequence[str]) -> alt.Color:
    return colour({method: paint for method, (paint, _) in style(methods).items()})


def axes(data: str, x: str, title: str, *, zero: bool = False) -> Any:
    """x, named as its field, against `value`."""
    across = alt.X(f"{x}:Q", title=x, axis=alt.Axis(format="~f", grid=False, tickCount=6))
    up = alt.Y("value:Q", title=title, scale=alt.Scale(zero=zero), axis=alt.Axis(tickCount=5))
    return base(data).encode(x=across, y=up)


def add_lines(
    panel: Panel, methods: Sequence[str], x: str, label: str, *, zero: bool = False, step: bool = False
) -> Panel:
    """The panel with a line per method over the field x, and its numbers where a pointer is near.

    The first rows of its data have method, x and value.
    """
    name, rows = next(iter(panel.data.items()))
    start = axes(name, x, label, zero=zero).encode(color=method_colour(methods))
    dashes = alt.Scale(domain=list(methods), range=[dash for _, dash in style(methods).values()])
    single = len({row[x] for row in rows}) == 1  # no line goes through one point
    line = start.mark_line(strokeWidth=2.2, point=single, interpolate="step" if step else "linear").encode(
        strokeDash=alt.StrokeDash("method:N", scale=dashes, title=None)
    )
    near = alt.selection_point(
        name=f"near_{name}", on="pointerover", clear="pointerout", nearest=True, empty=False, fields=["method", x]
    )
    # the whole row as tooltip: a chosen field that is a word says "undefined" near a point (vega-lite#9707)
    dots = start.mark_point(size=50, filled=True, tooltip=alt.TooltipContent("data")).encode(
        fillOpacity=alt.when(near).then(alt.value(1)).otherwise(alt.value(0))
    )
    return replace(panel, layers=(*panel.layers, line), hover=(dots.add_params(near),))


def line_figure(
    figure: Figure, rows: Rows, x: alt.X, y: alt.Y, colours: Mapping[str, str], random: float | None, digits: int
) -> Figure:
    """The figure with a line for each word of `colours` that the field `what` has, and a red one for random directions.

    Rows have what, value, and the field of x.
    """
    ends = {what: [row["value"] for row in rows if row["what"] == what] for what in colours}
    text = "; ".join(f"{what} from {e[0]:.{digits}f} to {e[-1]:.{digits}f}" for what, e in ends.items() if e)
    key = {what: paint for what, paint in colours.items() if ends[what]}
    tips = tooltips("what:N", str(x.shorthand), value=f".{digits}f")
    line = base(figure.name).mark_line(point=True, strokeWidth=2.2)
    layers: Layers = (line.encode(x=x, y=y, color=colour(key, "what"), tooltip=tips),)
    if random is not None:
        layers += (rule(RANDOM).encode(y=alt.YDatum(random)),)
    panel = Panel(figure.title, 230, layers, {figure.name: rows} | ONE, alt=text)
    return replace(figure, panels=[panel] if rows else [], key=key, wide=True)


def bar_panel(title: str, methods: Sequence[str], data: str, rows: Rows, label: str) -> Panel:
    """A bar per method from zero to 1, its mean in figures, and a dot per seed, or their deviation when they are many.

    Rows have method, seed and value. Marks are clipped: a score of 1e9 would make a picture as wide as that.
    """
    start = base(data).encode(y=alt.Y("method:N", sort=list(methods), title=None))
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format="~g")
    scale = alt.Scale(domain=[0, 1.2])  # room for figures
    mean = alt.X("mean(value):Q", title=label, scale=scale, axis=axis)
    count = [alt.Tooltip("mean(value):Q", title="mean", format=".3f"), alt.Tooltip("count():Q", title="seeds")]
    paint = method_colour(methods).legend(None)  # the axis names them
    bar = start.mark_bar(size=17, clip=True).encode(x=mean, color=paint, tooltip=[alt.Tooltip("method:N"), *count])
    figure = alt.Text("mean(value):Q", format=".3f")
    text = start.mark_text(align="left", dx=8, fontSize=11, clip=True).encode(x=alt.X("max(value):Q"), text=figure)
    if len(rows) > SINGLE:
        spread = start.mark_errorbar(extent="stdev", color="#666", thickness=1.5, clip=True)
        seeds = spread.encode(x=alt.X("value:Q", title=label))
    else:
        dots = start.mark_point(size=22, filled=True, fill="white", stroke="#222", strokeWidth=1, opacity=1, clip=True)
        tips = [*tooltips("method:N", "seed:N"), alt.Tooltip("value:Q", title=label, format=".3f")]
        seeds = dots.encode(x=alt.X("value:Q"), tooltip=tips)
    return Panel(title, BAR * len(methods), (bar, text, seeds), {data: rows}, alt=mean_texts(rows))


def labelled_bars(
    start: alt.Chart, x: alt.X, paint: alt.Color, tips: list[alt.Tooltip], form: str, size: int = 15
) -> Layers:
    """Bars with their values in figures behind them."""
    value = str(x.shorthand)
    text = start.mark_text(align="left", dx=4, fontSize=11).encode(x=alt.X(value), text=alt.Text(value, format=form))
    return start.mark_bar(size=size).encode(x=x, color=paint, tooltip=tips), text


def dots(methods: Sequence[str], data: str, field: str, order: list[str], title: str) -> Any:
    """A row per word of a field, a dot per method."""
    y = alt.Y(f"{field}:N", sort=order or None, title=None, axis=alt.Axis(grid=True, labelLimit=220))
    x = alt.X("value:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6, format="~g"))
    tips = tooltips("method:N", f"{field}:N", "seeds:Q", value=".3f")
    start = base(data).mark_point(size=70, filled=True, opacity=0.9)
    return start.encode(y=y, x=x, color=method_colour(methods), tooltip=tips)


def rule(paint: str = GREY) -> Any:
    """A dashed line; its panel has ONE among its data."""
    return base("one").mark_rule(strokeDash=[4, 3], color=paint, strokeWidth=1.4)


def upright(value: float, paint: str = GREY) -> Any:
    """A dashed line at one value of x."""
    return rule(paint).encode(x=alt.XDatum(value))
