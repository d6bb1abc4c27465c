"""Run folders → report.html, table.md, table.tex, classes.md, figures/. Needs neither a GPU nor torch."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.errors import UserError

if TYPE_CHECKING:
    from antishortcut.report.collect import Found, Memory
    from antishortcut.report.figures import Drawn
    from antishortcut.report.table import Table
    from antishortcut.report.terminal import Shown

EXTRA = ("altair", "jinja2", "markupsafe", "orjson", "polars", "vl_convert")  # what antishortcut[report] brings


@dataclass(frozen=True)
class Report:
    """What was found, and what is shown of it."""

    found: Found
    table: Table
    drawn: Drawn

    def summary(self, columns: str | None) -> dict[str, Any]:
        """`rows` (one per method), `page`, `runs` (finished students), `unfinished` run folders, `skipped` files.

        `differences` to the baseline; `printed`, the paper's numbers beside those of its pairs; `sweep` (one row per
        line and value) and `scatter` where they were asked for; `classes`, the IoU of each, where there are masks;
        `sizes`, where parameters or latencies are known.
        """
        from antishortcut.report.classes import class_tables
        from antishortcut.report.differences import Differences
        from antishortcut.report.printed import beside
        from antishortcut.report.sizes import size_table

        found, table = self.found, self._chosen(columns)
        unfinished = [(p.path, p.state) for p in found.progress]
        unfinished += [(aside.run, aside.state) for aside in found.aside]
        asked: dict[str, Any] = {}
        for sweep, _ in self.drawn.sweep:
            asked["sweep"] = sweep.flat()
        for scatter, _ in self.drawn.scatter:
            asked["scatter"] = scatter.flat()
        if classes := class_tables(found):
            asked["classes"] = [each.flat() for each in classes]
        if sizes := size_table(found):
            asked["sizes"] = [row.flat() for row in sizes.rows]
        return asked | {
            "rows": table.rows(),
            "differences": Differences.of(table).flat(),
            "printed": [side.flat() for side in beside(found, table)],
            "page": str(found.folder / "report.html"),
            "runs": len(found.students),
            "unfinished": [{"run": run, "state": state} for run, state in unfinished],
            "skipped": [{"file": note.run, "why": note.state} for note in (*found.notes, *self.drawn.notes)],
        }

    def tables(self, columns: str | None, width: int | None = None) -> Iterator[Shown]:
        """What a terminal shows: of means and marks, differences, and the paper's pairs beside print.

        `width` is the terminal's where it is not given.
        """
        from antishortcut.report.terminal import tables

        return tables(self.found, self._chosen(columns), width)

    def _chosen(self, columns: str | None) -> Table:
        return self.table if columns is None else self.table.choose(columns)


def make_report(
    folder: Path, columns: str | None = None, sweep: str | None = None, scatter: str | None = None
) -> dict[str, Any]:
    """Write report.html, table.md, table.tex and figures/ into a folder of runs; `columns` chooses those of the tables.

    Of segmentation also classes.md.
    `sweep` names a numeric setting that scores may depend on (sweep.md), `scatter` two columns (scatter.md).
    Returns what `Report.summary` says. JSON can hold all of it.
    """
    return build(Path(folder), columns, sweep=sweep, scatter=scatter).summary(columns)


def build(
    folder: Path,
    columns: str | None = None,
    memory: Memory | None = None,
    *,
    sweep: str | None = None,
    scatter: str | None = None,
) -> Report:
    """Collect, draw, write. `memory` keeps what was read for the next time."""
    try:
        from antishortcut.folder import replacing
        from antishortcut.report.charts import draw_all
        from antishortcut.report.classes import class_tables
        from antishortcut.report.collect import collect
        from antishortcut.report.figures import figures
        from antishortcut.report.libraries import warm
        from antishortcut.report.page import render
        from antishortcut.report.scatter import Scatter, scatter_figure
        from antishortcut.report.scenes import draw_scenes
        from antishortcut.report.sweep import Sweep, sweep_figure, usual
        from antishortcut.report.table import Table
        from antishortcut.report.texts import write_classes, write_latex, write_markdown, write_scatter, write_sweep
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise UserError(
            f"a report needs {error.name}, which is not installed: pip install 'antishortcut[report]'"
        ) from None

    threading.Thread(target=warm, daemon=True).start()  # the libraries take their seconds while folders are read
    found = collect(folder, memory)
    _writable(folder)
    table = Table.of(found)
    short = table if columns is None else table.choose(columns)
    swept = [] if sweep is None else [Sweep.of(found, sweep, usual(table) if columns is None else short.columns)]
    dotted = [] if scatter is None else [Scatter.of(found, table, scatter)]
    few = found.drawn
    drawn = replace(
        figures(few, table if few is found else Table.of(few)),
        sweep=[(each, sweep_figure(each, table)) for each in swept],
        scatter=[(each, scatter_figure(each, found)) for each in dotted],
    )
    for one in swept:
        write_sweep(one, folder / "sweep.md")
    for other in dotted:
        write_scatter(other, folder / "scatter.md")
    if classes := class_tables(found):
        write_classes(classes, folder / "classes.md")
    write_markdown(found, short, folder / "table.md")
    write_latex(short, folder / "table.tex")
    draw_all(drawn.all(), folder / "figures")
    draw_scenes(drawn.scenes, folder / "figures")
    page, _ = render(found, table, drawn)
    with replacing(folder / "report.html") as file:
        file.write(page.encode(errors="replace"))
    return Report(found, table, drawn)


def _writable(folder: Path) -> None:
    """A folder that takes no files is refused before anything is drawn."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UserError(f"cannot write to {folder} ({why}); make it writable, or report on a copy of it") from None
