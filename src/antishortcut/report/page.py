"""The page: one HTML file that opens anywhere, offline, and asks nothing of anyone."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from datetime import datetime
from functools import lru_cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from antishortcut.fileio import atomic_write
from antishortcut.report.charts import style
from antishortcut.report.collect import BASELINE, Curve, Found
from antishortcut.report.figures import Drawn
from antishortcut.report.model_cost import size_table
from antishortcut.report.notes import informed, settings, subtitle, tally, warnings
from antishortcut.report.paper_comparison import HEAD, beside, told
from antishortcut.report.reader import MECHANISM, readable
from antishortcut.report.robustness import corruption_table
from antishortcut.report.scatter import PICKS
from antishortcut.report.segmentation_figures import class_tables
from antishortcut.report.table import Differences, Table, arrow, better, interval, legend, parts, signed, view_of, words

SPARK = (120, 28)  # pixels of a curve in a line of text


def render(found: Found, table: Table, drawn: Drawn) -> str:
    """The page. Everything from outside is escaped in the template, in text and in JSON alike."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "interval": interval, "signed": signed, "words": words, "arrow": arrow, "better": better,
        "score": lambda column: parts(column)[1], "sections": _sections, "spark": _spark, "clock": _clock,
    }  # fmt: skip
    scripts = [Markup(libraries()), Markup(environment.get_template("script.html").render())]
    page = SimpleNamespace(**_context(found, table, drawn), scripts=scripts, policy=policy(scripts))
    return environment.get_template("template.html").render(page=page)


def policy(scripts: list[Markup]) -> str:
    """Only the page's own scripts run, known by their hashes; nothing is fetched.

    The charts' expressions go through Vega's interpreter, so 'unsafe-eval' is not needed. Vega writes styles inline.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
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
        "classes": classes,
        "judged": " / ".join(dict.fromkeys(words(one.primary_metric) for one in found.progress)),
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
    }


def heads(table: Table, columns: list[str]) -> list[tuple[str, str, int]]:
    """Columns that follow each other under one set: its name, how its images came about, how many."""
    grouped = ((name, len(list(held))) for name, held in groupby(columns, key=lambda column: parts(column)[0]))
    return [(name, table.source(name), count) for name, count in grouped]


def _sections(main: Markup) -> list[tuple[str, Markup]]:
    """(anchor, title) of the parts of the page, for its contents."""
    return [(anchor, Markup(title)) for anchor, title in re.findall(r'<section id="(\w+)"><h2>(.*?)</h2>', main)]


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


# --- Vega ---

SNIPPET = "window.vegaEmbed = vegaEmbed;"


@lru_cache(maxsize=1)
def libraries() -> str:
    """The script, fit to stand inside an HTML page."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~/.cache")))
    cached = home / "antishortcut" / f"vega-{version('vl-convert-python')}.js"
    try:
        return cached.read_bytes().decode()  # read_text would change its line ends, and so its hash
    except (OSError, ValueError):
        bundle = vl_convert.javascript_bundle(SNIPPET).replace("</script", "<\\/script").replace("<!--", "<\\!--")
    try:
        with atomic_write(cached) as file:
            file.write(bundle.encode())
    except OSError:
        pass  # without a cache every report bundles anew
    return bundle
