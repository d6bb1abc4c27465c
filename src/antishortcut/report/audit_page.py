"""audit.json → audit.html and figures/. One file that opens anywhere, offline, and fetches nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
from markupsafe import Markup, escape

from antishortcut.fileio import atomic_write
from antishortcut.report import charts
from antishortcut.report.charts import GREY, ONE, PALETTE, RANDOM, Figure, Panel, Rows, base, colour, draw_all, tooltips
from antishortcut.report.first_screen import audit_screen
from antishortcut.report.mechanism_figures import direction_figures
from antishortcut.report.page import render_page
from antishortcut.report.reader import DIRECTION_KINDS, parse_directions, parse_picture, readable

Audit = Mapping[str, Any]
ENDS = {"high": "one end", "low": "the opposite end"}
COURSE = {  # key in audit.json → word, colour
    "shortcut": ("displaced directions", PALETTE[3]),
    "abandoned": ("abandoned directions", PALETTE[4]),
    "robust": ("T_final’s principal directions", PALETTE[0]),
    "accuracy": ("accuracy", GREY),
}
STATES = {"early": ("T_early", PALETTE[1]), "final": ("T_final", PALETTE[0])}


def write_page(audit: Audit, folder: Path) -> None:
    """The page and its figures in `folder`, where the pictures are."""
    audit = readable(audit)
    figures = drawn(audit)
    draw_all(figures.values(), folder / "figures")
    with atomic_write(folder / "audit.html") as file:
        file.write(render(audit, figures, folder).encode(errors="replace"))


def drawn(audit: Audit) -> dict[str, Figure]:
    """The figures there are numbers for, by name."""
    directions = parse_directions(audit, audit.get("model", ""), audit.get("model", ""))
    shared = [figure for figure in direction_figures(directions) if figure.name != "energy"]
    own = [_course(audit), _each(audit), *([_student(audit)] if "student" in audit else [])]
    return {figure.name: figure for figure in (*own, *shared) if figure.panels}


def render(audit: Audit, figures: Mapping[str, Figure], folder: Path) -> str:
    """Everything from outside is escaped in the template, in text and in JSON alike."""
    findings: dict[str, list[dict[str, str]]] = {}
    for finding in audit["findings"]:
        findings.setdefault(finding["part"], []).append(finding)
    names = [one[end] for each in audit["directions"].values() for one in each for end in ENDS if end in one]
    return render_page(
        "audit.html",
        filters={
            "share": _share,
            "degrees": lambda x: "–" if x is None else f"{x:.1f}°",
            "times": lambda x: "–" if x is None else f"×\u00a0{x:.2f}",
            "states": _states,
        },
        drawn=figures.values(),
        methods=[],
        audit=audit,
        figures=figures,
        first=audit_screen(audit, folder),
        findings=findings,
        pictures={name: parse_picture((folder / name).read_bytes()) for name in names},
        kinds=DIRECTION_KINDS,
        ends=ENDS,
    )


def _course(audit: Audit) -> Figure:
    """Energy in the directions along all states that were given, in their order."""
    states = [row["state"] for row in audit["energy"]]
    rows: Rows = [
        {"state": row["state"], "what": word, "value": round(row[key], 5)}
        for row in audit["energy"]
        for key, (word, _) in COURSE.items()
        if row[key] is not None
    ]
    axis = alt.Axis(labelAngle=0, labelLimit=110)
    x = alt.X("state:N", sort=states, title="state", axis=axis)
    share = alt.Axis(format="~%", tickCount=5)
    y = alt.Y("value:Q", title="share", scale=alt.Scale(domain=[0, 1]), axis=share)
    note = (
        f"Mean share of an image’s energy in the directions of T_early = {audit['early']}, in every state given. They "
        "were chosen for this state, so a peak there is no surprise; the candidates below are judged on other images. "
        f"Red line: random directions ({_share(audit['energy_random'])})."
    )
    figure = Figure("course", "Energy along the states", note)
    return charts.line_figure(figure, rows, x, y, dict(COURSE.values()), audit["energy_random"], digits=3)


def _each(audit: Audit) -> Figure:
    """Every direction's energy early against final."""
    panels = []
    for kind in DIRECTION_KINDS:
        directions = audit["directions"][kind]
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
        tips = tooltips("direction:N", "state:N", share=".2%")
        layers = charts.labelled_bars(start, across, paint, tips, form, size=13)
        layers += (charts.upright(directions[0]["energy_random"], RANDOM),)
        text = "; ".join(f"direction {row['direction']}, {row['state']}: {row['share']:.1%}" for row in rows)
        title = f"{kind} directions"
        panels.append(Panel(title, 40 * len(directions) + 20, layers, {f"each_{kind}": rows} | ONE, alt=text))
    note = "The share of all energy along each direction. Red line: a random direction. The two scales differ."
    return Figure("directions", "Early against final", note, panels, dict(STATES.values()), columns=2)


def _student(audit: Audit) -> Figure:
    """The student's projection beside its teacher's states; the paper's two points and random values as they are."""
    student, projections = audit["student"], audit["student"]["projections"]
    names = {"raw": "student, raw", "aligned": "student, aligned", "early": "T_early", "final": "T_final"}
    rows: Rows = [
        {"who": who, "projection": each["displaced"], "random": each["random"], "where": "here"}
        for key, who in names.items()
        if (each := projections.get(key)) and each["displaced"] is not None
    ]
    for point in student["paper"] if rows else ():
        who = f"paper, {point['pair'].partition(',')[0]}"
        rows.append({"who": who, "projection": point["projection"], "random": point["random"], "where": "the paper"})
    key = {"here": PALETTE[0], "the paper": GREY}
    start = base("student").encode(y=alt.Y("who:N", sort=None, title=None, axis=alt.Axis(labelLimit=220)))
    tips = tooltips("who:N", projection=".3f", random=".3f")
    axis = alt.Axis(tickCount=5, format="~g")
    across = alt.X("projection:Q", title="mean projection", scale=alt.Scale(domain=[0, 1]), axis=axis)
    bars = charts.labelled_bars(start, across, colour(key, "where"), tips, ".2f")
    tick = start.mark_tick(thickness=3, size=22, color=RANDOM, opacity=1).encode(x="random:Q", tooltip=tips)
    text = "; ".join(f"{row['who']} {row['projection']:.2f}, random {row['random']:.2f}" for row in rows)
    note = (
        "Mean length of the normalised features in the displaced directions. Red: that of a random direction, √(K/D), "
        "which depends on the width."
    )
    panel = Panel("projection", 34 * len(rows) + 10, (*bars, tick), {"student": rows}, alt=text)
    return Figure("student", "The student’s projection", note, [panel] if rows else [], key, wide=True)


def _share(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value * 100:.{digits}f}\u00a0%".replace("-", "−")  # kept on one line


def _states(text: str) -> Markup:
    """T_early and T_final with their subscripts."""
    written = str(escape(text)).replace("T_early", "T<sub>early</sub>").replace("T_final", "T<sub>final</sub>")
    return Markup(written)
