"""The page: one HTML file that opens anywhere, offline, and asks nothing of anyone."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from antishortcut.folder import replacing
from antishortcut.report.charts import Figure, style
from antishortcut.report.collect import Found, Student
from antishortcut.report.table import BASELINE, Table, interval, signed

ASIDE = {"name", "seed"}  # differ between runs by design
Fields = list[tuple[str, str]]


def write_page(found: Found, table: Table, figures: list[Figure], path: Path) -> None:
    """report.html from the template; everything from outside is escaped there, in text and in JSON alike."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"csp": _csp, "interval": interval, "signed": signed}
    specs = [panel.spec() for figure in figures for panel in figure.panels]
    methods = list(found.groups)
    different, same = settings(found)
    page = environment.get_template("template.html").render(
        title=found.folder.resolve().name,
        subtitle=_subtitle(found),
        found=found,
        table=table,
        figures=figures,
        specs=specs,
        methods=methods,
        number={method: index for index, method in enumerate(methods)},
        style=style(methods),
        baseline=BASELINE,
        compared=[name for name in table.columns if any(name in values for values in table.differences.values())],
        views=sorted({s.view for s in found.students if s.view}),
        notes=_notes(found),
        different=different,
        same=same,
        execution=_tally(s.execution for s in found.students),
        versions=_tally(s.versions for s in found.students),
        libraries=_libraries(),
        made_by=f"antishortcut {version('antishortcut')}",
    )
    with replacing(path) as file:
        file.write(page.encode(errors="replace"))


@lru_cache(maxsize=1)
def _libraries() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script, fit to stand inside an HTML page."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return Markup(bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def _csp(script: str) -> str:
    """The hash by which the page's security policy knows its own scripts; no other script runs."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def settings(found: Found) -> tuple[dict[str, dict[str, str]], Fields]:
    """Settings in which methods differ (field → method → value), and those all share."""
    spreads = {method: _spread(students) for method, students in found.groups.items()}
    fields = dict.fromkeys(field for spread in spreads.values() for field in spread)
    different, same = {}, []
    for field in fields:
        values = {method: ", ".join(spread.get(field, ["–"])) for method, spread in spreads.items()}
        if len(set(values.values())) == 1:
            same.append((field, next(iter(values.values()))))
        else:
            different[field] = values
    return different, same


def _spread(students: list[Student]) -> dict[str, list[str]]:
    """The values each setting has among a method's runs; one, unless its seeds differ in more than the seed."""
    values: dict[str, dict[str, None]] = {}
    for student in students:
        for field, value in _flat(student.run.model_dump(mode="json", exclude=ASIDE)):
            values.setdefault(field, {})[value] = None
    return {field: list(seen) for field, seen in values.items()}


def _flat(tree: Mapping[str, Any], above: str = "") -> Fields:
    """Dotted names and values of nested settings."""
    fields: Fields = []
    for key, value in tree.items():
        if isinstance(value, dict):
            fields += _flat(value, f"{above}{key}.")
        else:
            fields.append((above + key, "–" if value is None else str(value)))
    return fields


def _tally(trees: Iterable[Mapping[str, Any]]) -> Fields:
    """Values of each field over all runs, with how many runs have them where they differ."""
    counts: dict[str, Counter[str]] = {}
    for tree in trees:
        for field, value in _flat(tree):
            counts.setdefault(field, Counter())[value] += 1
    return [
        (field, next(iter(seen)) if len(seen) == 1 else ", ".join(f"{value} ({n} runs)" for value, n in seen.items()))
        for field, seen in counts.items()
    ]


def _notes(found: Found) -> list[str]:
    """What a reader must know before comparing."""
    notes = []
    for method, students in found.groups.items():
        fields = [field for field, values in _spread(students).items() if len(values) > 1]
        if fields:
            notes.append(f"The seeds of {method} differ in more than the seed: {', '.join(fields)}.")
    judges = sorted({student.judge for student in found.students})
    if len(judges) > 1:
        notes.append(f"Runs were judged on different sets during training: {', '.join(judges)}.")
    return notes


def _subtitle(found: Found) -> str:
    """What was compared, in a line."""
    runs = [student.run for student in found.students]
    parts = [
        " / ".join(dict.fromkeys(names))
        for names in ((r.model.name for r in runs), (r.data.name for r in runs), (f"{r.epochs} epochs" for r in runs))
    ]
    count, methods = len(runs), len(found.groups)
    parts += [f"{methods} method{'s' * (methods != 1)}", f"{count} finished run{'s' * (count != 1)}"]
    return " · ".join(part for part in parts if part)
