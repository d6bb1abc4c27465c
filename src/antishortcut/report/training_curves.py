"""Figures of the training: the score it is judged by over epochs, loss terms over time."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from antishortcut.report.charts import SINGLE, Figure, Panel, Rows, axes, base, lines, method_colour
from antishortcut.report.collect import Found, Student
from antishortcut.report.table import opening, words

NAMES = ("accuracy", "miou")  # of files


def training(found: Found) -> list[Figure]:
    methods = list(found.groups)
    headlines: dict[str, list[Student]] = {}
    for student in found.students:
        headlines.setdefault(student.primary_metric, []).append(student)
    scores = [_score(students, score, methods) for score, students in headlines.items()]
    return [*scores, _losses(found, methods)]


def judges(students: Sequence[Student]) -> str:
    return " / ".join(dict.fromkeys(student.eval_split for student in students))


def _score(students: Sequence[Student], score: str, methods: list[str]) -> Figure:
    points = [(s.method, str(s.run.seed), epoch, value) for s in students for epoch, value in s.curve]
    panels: tuple[Panel, ...] = ()
    many = len(students) > SINGLE
    message = words(score)
    if points:
        schema = {"method": pl.String, "seed": pl.String, "epoch": pl.Float64, "value": pl.Float64}
        seeds = pl.DataFrame(points, schema=schema, orient="row")
        data = {"mean": _means(seeds)}
        bold, hover = lines(methods, "mean", data["mean"], "epoch", message)
        if many:
            data |= {"band": _bands(data["mean"])}
            area = base("band").mark_area(opacity=0.15).encode(y=alt.Y("low:Q"), y2=alt.Y2("high"))
            behind = area.encode(x=alt.X("epoch:Q"), color=method_colour(methods))
        else:
            data |= {"seeds": seeds.with_columns(pl.col("value").round_sig_figs(5)).to_dicts()}
            thin = axes("seeds", "epoch", message).mark_line(strokeWidth=1, strokeOpacity=0.5)
            behind = thin.encode(detail=alt.Detail("seed:N"), color=method_colour(methods))
        panels = (Panel(f"{judges(students)} set", 300, (behind, bold), data, (hover,), _ends(data["mean"])),)
    around = "the band is ± one standard deviation" if many else "thin: single seeds"
    note = f"Bold: mean over seeds; {around}. Point at a line for its numbers."
    title = f"{opening(message)} on the {judges(students)} set during training"
    return Figure(score if score in NAMES else "score", title, note, panels, wide=True)


def _losses(found: Found, methods: list[str]) -> Figure:
    points = [(s.method, term, epoch, value) for s in found.students for epoch, term, value in s.terms]
    schema = {"method": pl.String, "term": pl.String, "epoch": pl.Float64, "value": pl.Float64}
    panels: list[Panel] = []
    for (term,), part in pl.DataFrame(points, schema=schema, orient="row").group_by("term", maintain_order=True):
        name = f"term{len(panels)}"
        rows = _means(part)
        line, hover = lines(methods, name, rows, "epoch", "loss")
        panels.append(Panel(str(term), 160, (line,), {name: rows}, (hover,), _ends(rows)))
    note = (
        "The weighted terms that are summed, mean over seeds and over the steps since the point before; of runs "
        "with very many logged steps, over an even part of them. A method shows where it has the term."
    )
    return Figure("losses", "Loss terms over time", note, tuple(panels))


def _means(seeds: pl.DataFrame) -> Rows:
    value = pl.col("value")
    means = seeds.group_by("method", "epoch").agg(value.mean(), value.std().alias("std"), pl.len().alias("seeds"))
    rows = means.with_columns(value.round_sig_figs(5), pl.col("std").round_sig_figs(3)).sort("method", "epoch")
    return [{key: x for key, x in row.items() if x is not None} for row in rows.iter_rows(named=True)]


def _bands(means: Rows) -> Rows:
    """Mean ± deviation at every epoch that more than one seed has reached."""
    return [
        {key: row[key] for key in ("method", "epoch")}
        | {"low": round(row["value"] - row["std"], 5), "high": round(row["value"] + row["std"], 5)}
        for row in means
        if "std" in row
    ]


def _ends(rows: Rows) -> str:
    """Where each line ends, in words; rows are sorted by epoch."""
    last = {row["method"]: row["value"] for row in rows}
    return "At the end: " + ", ".join(f"{method} {value:.3g}" for method, value in last.items())
