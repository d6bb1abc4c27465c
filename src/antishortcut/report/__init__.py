"""Run folders → report.html, table.md, table.tex, classes.md, figures/. Without torch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.errors import UserError

if TYPE_CHECKING:
    from antishortcut.report.collect import Found
    from antishortcut.report.figures import Drawn
    from antishortcut.report.table import Table
    from antishortcut.report.text import Shown

EXTRA = ("altair", "jinja2", "markupsafe", "orjson", "polars", "vl_convert")  # what antishortcut[report] brings


@dataclass(frozen=True)
class Report:
    """The runs, their table and their figures."""

    found: Found
    table: Table
    drawn: Drawn

    def summary(self, columns: str | None) -> dict[str, Any]:
        """For --json: `rows` (one per method), `differences`, `printed` (the paper's numbers), `runs` (finished) …

        Where there are any: `sweep`, `scatter`, `classes` (the IoU of each), `sizes` (parameters, latencies).
        """
        from antishortcut.report.model_cost import size_table
        from antishortcut.report.paper_comparison import beside
        from antishortcut.report.segmentation_figures import class_tables
        from antishortcut.report.table import Differences

        result, drawn, table = self.found, self.drawn, self._chosen(columns)
        unfinished = [(each.path, each.state) for each in result.progress]
        unfinished += [(each.run, each.state) for each in result.aside]
        more: dict[str, Any] = {}
        for key, shown in (("sweep", drawn.sweep), ("scatter", drawn.scatter)):
            more |= {key: shown[0][0].flat()} if shown else {}
        if classes := class_tables(result):
            more["classes"] = [each.flat() for each in classes]
        if sizes := size_table(result):
            more["sizes"] = [row.flat() for row in sizes.rows]
        return more | {
            "rows": table.rows(),
            "differences": Differences.of(table).flat(),
            "printed": [side.flat() for side in beside(result, table)],
            "page": str(result.folder / "report.html"),
            "runs": len(result.students),
            "unfinished": [{"run": run, "state": state} for run, state in unfinished],
            "skipped": [{"file": note.run, "why": note.state} for note in (*result.notes, *drawn.notes)],
        }

    def tables(self, columns: str | None, width: int | None = None) -> Iterator[Shown]:
        """What a terminal shows: means and marks, differences, the paper's pairs beside print, size and latency."""
        from antishortcut.report.text import terminal_tables

        return terminal_tables(self.found, self._chosen(columns), width)

    def _chosen(self, columns: str | None) -> Table:
        return self.table if columns is None else self.table.choose(columns)


def make_report(
    folder: Path, columns: str | None = None, sweep: str | None = None, scatter: str | None = None
) -> dict[str, Any]:
    """Write report.html, table.md, table.tex and figures/ (of segmentation also classes.md) into a folder of runs.

    `columns` chooses those of the tables, `sweep` names a numeric setting that scores may depend on (sweep.md),
    `scatter` two columns (scatter.md). Returns `Report.summary`.
    """
    return build(Path(folder), columns, sweep=sweep, scatter=scatter).summary(columns)


def build(folder: Path, columns: str | None = None, *, sweep: str | None = None, scatter: str | None = None) -> Report:
    """Collect, draw, write."""
    try:
        from antishortcut.fileio import atomic_write
        from antishortcut.report.charts import draw_all
        from antishortcut.report.collect import collect
        from antishortcut.report.figures import figures
        from antishortcut.report.page import render
        from antishortcut.report.scatter import Scatter, scatter_figure
        from antishortcut.report.segmentation_figures import draw_scenes
        from antishortcut.report.sweep import Sweep, sweep_figure, usual
        from antishortcut.report.table import Table
        from antishortcut.report.text import write_texts
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise UserError(
            f"a report needs {error.name}, which is not installed: pip install 'antishortcut[report]'"
        ) from None

    result = collect(folder)
    _check_writable(folder)
    table = Table.of(result)
    short = table if columns is None else table.choose(columns)
    few = result.drawn
    drawn = figures(few, table if few is result else Table.of(few))
    if sweep is not None:
        swept = Sweep.of(result, sweep, usual(table) if columns is None else short.columns)
        drawn = replace(drawn, sweep=[(swept, sweep_figure(swept, table))])
    if scatter is not None:
        dots = Scatter.of(result, table, scatter)
        drawn = replace(drawn, scatter=[(dots, scatter_figure(dots, result))])
    write_texts(result, short, drawn)
    draw_all(drawn.all(), folder / "figures")
    draw_scenes(drawn.scenes, folder / "figures")
    with atomic_write(folder / "report.html") as file:
        file.write(render(result, table, drawn).encode(errors="replace"))
    return Report(result, table, drawn)


def _check_writable(folder: Path) -> None:
    """Refuse a read-only folder before anything is drawn."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UserError(f"cannot write to {folder} ({why}); make it writable, or report on a copy of it") from None
