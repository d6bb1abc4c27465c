"""audit.json → audit.html and figures/. One file that opens anywhere, offline, and asks nothing of anyone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import altair as alt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from antishortcut.fileio import atomic_write
from antishortcut.report.charts import (
    GREY,
    ONE,
    PALETTE,
    RANDOM,
    Figure,
    Panel,
    Rows,
    base,
    colour,
    draw,
    tooltips,
    upright,
)
from antishortcut.report.direction_reader import Directions, Picture
from antishortcut.report.page import libraries
from antishortcut.report.reader import readable
from antishortcut.report.trajectory_figures import bar_chart, first_to_last, line_chart, trajectory, used

Tree = Mapping[str, Any]
ENDS = {"high": "one end", "low": "the opposite end"}
KINDS = ("displaced", "abandoned")
COURSE = {  # key in audit.json → word, colour
    "shortcut": ("displaced directions", PALETTE[3]),
    "abandoned": ("abandoned directions", PALETTE[4]),
    "robust": ("T_final’s principal directions", PALETTE[0]),
    "accuracy": ("accuracy", GREY),
}
STATES = {"early": ("T_early", PALETTE[1]), "final": ("T_final", PALETTE[0])}


def write_page(found: Tree, folder: Path) -> None:
    """The page and its figures in `folder`, where the pictures are."""
    found = readable(found)
    figures = drawn(found)
    for figure in figures.values():
        draw(figure, folder / "figures")
    with atomic_write(folder / "audit.html") as file:
        file.write(render(found, figures, folder).encode(errors="replace"))


def drawn(found: Tree) -> dict[str, Figure]:
    """The figures there are numbers for, by name."""
    shared = [figure for figure in trajectory(_directions(found), 0) if figure.name != "energy"]
    own = [_course(found), _each(found), *([_student(found)] if "student" in found else [])]
    return {figure.name: figure for figure in (*own, *shared) if figure.panels}


def render(found: Tree, figures: Mapping[str, Figure], folder: Path) -> str:
    """Everything from outside is escaped in the template, in text and in JSON alike."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"share": _share, "degrees": _degrees, "times": _times, "states": _states}
    scripts = [Markup(libraries()), Markup(environment.get_template("script.html").render())]
    panels = [panel for figure in figures.values() for panel in figure.panels]
    charts = {id(panel): number for number, panel in enumerate(panels)}
    page = SimpleNamespace(
        found=found,
        figures=figures,
        chart=lambda panel: charts[id(panel)],
        data={"methods": [], "charts": [panel.spec() for panel in panels]},
        told={part: [each for each in found["findings"] if each["part"] == part] for part in _parts(found)},
        pictures=_pictures(found, folder),
        kinds=KINDS,
        ends=ENDS,
        scripts=scripts,
        policy=_policy([str(script) for script in scripts]),
        made_by=f"antishortcut {version('antishortcut')}",
    )
    return environment.get_template("audit.html").render(page=page)


def _parts(found: Tree) -> list[str]:
    return list(dict.fromkeys(each["part"] for each in found["findings"]))


def _policy(scripts: list[str]) -> str:
    """Only the page's own scripts run, known by their hashes; nothing is fetched."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _pictures(found: Tree, folder: Path) -> dict[str, Picture]:
    """The strips by their names in audit.json, ready to stand in the page."""
    names = [one[end] for each in found["directions"].values() for one in each for end in ENDS if end in one]
    return {name: Picture.of((folder / name).read_bytes()) for name in names}


def _course(found: Tree) -> Figure:
    """Energy in the directions along all states that were given, in their order."""
    states = [row["state"] for row in found["energy"]]
    rows: Rows = [
        {"state": row["state"], "what": word, "value": round(row[key], 5)}
        for row in found["energy"]
        for key, (word, _) in COURSE.items()
        if row[key] is not None
    ]
    key = used(dict(COURSE.values()), rows)
    axis = alt.Axis(labelAngle=0, labelLimit=110)
    x = alt.X("state:N", sort=states, title="state", axis=axis)
    share = alt.Axis(format="~%", tickCount=5)
    y = alt.Y("value:Q", title="share", scale=alt.Scale(domain=[0, 1]), axis=share)
    tips = [*tooltips("state:N", "what:N"), alt.Tooltip("value:Q", format=".1%")]
    random = found["energy_random"]
    note = (
        f"Mean share of an image’s energy in the directions of T_early = {found['early']}, in every state given. They "
        "were chosen for this state, so a peak there is no surprise; the candidates below are judged on other images. "
        f"Red line: random directions ({_share(random)})."
    )
    layers = line_chart("course", x, y, key, tips, random)
    panel = Panel("energy", 240, layers, {"course": rows} | ONE, told=first_to_last(rows, key, digits=3))
    return Figure("course", "Energy along the states", note, (panel,) if rows else (), key, wide=True)


def _each(found: Tree) -> Figure:
    """Every direction's energy early against final."""
    panels = []
    for kind in KINDS:
        directions = found["directions"][kind]
        rows: Rows = [
            {"direction": str(one["number"]), "state": word, "share": one[f"energy_{state}"]}
            for one in directions
            for state, (word, _) in STATES.items()
            if one[f"energy_{state}"] is not None
        ]
        if not rows:
            continue
        start = base(f"each_{kind}").encode(
            y=alt.Y("direction:N", title="direction", sort=None),
            yOffset=alt.YOffset("state:N", sort=[word for word, _ in STATES.values()]),
        )
        most = max(row["share"] for row in rows)
        room = alt.Scale(domain=[0, 1.2 * most], nice=False)
        across = alt.X("share:Q", title="share of the energy", scale=room, axis=alt.Axis(format="~%", tickCount=4))
        paint, form = colour(dict(STATES.values()), "state"), ".1%" if most > 0.1 else ".2%"
        tips = [*tooltips("direction:N", "state:N"), alt.Tooltip("share:Q", format=".2%")]
        layers = bar_chart(start, across, paint, tips, size=13, font=10, dx=4, form=form)
        layers += (upright(directions[0]["energy_random"], RANDOM),)
        message = "; ".join(f"direction {row['direction']}, {row['state']}: {row['share']:.1%}" for row in rows)
        title = f"{kind} directions"
        panels.append(Panel(title, 40 * len(directions) + 20, layers, {f"each_{kind}": rows} | ONE, told=message))
    note = "The share of all energy along each direction. Red line: a random direction. The two scales differ."
    return Figure("directions", "Early against final", note, tuple(panels), dict(STATES.values()), columns=2)


