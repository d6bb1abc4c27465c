"""Figures of the mechanism: where students' features lie between the early and the final teacher, and how the teacher
moved from one to the other."""

from dataclasses import replace

import altair as alt

from antishortcut.report import charts
from antishortcut.report.charts import GREY, ONE, PALETTE, RANDOM, Figure, Panel, Rows, base, colour, tooltips, upright
from antishortcut.report.collect import BASELINE, Collected, StudentRun
from antishortcut.report.reader import MECHANISM, Directions, Embedding, Notes, read_embedding
from antishortcut.report.score_figures import bar_panels
from antishortcut.report.stats import summary
from antishortcut.report.table import VIEWS, ResultTable, split_column, words

HISTOGRAMS = {
    "cos_final": "cosine to T_final",
    "cos_early": "cosine to T_early",
    "signed_cosine": "signed cosine to the displacement",
}
THRESHOLD = -0.1  # of the signed cosine, ε_diag of the paper
CLASS_COLOURS = (
    "#4E79A7", "#F28E2B", "#E15759", "#76B7B2", "#59A14F", "#EDC948", "#B07AA1", "#FF9DA7", "#9C755F", "#BAB0AC",
)  # fmt: skip
PAIRS = {
    "shortcut_final": "shortcut and T_final",
    "shortcut_early": "shortcut and T_early",
    "final_early": "T_final and T_early",
}


def mechanism_figures(table: ResultTable) -> list[Figure]:
    views = dict.fromkeys(view for s in table.runs.students for view in s.histograms)
    order = sorted(views, key=lambda view: (VIEWS.index(view) if view in VIEWS else len(VIEWS), view))
    return [_projections(table), *(_histograms(table.runs, view, index) for index, view in enumerate(order))]


def _projections(table: ResultTable) -> Figure:
    """In the view of the first table; the other views have their tables."""
    view = table.view
    panels: list[Panel] = []
    for score in ("projection", "robust_projection"):
        column = f"{MECHANISM} {view} {score}"
        chance = table.random.get(column)
        title = words(split_column(column)[1]) + ("" if chance is None else f" (random {chance:.3f})")
        for panel in bar_panels(table.runs, f"projection{len(panels)}-", {column: title}, "mean projected length"):
            line = () if chance is None else (upright(chance, RANDOM),)
            panels.append(replace(panel, layers=panel.layers + line, data=panel.data | ONE))
    note = (
        "How much of a feature's direction lies in a few directions of the teacher's space: the shortcut directions "
        "(in which early and final teacher differ most) and the robust ones (the strongest of the final teacher). "
        "The red line is a random direction."
    )
    return Figure("projections", f"Projection on the teacher’s directions, {view} features", note, panels, columns=2)


def _histograms(runs: Collected, view: str, index: int) -> Figure:
    panels: list[Panel] = []
    for measure, title in HISTOGRAMS.items():
        rows = charts.means(
            [
                {"method": s.method, "cosine": centre, "value": share}
                for s in runs.students
                for centre, share in s.histograms.get(view, {}).get(measure, {}).items()
            ]
        )
        if rows:
            marks = (upright(THRESHOLD),) if measure == "signed_cosine" else ()
            centres: dict[str, float] = {}
            for row in rows:
                centres[row["method"]] = centres.get(row["method"], 0.0) + row["cosine"] * row["value"]
            text = "Mean: " + ", ".join(f"{method} {value:.2f}" for method, value in centres.items())
            panel = Panel(title, 180, marks, {f"histogram{len(panels)}": rows} | ONE, alt=text)
            panels.append(charts.add_lines(panel, runs.methods, "cosine", "share of images", zero=True, step=True))
    note = (
        "Each line is a method, mean over seeds. The signed cosine asks whether a student’s feature points the way the "
        "teacher came from (positive) or away from it (negative); the grey line is the paper’s −0.1."
    )
    name = f"alignment-{view if view in VIEWS else index}"
    return Figure(name, f"Alignment, {view} features", note, panels, folded=index > 0)


def embedding_figures(runs: Collected, notes: Notes) -> list[Figure]:
    """Teacher beside student, for the first seed of each method that has an embedding."""
    figures = []
    for index, students in enumerate(runs.groups.values()):
        for student in students:
            embedding = read_embedding(student.place, student.path, notes)
            if embedding is not None:
                figures.append(_planes(student, embedding, f"embedding-{index}"))
                break
    return figures


