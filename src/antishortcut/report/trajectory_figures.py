"""Figures of a teacher's way from early to final: what its directions are, and how sure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import altair as alt

from antishortcut.report.charts import (
    CUES,
    GREY,
    ONE,
    PALETTE,
    RANDOM,
    Figure,
    Panel,
    Rows,
    base,
    colour,
    level,
    tooltips,
    upright,
)
from antishortcut.report.direction_reader import Directions
from antishortcut.report.stats import summary

PAIRS = {
    "shortcut_final": "shortcut and T_final",
    "shortcut_early": "shortcut and T_early",
    "final_early": "T_final and T_early",
}


def trajectory(held: Directions, number: int) -> list[Figure]:
    """Angles, spectrum, steadiness, energy and explained variance of one teacher's directions."""
    end = "" if number == 0 else f"-{number + 1}"
    drawn = [
        _explained(held, end),
        _energy(held, end),
        _angles(held, end),
        _spectrum(held, end),
        _steadiness(held, end),
    ]
    return [figure for figure in drawn if figure.panels]


def line_chart(
    data: str, x: alt.X, y: alt.Y, key: Mapping[str, str], tips: list[alt.Tooltip], random: float | None
) -> tuple[alt.Chart, ...]:
    """A line for every word of `key` in the field `what`, and a red one where random directions stand."""
    lines = base(data).mark_line(point=True, strokeWidth=2.2).encode(x=x, y=y, color=colour(key, "what"), tooltip=tips)
    return (lines,) if random is None else (lines, level(random))


def bar_chart(
    start: alt.Chart, x: alt.X, paint: alt.Color, tips: list[alt.Tooltip], size: int, font: int, dx: int, form: str
) -> tuple[alt.Chart, ...]:
    """Bars with their values in figures behind them."""
    text = start.mark_text(align="left", dx=dx, fontSize=font)
    value = str(x.shorthand)
    figures = text.encode(x=alt.X(value), text=alt.Text(value, format=form))
    return start.mark_bar(size=size).encode(x=x, color=paint, tooltip=tips), figures


def used(key: Mapping[str, str], rows: Rows) -> dict[str, str]:
    """Of a legend, the words that there are rows of."""
    return {what: paint for what, paint in key.items() if any(row["what"] == what for row in rows)}


def first_to_last(rows: Rows, key: Iterable[str], digits: int) -> str:
    """Every line in words."""
    ends = {what: [row["value"] for row in rows if row["what"] == what] for what in key}
    return "; ".join(f"{what} from {e[0]:.{digits}f} to {e[-1]:.{digits}f}" for what, e in ends.items())


def _angles(held: Directions, end: str) -> Figure:
    rows: Rows = [
        {"pair": PAIRS.get(pair, pair), "angle": round(angle, 2)}
        for pair, angles in held.angles.items()
        for angle in angles
    ]
    start = base("angles").encode(
        y=alt.Y("pair:N", sort=list(PAIRS.values()), title=None, axis=alt.Axis(labelLimit=180))
    )
    scale, axis = alt.Scale(domain=[0, 90]), alt.Axis(values=[0, 15, 30, 45, 60, 75, 90])
    each = start.mark_point(size=70, filled=True, color=PALETTE[0], opacity=0.7)
    mean = start.mark_tick(thickness=3, size=22, color=PALETTE[3])
    layers: tuple[alt.Chart, ...] = (
        each.encode(x=alt.X("angle:Q", title="degrees", scale=scale, axis=axis), tooltip=tooltips("pair:N", "angle:Q")),
        mean.encode(
            x=alt.X("mean(angle):Q"),
            tooltip=[alt.Tooltip("pair:N"), alt.Tooltip("mean(angle):Q", format=".1f", title="mean")],
        ),
    )
    if held.angle_random is not None:
        layers += (upright(held.angle_random, RANDOM),)
    means = ", ".join(f"{PAIRS.get(pair, pair)} {summary(a).mean:.1f}°" for pair, a in held.angles.items())
    chance = (
        "" if held.angle_random is None else f" Random directions would stand at {held.angle_random:.1f}° (red line)."
    )
    note = (
        "How far apart the leading directions are: 0° is the same, 90° at right angles. Dots: principal angles; "
        f"tick: their mean ({means}).{chance}"
    )
    panel = Panel("principal angles", 40 * len(held.angles) + 20, layers, {"angles": rows} | ONE, told=means)
    return Figure(f"angles{end}", "Angles between directions", note, (panel,) if rows else (), wide=True)


def _spectrum(held: Directions, end: str) -> Figure:
    k = int(held.facts.get("K", 0))
    panels = []
    for kind, values in held.spectrum.items():
        rows: Rows = [
            {"direction": at, "eigenvalue": value, "used": "yes" if at <= k else "no"}
            for at, value in enumerate(values, 1)
        ]
        name = f"spectrum_{kind}"
        chart = (
            base(name)
            .mark_bar()
            .encode(
                x=alt.X("direction:O", axis=alt.Axis(labelAngle=0, labelOverlap=True, title="direction")),
                y=alt.Y("eigenvalue:Q", axis=alt.Axis(tickCount=5)),
                color=colour({"yes": PALETTE[0], "no": GREY}, "used").legend(None),
                tooltip=[alt.Tooltip("direction:O"), alt.Tooltip("eigenvalue:Q", format=".4g")],
            )
        )
        gap = f", eigengap {held.gaps[kind]:.3g}" if kind in held.gaps else ""
        if gap and values[0] > 0:
            gap += f", {held.gaps[kind] / values[0]:.1%} of the largest".replace("%", " %")
        text = ", ".join(f"{value:.3g}" for value in values[:8])
        panels.append(Panel(f"{kind}{gap}", 180, (chart,), {name: rows}, told=f"Largest: {text}"))
    note = (
        "How much the features move along each direction between early and final teacher. Coloured: the "
        f"{k or 'first'} that count as shortcut directions. A small gap behind them means that another sample of "
        "images could choose others."
    )
    return Figure(f"spectrum{end}", "Spectrum of the displacement", note, tuple(panels), columns=2)