def _student(found: Tree) -> Figure:
    """The student's projection beside its teacher's states; the paper's two points and random values as they are."""
    held = found["student"]
    names = {"raw": "student, raw", "aligned": "student, aligned", "early": "T_early", "final": "T_final"}
    outputs = [(names[key], held["projections"][key], "here") for key in names if key in held["projections"]]
    rows: Rows = [
        {"who": who, "projection": each["displaced"], "random": each["random"], "where": where}
        for who, each, where in outputs
        if each["displaced"] is not None
    ]
    for point in held["paper"] if rows else ():
        who = f"paper, {point['pair'].partition(',')[0]}"
        rows.append({"who": who, "projection": point["projection"], "random": point["random"], "where": "the paper"})
    key = {"here": PALETTE[0], "the paper": GREY}
    start = base("student").encode(y=alt.Y("who:N", sort=None, title=None, axis=alt.Axis(labelLimit=220)))
    tips = [alt.Tooltip("who:N"), alt.Tooltip("projection:Q", format=".3f"), alt.Tooltip("random:Q", format=".3f")]
    axis = alt.Axis(tickCount=5, format="~g")
    across = alt.X("projection:Q", title="mean projection", scale=alt.Scale(domain=[0, 1]), axis=axis)
    bars = bar_chart(start, across, colour(key, "where"), tips, size=15, font=11, dx=6, form=".2f")
    tick = start.mark_tick(thickness=3, size=22, color=RANDOM, opacity=1).encode(x="random:Q", tooltip=tips)
    message = "; ".join(f"{row['who']} {row['projection']:.2f}, random {row['random']:.2f}" for row in rows)
    note = (
        "Mean length of the normalised features in the displaced directions. Red: that of a random direction, √(K/D), "
        "which depends on the width."
    )
    panel = Panel("projection", 34 * len(rows) + 10, (*bars, tick), {"student": rows}, told=message)
    return Figure("student", "The student’s projection", note, (panel,) if rows else (), key, wide=True)


def _directions(found: Tree) -> Directions:
    """As the report's figures of a teacher take it."""
    spectrum, boot = found["spectrum"], found["bootstrap"]
    pairs = {pair: tuple(each["each"]) for pair, each in found["angles"].items() if pair != "random"}
    gaps = {kind: gap["absolute"] for kind, gap in spectrum["eigengap"].items()}
    return Directions(
        teacher=found.get("model", ""),
        early=found["early"],
        title=found.get("model", ""),
        facts={key: float(found[key]) for key in ("count", "width", "K")},
        angles={pair: each for pair, each in pairs.items() if each},
        angle_random=found["angles"]["random"],
        spectrum={kind: tuple(spectrum[kind]) for kind in ("uncentred", "centred") if any(spectrum[kind])},
        gaps=_there(gaps),
        bootstrap=_there({key: boot[key] for key in ("mean", "std", "pairs", "parts", "random")}),
        batches=tuple(_there(row) for row in found["batches"]),
        batches_random=found["batches_random"],
        energy=(),
        energy_random=None,
        each=(),
        pooled={kind: states for kind, states in found.get("explained", {}).items() if _whole(states)},
    )


def _there(values: Mapping[str, float | None]) -> dict[str, float]:
    return {key: value for key, value in values.items() if value is not None}


def _whole(states: Mapping[str, Mapping[str, float | None]]) -> bool:
    return all(value is not None for shares in states.values() for value in shares.values())


def _share(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value * 100:.{digits}f}\u00a0%".replace("-", "−")  # kept on one line


def _degrees(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}°"


def _times(value: float | None) -> str:
    return "–" if value is None else f"×\u00a0{value:.2f}"


def _states(text: str) -> Markup:
    """T_early and T_final as one writes them; all else as it is."""
    written = str(escape(text)).replace("T_early", "T<sub>early</sub>").replace("T_final", "T<sub>final</sub>")
    return Markup(written)