def _planes(student: StudentRun, embedding: Embedding, name: str) -> Figure:
    classes = set(embedding.label)
    if classes <= embedding.colours.keys():
        key = {word: paint for word, paint in embedding.colours.items() if word in classes}
    else:
        key = {word: CLASS_COLOURS[index % len(CLASS_COLOURS)] for index, word in enumerate(sorted(classes))}
    things = "locations in the images" if embedding.colours else "images"
    mute = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    scale = alt.Scale(zero=False, nice=False, padding=8)
    panels: list[Panel] = []
    for title, points in (("teacher", embedding.teacher), (student.method, embedding.student)):
        data = f"plane{len(panels)}"
        rows: Rows = [
            {"class": label, "x": round(x, 3), "y": round(y, 3)}
            for label, (x, y) in zip(embedding.label, points, strict=True)
        ]
        chart = base(data).mark_point(size=22, filled=True, opacity=0.75).encode(
            x=alt.X("x:Q", title=None, axis=mute, scale=scale),
            y=alt.Y("y:Q", title=None, axis=mute, scale=scale),
            color=colour(key, "class"),
            tooltip=alt.Tooltip("class:N"),
        )  # fmt: skip
        panels.append(Panel(title, 320, (chart,), {data: rows}, alt=f"{len(rows)} {things} of {len(key)} classes"))
    note = (
        f"{embedding.method} of the features of the same {things}, seed {student.run.seed}. What lies close together "
        "was close before; distances between far groups mean little."
    )
    opened = student.run.name in (BASELINE, "asd")  # which S-Figure 1 shows
    title = f"Teacher beside {student.method}"
    return Figure(name, title, note, panels, key, student.method, folded=True, opened=opened, columns=2)


# --- a teacher's directions ---


def direction_figures(directions: Directions, index: int = 0) -> list[Figure]:
    """Explained variance, energy, angles, spectrum and steadiness of one teacher's directions."""
    drawn = [draw(directions) for draw in (_explained, _energy, _angles, _spectrum, _steadiness)]
    suffix = "" if index == 0 else f"-{index + 1}"
    return [replace(figure, name=figure.name + suffix) for figure in drawn if figure.panels]


def _angles(directions: Directions) -> Figure:
    angles = {PAIRS.get(pair, pair): degrees for pair, degrees in directions.angles.items()}
    rows: Rows = [{"pair": pair, "angle": round(angle, 2)} for pair, degrees in angles.items() for angle in degrees]
    axis = alt.Axis(labelLimit=180)
    start = base("angles").encode(y=alt.Y("pair:N", sort=list(PAIRS.values()), title=None, axis=axis))
    scale, axis = alt.Scale(domain=[0, 90]), alt.Axis(values=[0, 15, 30, 45, 60, 75, 90])
    across = alt.X("angle:Q", title="degrees", scale=scale, axis=axis)
    tips = [alt.Tooltip("pair:N"), alt.Tooltip("mean(angle):Q", format=".1f", title="mean")]
    layers: charts.Layers = (
        start.mark_point(size=70, filled=True, color=PALETTE[0], opacity=0.7).encode(
            x=across, tooltip=tooltips("pair:N", "angle:Q")
        ),
        start.mark_tick(thickness=3, size=22, color=PALETTE[3]).encode(x=alt.X("mean(angle):Q"), tooltip=tips),
    )
    means, chance = ", ".join(f"{pair} {summary(a).mean:.1f}°" for pair, a in angles.items()), ""
    if directions.angle_random is not None:
        layers += (upright(directions.angle_random, RANDOM),)
        chance = f" Random directions would stand at {directions.angle_random:.1f}° (red line)."
    note = (
        "How far apart the leading directions are: 0° is the same, 90° at right angles. Dots: principal angles; "
        f"tick: their mean ({means}).{chance}"
    )
    panel = Panel("principal angles", 40 * len(angles) + 20, layers, {"angles": rows} | ONE, alt=means)
    return Figure("angles", "Angles between directions", note, [panel] if rows else [], wide=True)


def _spectrum(directions: Directions) -> Figure:
    k = int(directions.facts.get("K", 0))
    panels = []
    for kind, values in directions.spectrum.items():
        rows: Rows = [
            {"direction": index, "eigenvalue": value, "used": "yes" if index <= k else "no"}
            for index, value in enumerate(values, 1)
        ]
        name = f"spectrum_{kind}"
        chart = base(name).mark_bar().encode(
            x=alt.X("direction:O", axis=alt.Axis(labelAngle=0, labelOverlap=True, title="direction")),
            y=alt.Y("eigenvalue:Q", axis=alt.Axis(tickCount=5)),
            color=colour({"yes": PALETTE[0], "no": GREY}, "used").legend(None),
            tooltip=tooltips("direction:O", eigenvalue=".4g"),
        )  # fmt: skip
        gap = f", eigengap {directions.gaps[kind]:.3g}" if kind in directions.gaps else ""
        if gap and values[0] > 0:
            gap += f", {directions.gaps[kind] / values[0]:.1%} of the largest".replace("%", " %")
        text = ", ".join(f"{value:.3g}" for value in values[:8])
        panels.append(Panel(f"{kind}{gap}", 180, (chart,), {name: rows}, alt=f"Largest: {text}"))
    note = (
        "How much the features move along each direction between early and final teacher. Coloured: the "
        f"{k or 'first'} that count as shortcut directions. A small gap behind them means that another sample of "
        "images could choose others."
    )
    return Figure("spectrum", "Spectrum of the displacement", note, panels, columns=2)


