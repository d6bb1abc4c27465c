"""The tables at a terminal, each with the lines that explain it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from antishortcut.report.collect import Found
from antishortcut.report.differences import Differences
from antishortcut.report.informed import informed
from antishortcut.report.marks import legend
from antishortcut.report.printed import HEAD, beside, told
from antishortcut.report.sizes import size_table
from antishortcut.report.table import Table

Grid = tuple[list[str], list[tuple[str, ...]]]  # head and lines
BORDER = 3  # characters beside the text of a column


class Shown(NamedTuple):
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: Sequence[str]  # lines


def tables(found: Found, table: Table, width: int | None = None) -> Iterator[Shown]:
    """Means with marks; differences to the baseline; the paper's pairs beside print; size and latency."""
    sides, differences = beside(found, table), Differences.of(table)
    judged = [] if table.headline == "accuracy" else [f"last, best: {table.headline}."]
    marks = legend(bool(table.differences), len(set(table.suites.values())))
    grids = across(table.rows(), width or _width())
    for number, grid in enumerate(grids, start=1):
        title = str(found.folder) if number == 1 else f"{found.folder} ({number} of {len(grids)})"
        below = [*table.told, *judged] * (number == 1) + [marks, *informed(found)] * (number == len(grids))
        yield Shown(title, *grid, below if table.cells else [])
    if rows := differences.brief():
        more = " (all in table.md)" * (len(rows) < len(differences.each))
        title = f"difference to {differences.references}, seed by seed{more}"
        yield Shown(title, differences.head(), rows, differences.told())
    for number, side in enumerate(sides, start=1):
        below = side.footnotes() + [told(sides)] * (number == len(sides))
        yield Shown(f"beside the printed numbers: {side.title}", HEAD, side.texts(), below)
    if (sizes := size_table(found)) and sizes.measured:
        yield Shown("size and latency", sizes.head(), sizes.texts(), [sizes.told()])


def across(rows: list[dict[str, Any]], width: int) -> list[Grid]:
    """Rows for a terminal: a score per line and a method per column where that fits.

    Else a method per line, and as many tables of the same methods as the scores need. Mean ± deviation and marks in
    one cell.
    """
    aside = (" ±", " mark", " low", " high")
    keys = [key for key in (rows[0] if rows else {}) if key not in ("method", "label") and not key.endswith(aside)]
    methods = [row["method"] for row in rows]
    flat = ["", *methods], [(key, *(_cell(row, key) for row in rows)) for key in keys]
    if not rows or 1 + sum(_wide(head, cells) for head, cells in zip(flat[0], _columns(flat), strict=True)) <= width:
        return [flat]
    columns = [(key, [_cell(row, key) for row in rows]) for key in keys]
    left = width - 1 - _wide("", methods)
    parts: list[list[tuple[str, list[str]]]] = [[]]
    taken = 0
    for head, cells in columns:
        own = _wide(head, cells)
        if parts[-1] and taken + own > left:
            parts.append([])
            taken = 0
        parts[-1].append((head, cells))
        taken += own
    return [_grid(methods, part) for part in parts]


def _grid(methods: list[str], part: list[tuple[str, list[str]]]) -> Grid:
    heads = ["\n".join(textwrap.wrap(head, _text(head, cells), break_long_words=False)) for head, cells in part]
    return ["", *heads], list(zip(methods, *(cells for _, cells in part), strict=True))


def _columns(grid: Grid) -> list[list[str]]:
    head, lines = grid
    return [[line[at] for line in lines] for at in range(len(head))]


def _text(head: str, cells: Sequence[str]) -> int:
    """Characters a column needs: a cell in one line, a head in a line per word if it must be."""
    return max(len(each) for each in (*head.split(), *cells, " "))


def _wide(head: str, cells: Sequence[str]) -> int:
    return _text(head, cells) + BORDER


def _width() -> int:
    """As the command's tables find it."""
    from rich.console import Console

    return Console().width


def _cell(row: dict[str, Any], key: str) -> str:
    value = row[key]
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    if row.get(f"{key} low") is not None:
        return f"{value:+z.3f} ({row[f'{key} low']:+.3f} … {row[f'{key} high']:+.3f})"
    spread, mark = row.get(f"{key} ±"), row.get(f"{key} mark", "")
    text = f"{value:{'+' * key.startswith('vs ')}z.3f}" + ("" if spread is None else f" ± {spread:.3f}")
    return f"{text} {mark}".rstrip()
