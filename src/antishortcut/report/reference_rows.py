"""Rows that every table of results has below its methods: the teacher they learned from, and guessing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from antishortcut.report.collect import Collected, StudentRun
from antishortcut.report.reader import CORRUPTIONS
from antishortcut.report.table import ResultTable, split_column

CHANCE, OVERLAP = "chance", "chance_overlap"  # of all classes, and of those that the images have
ERRORS = ("mce", "mce_all", "clean_error")
SHARES = ("accuracy", "clean_accuracy", "worst_group", "mean_group", "hard_accuracy", "balanced_accuracy")


@dataclass(frozen=True)
class ReferenceRow:
    """No method: it has no marks and is compared with nothing."""

    name: str
    values: dict[str, float]  # by column
    count: int | None = None  # teachers

    def text(self, column: str) -> str:
        return f"{self.values[column]:z.3f}".replace("-", "−") if column in self.values else "–"


def reference_rows(table: ResultTable) -> list[ReferenceRow]:
    """Of every suite its teacher, mean over those of its seeds, and chance; without those that nothing is known of."""
    runs, rows = table.runs, []
    suites = dict.fromkeys(runs.suites.values())
    for suite in suites:
        students = [student for student in runs.students if student.run.suite == suite]
        before = f"{suite}/" if len(suites) > 1 else ""
        taught = {s.run.teacher: s for s in students if s.run.roles and s.run.teacher in runs.teacher_runs}
        teacher, chance = dict[str, float](), dict[str, float]()
        for column in dict.fromkeys((*table.measured, *table.columns)):
            values = [teacher_value(runs, student, column) for student in taught.values()]
            known = [value for value in values if value is not None]
            if known and len(known) == len(values):
                teacher[column] = fmean(known)
            guessed = [chance_value(student, column) for student in students]
            known = [value for value in guessed if value is not None]
            if known:
                chance[column] = fmean(known)
        rows += [ReferenceRow(f"{before}teacher", teacher, len(taught)), ReferenceRow(f"{before}chance", chance)]
    return [row for row in rows if row.values]


def teacher_value(runs: Collected, student: StudentRun, column: str, early: bool = False) -> float | None:
    """The score of a student's teacher; that at the end of its training where it was not scored on that set again."""
    teacher = runs.teacher_runs.get(student.run.teacher or "")
    if teacher is None or not student.run.roles:
        return None
    name, score = split_column(column)
    mark = f"@{student.run.early}" if early else ""
    value = teacher.values.get(f"{name}{mark} {score}")
    alike = teacher.eval_split == student.eval_split and teacher.primary_metric == student.primary_metric
    evaluated = name == "training" or (name == teacher.eval_split and score == student.primary_metric)
    if value is None and not early and alike and evaluated:
        return teacher.values["best" if score == "best" else "last"]
    return value


def chance_value(student: StudentRun, column: str) -> float | None:
    """What guessing would score, where the number of classes is known."""
    (name, score), count = split_column(column), student.class_count
    if name == "training":
        score = student.primary_metric
    own = {key: student.values[f"{name} {key}"] for key in (CHANCE, OVERLAP) if f"{name} {key}" in student.values}
    return guessed(name, score, own, count)


def guessed(name: str, score: str, values: Mapping[str, float], classes: int | None) -> float | None:
    """The score that guessing has on a set, of one class in so many, or what `values`, its scores there, say."""
    chance = values.get(CHANCE) or (1 / classes if classes else None)
    if score == "accuracy_overlap":
        return values.get(OVERLAP)
    if chance is None or score not in (ERRORS if name == CORRUPTIONS else SHARES):
        return None
    return 1 - chance if name == CORRUPTIONS else chance
