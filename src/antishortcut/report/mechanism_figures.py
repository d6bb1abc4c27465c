"""Figures of the mechanism: where students' features lie between the early and the final teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import altair as alt

from antishortcut.report.charts import ONE, RANDOM, Figure, Panel, Rows, bars, base, colour, lines, upright
from antishortcut.report.collect import BASELINE, FIRST, Found, Student
from antishortcut.report.reader import MECHANISM, Embedding, Histogram, Notes, read_embedding
from antishortcut.report.robustness import BAR, seeds, told
from antishortcut.report.stats import summary
from antishortcut.report.table import PROJECTIONS, VIEWS, Table, parts, view_of, words

MEASURED = {
    "cos_final": "cosine to T_final",
    "cos_early": "cosine to T_early",
    "signed_cosine": "signed cosine to the displacement",
}
THRESHOLD = {"signed_cosine": -0.1}  # ε_diag of the paper
CLASS_COLOURS = (
    "#4E79A7", "#F28E2B", "#E15759", "#76B7B2", "#59A14F", "#EDC948", "#B07AA1", "#FF9DA7", "#9C755F", "#BAB0AC",
)  # fmt: skip


def mechanism(found: Found, table: Table) -> list[Figure]:
    methods = list(found.groups)
    views = dict.fromkeys(view for s in found.students for view in s.histograms)
    known = sorted(views, key=lambda view: (VIEWS.index(view) if view in VIEWS else len(VIEWS), view))
    drawn = [_histograms(found, view, number, methods) for number, view in enumerate(known)]
    return [_projections(found, table, methods), *drawn]


def _projections(found: Found, table: Table, methods: list[str]) -> Figure:
    """In the view of the first table; the other views have their tables."""
    view = view_of(table.every)
    panels: list[Panel] = []
    for column in table.every:
        group, score = parts(column)
        if score not in PROJECTIONS or group != f"{MECHANISM} {view}":
            continue
        rows = seeds(found, partial(_value, column))
        name = f"projection{len(panels)}"
        layers = bars(methods, name, rows, "mean length of the projection")
        chance = table.random.get(column)
        title = words(score) + ("" if chance is None else f" (random {chance:.3f})")
        if chance is not None:
            layers += (upright(chance, RANDOM),)
        panels.append(Panel(title, BAR * len(methods), layers, {name: rows} | ONE, told=told(rows)))
    note = (
        "How much of a feature's direction lies in a few directions of the teacher's space: the shortcut directions "
        "(in which early and final teacher differ most) and the robust ones (the strongest of the final teacher). "
        "The red line is a random direction."
    )
    title = f"Projection on the teacher’s directions, {view} features"
    return Figure("projections", title, note, tuple(panels), columns=2)


def _value(column: str, student: Student) -> float | None:
    return student.values.get(column)


def _histograms(found: Found, view: str, number: int, methods: list[str]) -> Figure:
    panels: list[Panel] = []
    for what, title in MEASURED.items():
        held = [(s.method, s.histograms.get(view, {}).get(what)) for s in found.students]
        rows = _shares([(method, each) for method, each in held if each])
        if rows:
            name = f"histogram{len(panels)}"
            line, hover = lines(methods, name, rows, "cosine", "share of images", zero=True, step=True)
            marks = (upright(THRESHOLD[what]),) if what in THRESHOLD else ()
            text = "Mean: " + _means(rows)
            panels.append(Panel(title, 180, (*marks, line), {name: rows} | ONE, (hover,), text))
    note = (
        f"{_view(view)} Each line is a method, mean over seeds. The signed cosine asks whether a student’s feature "
        "points the way the teacher came from (positive) or away from it (negative); the grey line is the paper’s "
        "−0.1."
    )
    name = f"alignment-{view if view in VIEWS else number}"
    return Figure(name, f"Alignment, {view} features", note, tuple(panels), folded=number > 0)


def _view(view: str) -> str:
    known = {
        "aligned": "Student features after a linear map onto the teacher’s, fitted on training images: one ruler "
        "for all "
        "methods and widths.",
        "raw": "Student features as they are; only possible where student and teacher are equally wide.",
        "projector": "Student features through the method’s own projector; only methods that have one.",
    }
    return known.get(view, f"Student features in the view {view}.")


def _shares(held: Sequence[tuple[str, Histogram]]) -> Rows:
    """Mean share per bin and method; runs with other bins than the first are left out."""
    points: dict[tuple[str, float], list[float]] = {}
    for method, histogram in held:
        if histogram.edges == held[0][1].edges:
            for low, high, share in zip(histogram.edges, histogram.edges[1:], histogram.shares, strict=False):
                points.setdefault((method, round((low + high) / 2, 6)), []).append(share)
    return [
        {"method": method, "cosine": at, "value": round(summary(x).mean, 6), "seeds": len(x)}
        for (method, at), x in points.items()
    ]


def _means(rows: Rows) -> str:
    result: dict[str, float] = {}
    for row in rows:
        result[row["method"]] = result.get(row["method"], 0.0) + row["cosine"] * row["value"]
    return ", ".join(f"{method} {value:.2f}" for method, value in result.items())


def embeddings(found: Found, notes: Notes) -> list[Figure]:
    """Teacher beside student, for the first seed of each method that has an embedding; one of them unfolded.

    Of locations in images those of kd and asd are, which S-Figure 1 shows.
    """
    figures = []
    for number, students in enumerate(found.groups.values()):
        for student in students:
            held = read_embedding(student.place, student.path, notes)
            if held is not None:
                figures.append(_planes(student, held, f"embedding-{number}"))
                break
    plain = {s.method for s in found.students if s.run.name in FIRST}
    shown = next((figure for figure in figures if figure.method not in plain), figures[0] if figures else None)
    return [replace(figure, opened=figure.opened or figure is shown) for figure in figures]


def _planes(student: Student, held: Embedding, name: str) -> Figure:
    key = _paint(held)
    things = "locations in the images" if held.colours else "images"
    panels: list[Panel] = []
    for who, points in (("teacher", held.teacher), (student.method, held.student)):
        data = f"plane{len(panels)}"
        rows: Rows = [
            {"class": label, "x": round(x, 3), "y": round(y, 3)}
            for label, (x, y) in zip(held.label, points, strict=True)
        ]
        text = f"{len(rows)} {things} of {len(key)} classes"
        panels.append(Panel(who, 320, _cloud(data, key), {data: rows}, told=text))
    note = (
        f"{held.method} of the features of the same {things}, seed {student.run.seed}. What lies close together was "
        "close before; distances between far groups mean little."
    )
    title = f"Teacher beside {student.method}"
    opened = bool(held.colours) and student.run.name in (BASELINE, "asd")
    return Figure(name, title, note, tuple(panels), key, student.method, folded=True, opened=opened, columns=2)


def _paint(held: Embedding) -> dict[str, str]:
    """Class → colour: as in its masks, in their order, or by name."""
    there = set(held.label)
    if there <= held.colours.keys():
        return {word: paint for word, paint in held.colours.items() if word in there}
    return {word: CLASS_COLOURS[at % len(CLASS_COLOURS)] for at, word in enumerate(sorted(there))}


def _cloud(data: str, key: dict[str, str]) -> tuple[alt.Chart, ...]:
    mute = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    plain = alt.Scale(zero=False, nice=False, padding=8)
    return (
        base(data)
        .mark_point(size=22, filled=True, opacity=0.75)
        .encode(
            x=alt.X("x:Q", title=None, axis=mute, scale=plain),
            y=alt.Y("y:Q", title=None, axis=mute, scale=plain),
            color=colour(key, "class"),
            tooltip=alt.Tooltip("class:N"),
        ),
    )
