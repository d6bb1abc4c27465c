"""Whether the teacher is better than students trained on labels alone; if not, comparing methods says little."""

from __future__ import annotations

from statistics import fmean

from antishortcut.report.collect import Found, Student
from antishortcut.report.columns import words
from antishortcut.report.stats import paired
from antishortcut.report.table import interval, signed


def informed(found: Found) -> list[str]:
    """A line for every suite that has both, judged on the same set."""
    suites: dict[str, list[tuple[Student, Student]]] = {}  # suite → (teacher, student)
    for student in found.students:
        teacher = found.taught.get(student.run.teacher or "")
        if teacher is None or student.run.roles:
            continue
        if (teacher.judge, teacher.headline) == (student.judge, student.headline):
            suites.setdefault(student.run.suite, []).append((teacher, student))
    lines = []
    for suite, pairs in suites.items():
        if len(pairs) < 2:
            continue
        above, below = ([run.values["last"] for run in side] for side in zip(*pairs, strict=True))
        ahead, first = paired(above, below), pairs[0][1]
        teachers = "teachers have" if len({teacher.path for teacher, _ in pairs}) > 1 else "teacher has"
        line = (
            f"{suite}: the {teachers} {words(first.headline)} {fmean(above):.3f} on {first.judge}, students by labels "
            f"alone {fmean(below):.3f}; difference {signed(ahead.difference)}, 95 % interval {interval(ahead)}."
        )
        if ahead.low is not None and ahead.low <= 0:
            line += (
                f" With {len(pairs)} seeds we cannot tell whether the teacher beats training from labels, so do not "
                "rank the methods that learn from it."
            )
        lines.append(line)
    return lines
