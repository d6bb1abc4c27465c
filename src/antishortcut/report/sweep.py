"""How scores depend on one numeric setting: means over seeds beside the baseline, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antishortcut.report.collect import BASELINE, Found, Student
from antishortcut.report.columns import arrow, better
from antishortcut.report.marks import MARKS, mark
from antishortcut.report.swept import Line, lines_over
from antishortcut.report.table import Table, against, values_of
from antishortcut.stats import Summary, summary


@dataclass(frozen=True)
class Cell:
    """Mean ± deviation over seeds, and whether it is surely better or worse than the baseline."""

    score: Summary
    mark: str

    @property
    def mean(self) -> str:
        return f"{self.score.mean:.3f}".replace("-", "−")

    @property
    def spread(self) -> str:
        return ("" if self.score.std is None else f"± {self.score.std:.3f} ") + f"({self.score.count})"

    def __str__(self) -> str:
        return f"{self.mean} {self.spread} {self.mark}".rstrip()


@dataclass(frozen=True)
class Row:
    """Of the table: a line at a value, or the baseline of a suite."""

    label: str
    value: float | None  # None for the baseline
    method: str
    cells: dict[str, Cell]

    @property
    def at(self) -> str:
        return BASELINE if self.value is None else f"{self.value:g}"


@dataclass(frozen=True)
class Sweep:
    """Lines over a setting, and the baseline of each suite."""

    key: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    base: dict[str, tuple[Student, ...]]  # suite → its baseline

    @classmethod
    def of(cls, found: Found, key: str, columns: Sequence[str]) -> Sweep:
        base: dict[str, tuple[Student, ...]] = {}
        for s in found.students:
            if s.run.name == BASELINE:
                base[s.run.suite] = (*base.get(s.run.suite, ()), s)
        return cls(key, tuple(columns), tuple(lines_over(key, found.students)), base)

    def rows(self) -> list[Row]:
        """Line by line, the baseline before the first line of its suite."""
        rows: list[Row] = []
        told: set[str] = set()
        for line in self.lines:
            if line.suite in self.base and line.suite not in told:
                told.add(line.suite)
                base = self.base[line.suite]
                rows.append(Row(line.suite, None, base[0].method, self._cells(base)))
            rows += [Row(line.label, p.value, p.method, self._cells(p.students)) for p in line.points]
        return rows

    def _cells(self, students: Sequence[Student]) -> dict[str, Cell]:
        base = self.base.get(students[0].run.suite, ())
        return {
            column: Cell(summary(values), MARKS[_sure(students, base, column)])
            for column in self.columns
            if (values := values_of(students, column))
        }

    def head(self) -> list[str]:
        return ["line", self.key, *(f"{column} {arrow(column)}".strip() for column in self.columns)]

    def texts(self) -> list[list[str]]:
        """The table as words."""
        return [[row.label, row.at, *(str(row.cells.get(c, "–")) for c in self.columns)] for row in self.rows()]

    def brief(self) -> list[list[str]]:
        """The same for a terminal, means and marks alone."""
        cells = [(row, [row.cells.get(column) for column in self.columns]) for row in self.rows()]
        return [[row.label, row.at, *(f"{c.mean} {c.mark}".rstrip() if c else "–" for c in cs)] for row, cs in cells]

    def told(self) -> str:
        """How to read the marks."""
        return (
            f"Mean ± standard deviation (seeds). ▲ better, ▼ worse than {BASELINE} of the suite: the 95 % interval of "
            "the difference, seed by seed over the seeds in common, leaves zero out (Student’s t, not corrected for "
            "looking at many). The runs of a line differ in nothing but the setting, the seed and the name."
        )

    def flat(self) -> dict[str, Any]:
        """The table as numbers, for JSON."""
        rows = []
        for row in self.rows():
            tree: dict[str, Any] = {"line": row.label, "value": BASELINE if row.value is None else row.value}
            for column, cell in row.cells.items():
                tree |= {column: cell.score.mean, f"{column} ±": cell.score.std, f"{column} seeds": cell.score.count}
                tree |= {f"{column} mark": cell.mark}
            rows.append(tree)
        return {"setting": self.key, "columns": list(self.columns), "rows": rows}


def usual(table: Table) -> list[str]:
    """Of the first table, the columns in which more is better; `best` was chosen by looking."""
    return [column for column in table.columns if better(column) > 0 and column != "best"]


def _sure(students: Sequence[Student], base: Sequence[Student], column: str) -> int:
    """1 where the 95 % interval of the paired difference lies on the better side of zero, −1 on the worse, else 0."""
    found = mark(column, against(students, base, column), best=False)
    return found.way if found.sure else 0
