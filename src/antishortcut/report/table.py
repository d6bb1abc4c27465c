"""Students → one row per method, paired differences to KD, and table.md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antishortcut.folder import replacing
from antishortcut.report.collect import RANDOM, Found, Student
from antishortcut.stats import Paired, Summary, paired, summary

BASELINE = "kd"
HEADLINE = "last"  # the accuracy after the last epoch (decisions.md)


@dataclass(frozen=True)
class Table:
    """Means over seeds by method and column."""

    columns: tuple[str, ...]
    cells: dict[str, dict[str, Summary]]  # method → column → mean ± std
    seeds: dict[str, int]
    differences: dict[str, dict[str, Paired]]  # method → column → against the baseline of its suite
    random: float | None

    @classmethod
    def of(cls, found: Found) -> Table:
        groups = found.groups
        names = dict.fromkeys(name for student in found.students for name in student.values)
        columns = tuple(sorted((n for n in names if n != RANDOM), key=_place))
        cells = {
            method: {name: summary(values) for name in columns if (values := _values(students, name))}
            for method, students in groups.items()
        }
        randoms = [value for student in found.students if (value := student.values.get(RANDOM)) is not None]
        return cls(
            columns=columns,
            cells=cells,
            seeds={method: len(students) for method, students in groups.items()},
            differences=_differences(groups, columns),
            random=summary(randoms).mean if randoms else None,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Flat rows for the command and for JSON."""
        rows = []
        for method, cells in self.cells.items():
            row: dict[str, Any] = {"method": method, "seeds": self.seeds[method]}
            for name in self.columns:
                cell = cells.get(name)
                row |= {name: cell.mean if cell else None, f"{name} ±": cell.std if cell else None}
            if self.random is not None:
                row[RANDOM] = self.random
            if self.differences:
                value = self.differences.get(method, {}).get(HEADLINE)
                row[f"vs {BASELINE}"] = value.difference if value else None
                row[f"vs {BASELINE} low"] = value.low if value else None
                row[f"vs {BASELINE} high"] = value.high if value else None
            rows.append(row)
        return rows

    def best(self, column: str) -> set[str]:
        """The methods with the highest mean of a column in which more is better; nobody wins alone."""
        means = {method: cells[column].mean for method, cells in self.cells.items() if column in cells}
        if len(means) < 2 or not more_is_better(column):
            return set()
        return {method for method, mean in means.items() if mean == max(means.values())}

    def texts(self, method: str, column: str) -> tuple[str, str]:
        """A cell for a person: the mean, and its deviation; seeds without the score are said."""
        cell = self.cells[method].get(column)
        if cell is None:
            return "–", ""
        spread = [] if cell.std is None else [f"± {cell.std:.3f}"]
        missing = [] if cell.count == self.seeds[method] else [f"({cell.count} of {self.seeds[method]})"]
        return f"{cell.mean:.3f}", " ".join(spread + missing)


def more_is_better(column: str) -> bool:
    return column in ("last", "best") or column.endswith((" accuracy", " shape_bias"))


def signed(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:+.{digits}f}".replace("-", "−")


def interval(value: Paired) -> str:
    return "–" if value.low is None else f"{signed(value.low)} … {signed(value.high)}"


def _place(column: str) -> tuple[int, str]:
    """last, best, the sets by name, the mechanism; within a set as its file has them (sorting is stable)."""
    rank = {"last": 0, "best": 1}.get(column, 3 if column.startswith("mechanism ") else 2)
    return rank, column.rpartition(" ")[0]


def _values(students: list[Student], column: str) -> list[float]:
    return [student.values[column] for student in students if column in student.values]


def _differences(groups: dict[str, list[Student]], columns: tuple[str, ...]) -> dict[str, dict[str, Paired]]:
    """Over the seeds in common with the baseline, on the headline and every accuracy."""
    base = {group[0].run.suite: group for group in groups.values() if group[0].run.name == BASELINE}
    accuracies = [name for name in columns if name == HEADLINE or name.endswith(" accuracy")]
    found = {
        method: {name: value for name in accuracies if (value := _against(group, base[group[0].run.suite], name))}
        for method, group in groups.items()
        if group[0].run.name != BASELINE and group[0].run.suite in base
    }
    return {method: values for method, values in found.items() if values}


def _against(group: list[Student], reference: list[Student], column: str) -> Paired | None:
    ours, theirs = ({s.run.seed: s.values[column] for s in side if column in s.values} for side in (group, reference))
    seeds = sorted(ours.keys() & theirs.keys())
    return paired([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]) if seeds else None


def write_markdown(found: Found, table: Table, path: Path) -> None:
    """The same tables as Markdown, the best of a column in bold."""
    lines = [f"# {_plain(found.folder.resolve().name)}", ""]
    if table.cells:
        lines += _grid(["method", "seeds", *table.columns], [_row(table, method) for method in table.cells])
        lines += ["Mean ± standard deviation over seeds (ddof 1); last: after the last epoch; **bold**: best."]
    else:
        lines += ["No finished student yet."]
    if table.random is not None:
        lines += [f"A random direction has projection {table.random:.3f}."]
    if table.differences:
        rows = [
            [method, column, signed(value.difference), interval(value), signed(value.effect, 2), str(value.count)]
            for method, values in table.differences.items()
            for column, value in values.items()
        ]
        lines += ["", f"## Difference to {BASELINE}, seed by seed", ""]
        lines += _grid(["method", "score", "difference", "95 % interval", "effect d_z", "pairs"], rows)
    if found.aside:
        lines += ["", "## Not in the table", "", *(f"- {_plain(a.run)}: {_plain(a.state)}" for a in found.aside)]
    with replacing(path) as file:
        file.write(("\n".join(lines).rstrip() + "\n").encode(errors="replace"))


def _row(table: Table, method: str) -> list[str]:
    texts = {name: " ".join(table.texts(method, name)).strip() for name in table.columns}
    marked = [f"**{text}**" if method in table.best(name) else text for name, text in texts.items()]
    return [method, str(table.seeds[method]), *marked]


def _grid(head: list[str], rows: list[list[str]]) -> list[str]:
    marks = ["---", *("---:" for _ in head[1:])]
    return ["| " + " | ".join(_plain(cell) for cell in row) + " |" for row in (head, marks, *rows)] + [""]


def _plain(text: str) -> str:
    """Names from outside stay in their cell and start no markup."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
