"""The page: one HTML file that opens anywhere, offline, and fetches nothing. And all figures that it shows."""

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import vl_convert
from altair.utils import schemapi
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from antishortcut.fileio import atomic_write
from antishortcut.report import notes, paper_comparison, score_figures
from antishortcut.report.cases import SavedCase, saved_cases
from antishortcut.report.charts import Figure, style
from antishortcut.report.class_answers import ClassAnswers, class_answers
from antishortcut.report.collect import BASELINE, Curve
from antishortcut.report.first_screen import FirstScreen, first_screen
from antishortcut.report.frontier import frontier_figure
from antishortcut.report.glossary import Glossary
from antishortcut.report.mechanism_figures import direction_figures, embedding_figures, mechanism_figures
from antishortcut.report.model_cost import size_table
from antishortcut.report.reader import MECHANISM, PROBES, Directions, Notes, Skipped, readable
from antishortcut.report.reference_rows import reference_rows
from antishortcut.report.scatter import PICKS, ScatterAnalysis
from antishortcut.report.segmentation_figures import Gallery, class_tables, galleries
from antishortcut.report.sweep import Sweep
from antishortcut.report.table import Difference, ResultTable, arrow, by_set, interval, signed, split_column, words

SPARK = (120, 28)  # pixels of a curve in a line of text
SNIPPET = "window.vegaEmbed = vegaEmbed;"


@dataclass
class Figures:
    """By the part of the page they stand in; only those with data."""

    first: FirstScreen | None
    differences: list[Figure]
    frontier: list[Figure]
    leaning: list[Figure]
    scenes: list[Gallery]
    answers: list[ClassAnswers]
    mechanism: list[Figure]
    embeddings: list[Figure]
    teachers: list[tuple[Directions, list[Figure]]]
    training: list[Figure]
    cases: list[SavedCase]
    notes: list[Skipped]  # on what could not be drawn
    sweep: list[tuple[Sweep, Figure]] = field(default_factory=list)  # these two when asked for
    scatter: list[tuple[ScatterAnalysis, Figure]] = field(default_factory=list)

    def all(self) -> list[Figure]:
        """In the order of the page."""
        teachers = [figure for _, figures in self.teachers for figure in figures]
        requested = [figure for _, figure in (*self.sweep, *self.scatter)]
        students = [self.differences, self.frontier, requested, self.leaning, self.mechanism, self.embeddings]
        return [figure for figures in (*students, teachers, self.training) for figure in figures]


@schemapi.debug_mode(False)  # charts unchecked, in half the time; tests draw each
def make_figures(table: ResultTable) -> Figures:
    def filled(figures: Iterable[Figure]) -> list[Figure]:
        return [figure for figure in figures if figure.panels]

    skipped = Notes()
    scenes = galleries(table, skipped)
    return Figures(
        first=first_screen(table, scenes, skipped),
        differences=filled([score_figures.difference_figure(table)]),
        frontier=filled([frontier_figure(table.runs)]),
        leaning=filled(score_figures.leaning_figures(table)),
        scenes=scenes,
        answers=class_answers(table, skipped),
        mechanism=filled(mechanism_figures(table)),
        embeddings=embedding_figures(table.runs, skipped),
        teachers=[(each, direction_figures(each, index)) for index, each in enumerate(table.runs.directions)],
        training=filled(score_figures.training_figures(table.runs)),
        cases=saved_cases(table.runs.folder, skipped),
        notes=skipped.skipped,
    )


def render(table: ResultTable, drawn: Figures) -> str:
    """The report's page."""
    runs = table.runs
    different, same = notes.settings(runs)
    sets = table.sets()
    comparisons = paper_comparison.compare_with_paper(table)
    differences: dict[str, dict[str, Difference]] = {}  # by method and column
    for one in table.differences:
        differences.setdefault(one.method, {})[one.column] = one
    return render_page(
        "template.html",
        drawn=drawn.all(),
        methods=runs.methods,
        title=readable(runs.folder.resolve().name),
        subtitle=notes.subtitle(runs),
        runs=runs,
        table=table,
        figures=drawn,
        style=style(runs.methods),
        baseline=BASELINE,
        differences=differences,
        seeds_needed=Difference.NOTE,
        comparisons=comparisons,
        printed_head=paper_comparison.HEAD,
        printed_explanation=paper_comparison.EXPLANATION,
        picks=PICKS,
        probe_columns=sets.get(PROBES, []),
        sets={name: columns for name, columns in sets.items() if not name.startswith(MECHANISM)},
        views={name.partition(" ")[2]: c for name, c in sets.items() if name.startswith(f"{MECHANISM} ")},
        classes=class_tables(runs),
        progress_metric=" / ".join(dict.fromkeys(words(one.primary_metric) for one in runs.progress)),
        errors=score_figures.corruption_table(runs),
        references=sorted({(name, run) for s in runs.students for name, run in s.references.items()}),
        sizes=size_table(runs),
        reference_rows=reference_rows(table),
        notes=[*notes.warnings(table), *notes.teacher_notes(runs)],
        skipped=(*runs.aside, *runs.notes, *drawn.notes),
        different=different,
        same=same,
        execution=notes.tally(s.execution for s in runs.students),
        versions=notes.tally(s.versions for s in runs.students),
    )  # fmt: skip


def render_page(
    template: str,
    drawn: Iterable[Figure],
    methods: list[str],
    filters: Mapping[str, Callable[..., Any]] | None = None,
    **context: Any,
) -> str:
    """A template with its charts. Everything from outside is escaped in it, in text and in JSON alike."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "interval": interval, "signed": signed, "words": words, "arrow": arrow, "sets": by_set,
        "terms": Glossary(), "score": lambda column: split_column(column)[1], "sections": _sections, "spark": _spark,
        "clock": lambda x: "–" if x is None else f"{datetime.fromtimestamp(x):%Y-%m-%d %H:%M}",
    } | dict(filters or {})  # fmt: skip
    scripts = [Markup(libraries()), Markup(environment.get_template("script.html").render())]
    panels = [panel for figure in drawn for panel in figure.panels]
    index = {id(panel): number for number, panel in enumerate(panels)}
    page = SimpleNamespace(
        chart=lambda panel: index[id(panel)],
        data={"methods": methods, "charts": [panel.spec() for panel in panels]},
        methods=methods,
        scripts=scripts,
        policy=_policy(scripts),
        made_by=f"antishortcut {version('antishortcut')}",
        **context,
    )
    return environment.get_template(template).render(page=page)


def _policy(scripts: list[Markup]) -> str:
    """Only the page's own scripts run, known by their hashes; nothing is fetched.

    The charts' expressions go through Vega's interpreter, so 'unsafe-eval' is not needed. Vega writes styles inline.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@lru_cache(maxsize=1)
def libraries() -> str:
    """Vega's script, fit to stand inside an HTML page."""
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
        pass  # without a cache every report bundles again
    return bundle


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
