"""The page: one HTML file that opens anywhere, offline, and asks nothing of anyone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from antishortcut.report.charts import style
from antishortcut.report.classes import ClassTable, class_tables
from antishortcut.report.collect import BASELINE, Curve, Found
from antishortcut.report.columns import VIEWS, arrow, better, parts, view_of, words
from antishortcut.report.corrupted import corruption_table
from antishortcut.report.differences import Differences
from antishortcut.report.figures import Drawn
from antishortcut.report.informed import informed
from antishortcut.report.libraries import libraries
from antishortcut.report.marks import legend
from antishortcut.report.printed import HEAD, Beside, beside, told
from antishortcut.report.reading import readable
from antishortcut.report.scatter import PICKS
from antishortcut.report.scenes import stills
from antishortcut.report.scores import MECHANISM
from antishortcut.report.settings import settings, subtitle, tally, warnings
from antishortcut.report.sizes import size_table
from antishortcut.report.table import Table, interval, signed

SPARK = (120, 28)  # pixels of a curve in a line of text


def render(found: Found, table: Table, drawn: Drawn, live: str | None = None) -> tuple[str, str]:
    """The page and its security policy; `live` names the edition a server shows, which the page then follows.

    Everything from outside is escaped in the template, in text and in JSON alike.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "interval": interval, "signed": signed, "words": words, "arrow": arrow, "better": better,
        "score": lambda column: parts(column)[1], "spark": _spark, "clock": _clock,
    }  # fmt: skip
    scripts = [Markup(libraries()), Markup(environment.get_template("script.html").render())]
    scripts += [Markup(environment.get_template("live.html").render())] if live else []
    policy = _policy([str(script) for script in scripts], bool(live))
    page = SimpleNamespace(**_context(found, table, drawn), scripts=scripts, policy=policy, live=live)
    return environment.get_template("template.html").render(page=page), policy


def _policy(scripts: list[str], live: bool) -> str:
    """Only the page's own scripts run, known by their hashes; nothing is fetched, save news from the server it is from.

    The charts' expressions go through Vega's interpreter, so 'unsafe-eval' is not needed. Vega writes styles inline.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    connect = " connect-src 'self';" if live else ""
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:;{connect} "
        "base-uri 'none'; form-action 'none'"
    )


def _context(found: Found, table: Table, drawn: Drawn) -> dict[str, Any]:
    methods = list(found.groups)
    different, same = settings(found)
    corruptions, errors = corruption_table(found)
    charts = {id(panel): number for number, panel in enumerate(p for f in drawn.all() for p in f.panels)}
    sets = table.sets()
    sides = beside(found, table)
    classes = class_tables(found)
    return {
        "title": readable(found.folder.resolve().name),
        "subtitle": subtitle(found),
        "found": found,
        "table": table,
        "drawn": drawn,
        "chart": lambda panel: charts[id(panel)],
        "data": {"methods": methods, "charts": [p.spec() for f in drawn.all() for p in f.panels]},
        "methods": methods,
        "number": {method: index for index, method in enumerate(methods)},
        "style": style(methods),
        "baseline": BASELINE,
        "legend": legend(bool(table.differences), len(set(table.suites.values()))),
        "differences": Differences.of(table),
        "sides": sides,
        "printed_head": HEAD,
        "printed_told": told(sides),
        "heads": heads,
        "picks": PICKS,
        "sets": {name: columns for name, columns in sets.items() if not name.startswith(MECHANISM)},
        "views": {name.partition(" ")[2]: c for name, c in sets.items() if name.startswith(f"{MECHANISM} ")},
        "view": view_of(table.every),
        "known_views": VIEWS,
        "classes": classes,
        "stills": [name for name, *_ in stills(drawn.scenes)],
        "judged": " / ".join(dict.fromkeys(words(one.headline) for one in found.progress)),
        "corruptions": corruptions,
        "errors": errors,
        "references": sorted({(name, run) for s in found.students for name, run in s.references.items()}),
        "sizes": size_table(found),
        "notes": [*warnings(found), *informed(found)],
        "skipped": (*found.aside, *found.notes, *drawn.notes),
        "different": different,
        "same": same,
        "execution": tally(s.execution for s in found.students),
        "versions": tally(s.versions for s in found.students),
        "made_by": f"antishortcut {version('antishortcut')}",
        "contents": list(_contents(found, table, drawn, sides, classes)),
    }


def heads(table: Table, columns: list[str]) -> list[tuple[str, str, int]]:
    """Columns that follow each other under one set: its name, how its images came about, how many."""
    grouped = ((name, len(list(held))) for name, held in groupby(columns, key=lambda column: parts(column)[0]))
    return [(name, table.source(name), count) for name, count in grouped]


def _contents(
    found: Found, table: Table, drawn: Drawn, sides: list[Beside], classes: list[ClassTable]
) -> Iterator[tuple[str, str]]:
    """(anchor, title) of the parts the page has."""
    if found.students:
        yield "results", "Results"
    if found.progress:
        yield "progress", "In progress"
    if found.students:
        if (differences := Differences.of(table)).each:
            yield "differences", f"Difference to {differences.references}"
        if sides:
            yield "printed", "Beside the printed numbers"
        yield from (("sweep", f"How scores depend on {sweep.key}") for sweep, _ in drawn.sweep)
        yield from (("scatter", f"Choosing by {scatter.x}") for scatter, _ in drawn.scatter)
        yield "leaning", "What the student leans on"
        if classes:
            yield "classes", "Class by class"
        if drawn.scenes:
            yield "scenes", "Scenes"
        if drawn.mechanism or drawn.embeddings or drawn.teachers:
            yield "mechanism", "Mechanism"
        if drawn.training:
            yield "training", "Training"
        if size_table(found):
            yield "sizes", "Size and latency"
        yield "settings", "Settings"
    if found.teachers:
        yield "teachers", "Teachers"
    if found.aside or found.notes or drawn.notes:
        yield "aside", "Not shown"


def _spark(curve: Curve) -> str:
    """The points of a small curve, for an SVG polyline."""
    width, height = SPARK
    first, last = curve[0][0], curve[-1][0]
    low, high = min(v for _, v in curve), max(v for _, v in curve)
    across, up = (last - first) or 1.0, (high - low) or 1.0
    step = -(-len(curve) // width)
    return " ".join(
        f"{2 + (epoch - first) / across * (width - 4):.1f},{height - 3 - (value - low) / up * (height - 6):.1f}"
        for epoch, value in curve[::-1][::step][::-1]
    )


def _clock(seconds: float | None) -> str:
    return "–" if seconds is None else f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