def _energy(held: Directions, end: str) -> Figure:
    names = {"shortcut": PALETTE[3], "robust": PALETTE[0], "accuracy": GREY}
    rows: Rows = [
        {"epoch": row["epoch"], "what": what, "value": round(row[what], 5)}
        for row in held.energy
        for what in names
        if what in row
    ]
    key = used(names, rows)
    x = alt.X("epoch:Q", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False, tickCount=6))
    y = alt.Y("value:Q", title="share", scale=alt.Scale(domain=[0, 1]))
    tips = [*tooltips("what:N", "epoch:Q"), alt.Tooltip("value:Q", format=".3f")]
    layers = line_chart("energy", x, y, key, tips, held.energy_random)
    chance = "" if held.energy_random is None else f" Red line: random directions ({held.energy_random:.3f})."
    note = (
        "Share of the teacher’s features that lies in the shortcut directions and in the robust ones as it trains, "
        f"and its accuracy where it was measured.{chance}"
    )
    panel = Panel(
        "energy over the trajectory", 220, layers, {"energy": rows} | ONE, told=first_to_last(rows, key, digits=2)
    )
    return Figure(f"energy{end}", "Energy as the teacher trains", note, (panel,) if rows else (), key, wide=True)


def _steadiness(held: Directions, end: str) -> Figure:
    names = {
        "to_whole": "to those of all images",
        "between": "between two batches",
        "reference": "1/√batch from the first",
    }
    rows: Rows = [
        {"batch": row["batch"], "what": words_, "angle": round(row[key], 2)}
        for row in held.batches
        for key, words_ in names.items()
        if key in row
    ]
    key = used(dict(zip(names.values(), (PALETTE[0], PALETTE[1], GREY), strict=True)), rows)
    ticks = alt.Axis(grid=False, values=sorted({row["batch"] for row in rows}), format="~d")
    x = alt.X("batch:Q", title="images in a batch", scale=alt.Scale(type="log", base=2), axis=ticks)
    y = alt.Y("angle:Q", title="mean angle, degrees", scale=alt.Scale(domain=[0, 90]))
    layers = line_chart("batches", x, y, key, tooltips("what:N", "batch:Q", "angle:Q"), held.batches_random)
    note = f"How far the directions of a batch lie from those of all images and of another batch.{_boot(held)}"
    panel = Panel("steadiness", 220, layers, {"batches": rows} | ONE, told="The note has the numbers.")
    return Figure(f"steadiness{end}", "How steady the directions are", note, (panel,) if rows else (), key, wide=True)


def _boot(held: Directions) -> str:
    result = held.bootstrap
    if "mean" not in result:
        return ""
    spread = f" ± {result['std']:.1f}°" if "std" in result else ""
    pairs = f" over {result['pairs']:.0f} pairs" if "pairs" in result else ""
    parts_ = f" of {result['parts']:.0f} disjoint parts of the training set" if "parts" in result else ""
    chance = f"; random directions: {result['random']:.1f}°" if "random" in result else ""
    return f" Between directions{parts_}: {result['mean']:.1f}°{spread}{pairs}{chance}."


def _explained(held: Directions, end: str) -> Figure:
    key = {cue: CUES[cue] for cue in ("texture", "shape")}
    panels = []
    for kind, states in held.pooled.items():
        rows: Rows = [
            {"state": f"T_{state}", "cue": cue, "share": round(share, 3) + 0.0}  # no −0
            for state, shares in states.items()
            for cue, share in shares.items()
        ]
        name = f"explained_{kind}"
        start = base(name).encode(
            y=alt.Y("state:N", title=None, sort=["T_early", "T_final"]), yOffset=alt.YOffset("cue:N", sort=list(key))
        )
        axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format="~%")
        across = alt.X("share:Q", title="share of variance", scale=alt.Scale(domain=[0, 1.15]), axis=axis)
        tips = [*tooltips("state:N", "cue:N"), alt.Tooltip("share:Q", format=".1%")]
        layers = bar_chart(start, across, colour(key, "cue"), tips, size=17, font=11, dx=4, form=".0%")
        text = ", ".join(f"{row['state']} {row['cue']} {row['share']:.0%}" for row in rows)
        panels.append(Panel(f"{kind} directions", 110, layers, {name: rows}, told=text))
    note = (
        "These images are made, so texture and shape of each are known: the share of the variance along the "
        "directions that each explains, in the early and in the final teacher. Displaced: the directions in which "
        "the two differ most. Abandoned: of those, the ones the final teacher hardly uses."
    )
    return Figure(f"explained{end}", "What the directions carry", note, tuple(panels), key, columns=2)
