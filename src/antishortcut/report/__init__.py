"""Run folders → report.html, table.md, figures/. Needs neither a GPU nor torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from antishortcut.errors import UserError

EXTRA = ("altair", "jinja2", "polars", "vl_convert")  # what `pip install antishortcut[report]` brings


def make_report(folder: Path) -> dict[str, Any]:
    """Write table.md, figures/ and report.html into a folder of runs.

    Returns `rows` (one per method), `page` (its path), `runs` (how many finished students are in the rows) and
    `unfinished` (run folders that are not, and why). JSON can hold all of it.
    """
    from antishortcut.report.collect import collect

    found = collect(Path(folder))
    try:
        from antishortcut.report.charts import draw, figures
        from antishortcut.report.page import write_page
        from antishortcut.report.table import Table, write_markdown
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise UserError(
            f"a report needs {error.name}, which is not installed: pip install 'antishortcut[report]'"
        ) from None

    table = Table.of(found)
    drawn = figures(found)
    write_markdown(found, table, found.folder / "table.md")
    for figure in drawn:
        draw(figure, found.folder / "figures")
    page = found.folder / "report.html"
    write_page(found, table, drawn, page)
    return {
        "rows": table.rows(),
        "page": str(page),
        "runs": len(found.students),
        "unfinished": [{"run": aside.run, "state": aside.state} for aside in found.aside],
    }


def across(rows: list[dict[str, Any]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Rows for a terminal, head and lines: a score per line, a method per column, mean ± deviation in one cell."""
    keys = [key for key in (rows[0] if rows else {}) if key != "method" and not key.endswith((" ±", " low", " high"))]
    return ["", *(row["method"] for row in rows)], [(key, *(_cell(row, key) for row in rows)) for key in keys]


def _cell(row: dict[str, Any], key: str) -> str:
    value = row[key]
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    if row.get(f"{key} low") is not None:
        return f"{value:+.3f} ({row[f'{key} low']:+.3f} … {row[f'{key} high']:+.3f})"
    spread = row.get(f"{key} ±")
    return f"{value:{'+' * key.startswith('vs ')}.3f}" + ("" if spread is None else f" ± {spread:.3f}")
