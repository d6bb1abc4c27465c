"""IoU of every class, class by class and method by method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from antishortcut.report.collect import Found, Student
from antishortcut.report.stats import summary

USUAL = ("test", "iid")  # the first test set, where another was judged during training
MANY = 24  # classes above which the table is folded


@dataclass(frozen=True)
class ClassRow:
    """Of one class, or of all: means over the seeds that have it, and who has its suite's best."""

    name: str
    means: dict[str, float]  # method → IoU
    best: frozenset[str]

    def text(self, method: str) -> str:
        return f"{self.means[method]:.3f}" if method in self.means else "–"


@dataclass(frozen=True)
class ClassTable:
    """Of the runs that have the same classes in the same set."""

    title: str  # the set, with its suites where there are several tables
    methods: tuple[str, ...]
    whole: ClassRow  # mIoU
    rows: tuple[ClassRow, ...]

    @property
    def folded(self) -> bool:
        return len(self.rows) > MANY

    def texts(self) -> list[list[str]]:
        """The table as words, the best in bold; mIoU first."""
        return [[row.name, *(self._text(row, method) for method in self.methods)] for row in (self.whole, *self.rows)]

    def _text(self, row: ClassRow, method: str) -> str:
        return f"**{row.text(method)}**" if method in row.best else row.text(method)

    def told(self, best: str) -> str:
        """How to read it."""
        return (
            f"Intersection over union, mean over seeds. {best}: the best of its row among the methods of a suite. "
            "–: a class that is neither there nor predicted."
        )

    def flat(self) -> dict[str, Any]:
        return {"set": self.title, "classes": [{"class": row.name} | row.means for row in self.rows]}


def class_tables(found: Found) -> list[ClassTable]:
    """One for every set and list of classes there is; of a run the set that was judged, or the first test set."""
    held: dict[tuple[str, tuple[str, ...]], dict[str, list[Student]]] = {}
    for student in found.students:
        if student.classes:
            usual = (name for name in (student.judge, *USUAL) if name in student.classes)
            name = next(usual, next(iter(student.classes)))
            key = name, tuple(student.classes[name])
            held.setdefault(key, {}).setdefault(student.method, []).append(student)
    return [_table(name, classes, groups, len(held) > 1) for (name, classes), groups in held.items()]


def _table(name: str, classes: Sequence[str], groups: dict[str, list[Student]], many: bool) -> ClassTable:
    suites = {method: students[0].run.suite for method, students in groups.items()}

    def row(title: str, values: dict[str, Iterable[float | None]]) -> ClassRow:
        known = {method: [x for x in held if x is not None] for method, held in values.items()}
        means = {method: summary(held).mean for method, held in known.items() if held}
        return ClassRow(title, means, _best(means, suites))

    return ClassTable(
        title=f"{name} set" + (f" of {', '.join(dict.fromkeys(suites.values()))}" if many else ""),
        methods=tuple(groups),
        whole=row("mIoU", {m: [s.values.get(f"{name} miou") for s in held] for m, held in groups.items()}),
        rows=tuple(
            row(each, {m: [s.classes[name][each] for s in held] for m, held in groups.items()}) for each in classes
        ),
    )


def _best(means: dict[str, float], suites: dict[str, str]) -> frozenset[str]:
    """The methods with their suite's best mean; nobody wins alone, nor all."""
    found: set[str] = set()
    for suite in set(suites.values()):
        held = {method: mean for method, mean in means.items() if suites[method] == suite}
        top = {method for method, mean in held.items() if mean == max(held.values())}
        found |= top if len(top) < len(held) else set()
    return frozenset(found)
