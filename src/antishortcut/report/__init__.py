"""Run folders → report.html, table.md, table.tex, classes.md, figures/. Without torch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.errors import UserError

if TYPE_CHECKING:
    from antishortcut.report.page import Figures
    from antishortcut.report.table import ResultTable
    from antishortcut.report.text import TextTable

EXTRA = ("altair", "jinja2", "markupsafe", "orjson", "polars", "vl_convert")  # packages of antishortcut[report]


@dataclass(frozen=True)
class Report:
    """The runs in a table, and their figures."""

    table: ResultTable
    drawn: Figures

    def summary(self, columns: str | None) -> dict[str, Any]:
        """For --json: `rows` (one per method), `differences`, `printed` (the paper's numbers), `runs` (finished) …

        Where there are any: `sweep`, `scatter`, `classes` (the IoU of each), `sizes` (parameters, latencies).
        """
        from antishortcut.report.model_cost import size_table
        from antishortcut.report.paper_comparison import compare_with_paper
        from antishortcut.report.segmentation_figures import class_tables

        table, runs = self._selected(columns), self.table.runs
        unfinished = [(each.path, each.state) for each in runs.progress] + [
            (each.run, each.state) for each in runs.aside
        ]
        more: dict[str, Any] = {}
        for key, drawn in (("sweep", self.drawn.sweep), ("scatter", self.drawn.scatter)):
            more |= {key: drawn[0][0].flat()} if drawn else {}
        if classes := class_tables(runs):
            more["classes"] = [each.flat() for each in classes]
        if sizes := size_table(runs):
            more["sizes"] = [row.flat() for row in sizes.rows]
        return more | {
            "rows": table.rows(),
            "differences": [one.flat() for one in table.differences],
            "printed": [each.flat() for each in compare_with_paper(table)],
            "page": str(runs.folder / "report.html"),
            "runs": len(runs.students),
            "unfinished": [{"run": run, "state": state} for run, state in unfinished],
            "skipped": [{"file": note.run, "why": note.state} for note in (*runs.notes, *self.drawn.notes)],
        }

    def tables(self, columns: str | None, width: int | None = None) -> Iterator[TextTable]:
        """For a terminal: means and marks, differences, comparison with the paper, size and latency."""
        from antishortcut.report.text import terminal_tables

        return terminal_tables(self._selected(columns), width)

    def _selected(self, columns: str | None) -> ResultTable:
        return self.table if columns is None else self.table.select(columns)


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
        from antishortcut.report.page import make_figures, render
        from antishortcut.report.scatter import ScatterAnalysis, scatter_figure
        from antishortcut.report.segmentation_figures import draw_scenes
        from antishortcut.report.sweep import Sweep, sweep_figure
        from antishortcut.report.table import ResultTable
        from antishortcut.report.text import write_texts
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise UserError(
            f"a report needs {error.name}, which is not installed: pip install 'antishortcut[report]'"
        ) from None

    runs = collect(folder)
    try:  # before anything is drawn
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UserError(f"cannot write to {folder} ({why}); make it writable, or report on a copy of it") from None
    table = ResultTable(runs)
    selected = table if columns is None else table.select(columns)
    drawn = make_figures(table if runs.drawn is runs else ResultTable(runs.drawn))
    if sweep is not None:
        swept = Sweep(selected, sweep)
        drawn.sweep.append((swept, sweep_figure(swept)))
    if scatter is not None:
        dots = ScatterAnalysis(table, scatter)
        drawn.scatter.append((dots, scatter_figure(dots, runs)))
    write_texts(selected, drawn)
    draw_all(drawn.all(), folder / "figures")
    draw_scenes(drawn.scenes, folder / "figures")
    with atomic_write(folder / "report.html") as file:
        file.write(render(table, drawn).encode(errors="replace"))
    return Report(table, drawn)
