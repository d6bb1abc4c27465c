"""Run folders → report.html, table.md, table.tex, classes.md, figures/. Without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.errors import UserError

if TYPE_CHECKING:
    from antishortcut.report.text import Report

EXTRA = ("altair", "jinja2", "markupsafe", "polars", "vl_convert")  # packages of antishortcut[report]


def make_report(
    folder: Path, columns: str | None = None, sweep: str | None = None, scatter: str | None = None
) -> dict[str, Any]:
    """Write report.html, table.md, table.tex and figures/ (of segmentation also classes.md) into a folder of runs.

    `columns` chooses those of the tables, `sweep` names a numeric setting that scores may depend on (sweep.md),
    `scatter` two columns (scatter.md). Returns `Report.summary`.
    """
    return build(Path(folder), columns, sweep=sweep, scatter=scatter).summary(columns)


def summarise(folder: Path) -> list[str]:
    """What the numbers of a folder of runs say: the first sentences of its report, without making one."""
    from antishortcut.report.collect import collect
    from antishortcut.report.summary import sentences

    return sentences(collect(folder))


def build(folder: Path, columns: str | None = None, *, sweep: str | None = None, scatter: str | None = None) -> Report:
    """Collect, draw, write."""
    try:
        from antishortcut.fileio import atomic_write, refuse_links
        from antishortcut.report.charts import draw_all
        from antishortcut.report.collect import collect
        from antishortcut.report.page import make_figures, render
        from antishortcut.report.scatter import ScatterAnalysis, scatter_figure
        from antishortcut.report.segmentation_figures import draw_scenes
        from antishortcut.report.sweep import Sweep, sweep_figure
        from antishortcut.report.table import ResultTable
        from antishortcut.report.text import Report, write_texts
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise UserError(f"a report needs {error.name}: pip install 'antishortcut[report]'") from None

    refuse_links(folder, "figures")
    runs = collect(folder)
    table = ResultTable(runs)
    selected = table.select(columns)
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