def _energy(directions: Directions) -> Figure:
    names, random = {"shortcut": PALETTE[3], "robust": PALETTE[0], "accuracy": GREY}, directions.energy_random
    rows: Rows = [
        {"epoch": row["epoch"], "what": what, "value": round(row[what], 5)}
        for row in directions.energy
        for what in names
        if what in row
    ]
    x = alt.X("epoch:Q", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False, tickCount=6))
    y = alt.Y("value:Q", title="share", scale=alt.Scale(domain=[0, 1]))
    chance = "" if random is None else f" Red line: random directions ({random:.3f})."
    note = (
        "Share of the teacher’s features that lies in the shortcut directions and in the robust ones as it trains, "
        f"and its accuracy where it was measured.{chance}"
    )
    figure = Figure("energy", "Energy as the teacher trains", note)
    return charts.line_figure(figure, rows, x, y, names, random, digits=3)


def _steadiness(directions: Directions) -> Figure:
    names = {  # key of the JSON → word, colour
        "to_whole": ("to those of all images", PALETTE[0]),
        "between": ("between two batches", PALETTE[1]),
        "reference": ("1/√batch from the first", GREY),
    }
    rows: Rows = [
        {"batch": row["batch"], "what": what, "value": round(row[key], 2)}
        for row in directions.batches
        for key, (what, _) in names.items()
        if key in row
    ]
    ticks = alt.Axis(grid=False, values=sorted({row["batch"] for row in rows}), format="~d")
    x = alt.X("batch:Q", title="images in a batch", scale=alt.Scale(type="log", base=2), axis=ticks)
    y = alt.Y("value:Q", title="mean angle, degrees", scale=alt.Scale(domain=[0, 90]))
    note = "How far the directions of a batch lie from those of all images and of another batch."
    boot = directions.bootstrap
    if "mean" in boot:
        sets = f" of {boot['parts']:.0f} disjoint parts of the training set" if "parts" in boot else ""
        spread = f" ± {boot['std']:.1f}°" if "std" in boot else ""
        pairs = f" over {boot['pairs']:.0f} pairs" if "pairs" in boot else ""
        chance = f"; random directions: {boot['random']:.1f}°" if "random" in boot else ""
        note += f" Between directions{sets}: {boot['mean']:.1f}°{spread}{pairs}{chance}."
    figure = Figure("steadiness", "How steady the directions are", note)
    return charts.line_figure(figure, rows, x, y, dict(names.values()), directions.batches_random, digits=1)


def _explained(directions: Directions) -> Figure:
    key = {cue: charts.CUES[cue] for cue in ("texture", "shape")}
    panels = []
    for kind, states in directions.pooled.items():
        rows: Rows = [
            {"state": f"T_{state}", "cue": cue, "share": round(share, 3) + 0.0}  # no −0
            for state, shares in states.items()
            for cue, share in shares.items()
        ]
        name = f"explained_{kind}"
        y = alt.Y("state:N", title=None, sort=["T_early", "T_final"])
        start = base(name).encode(y=y, yOffset=alt.YOffset("cue:N", sort=list(key)))
        axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format="~%")
        across = alt.X("share:Q", title="share of variance", scale=alt.Scale(domain=[0, 1.15]), axis=axis)
        tips = tooltips("state:N", "cue:N", share=".1%")
        layers = charts.labelled_bars(start, across, colour(key, "cue"), tips, ".0%", size=17)
        text = ", ".join(f"{row['state']} {row['cue']} {row['share']:.0%}" for row in rows)
        panels.append(Panel(f"{kind} directions", 110, layers, {name: rows}, alt=text))
    note = (
        "These images are made, so texture and shape of each are known: the share of the variance along the "
        "directions that each explains, in the early and in the final teacher. Displaced: the directions in which "
        "the two differ most. Abandoned: of those, the ones the final teacher hardly uses."
    )
    return Figure("explained", "What the directions carry", note, panels, key, columns=2)
