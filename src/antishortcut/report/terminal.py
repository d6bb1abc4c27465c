"""The tables at a terminal, each with the lines that explain it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from antishortcut.report import across
from antishortcut.report.beside import HEAD, told
from antishortcut.report.collect import BASELINE, Found
from antishortcut.report.differences import Differences
from antishortcut.report.marks import legend
from antishortcut.report.printed import beside
from antishortcut.report.table import Table


class Shown(NamedTuple):
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: Sequence[str]  # lines


def tables(found: Found, table: Table) -> Iterator[Shown]:
    """Means with marks; differences to the baseline; the paper's pairs beside print."""
    sides, differences = beside(found, table), Differences.of(table)
    labels = [f"{side.suite}: {label}." for side in sides for label in side.labels]
    judged = [] if table.headline == "accuracy" else [f"last, best: {table.headline}."]
    marks = legend(bool(table.differences), len(set(table.suites.values())))
    yield Shown(str(found.folder), *across(table.rows()), [*labels, *judged, marks] if table.cells else [])
    if rows := differences.brief():
        more = " (all in table.md)" * (len(rows) < len(differences.cells))
        title = f"difference to {BASELINE}, seed by seed{more}"
        yield Shown(title, differences.head(), rows, differences.told())
    for number, side in enumerate(sides, start=1):
        below = side.footnotes() + [told(sides)] * (number == len(sides))
        yield Shown(f"beside the printed numbers: {side.title}", HEAD, side.texts(), below)
