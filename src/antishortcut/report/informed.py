"""Whether there was anything to hand down: a teacher beside students that had labels alone."""

from __future__ import annotations

from statistics import fmean

from antishortcut.report.collect import Found, Student
from antishortcut.report.columns import words
from antishortcut.report.table import interval, signed
from antishortcut.stats import paired


def informed(found: Found) -> list[str]:
    """A line for every suite that has both, judged on the same set."""
    suites: dict[str, list[tuple[Student, Student]]] = {}  # suite → (teacher, student)
    for student in found.students:
        teacher = found.taught.get(student.run.teacher or "")
        if teacher is None or student.run.roles:
            continue
        if (teacher.judge, teacher.headline) == (student.judge, student.headline):
            suites.setdefault(student.run.suite, []).append((teacher, student))
    return [_told(suite, pairs) for suite, pairs in suites.items() if len(pairs) > 1]


def _told(suite: str, pairs: list[tuple[Student, Student]]) -> str:
    above, below = ([run.values["last"] for run in side] for side in zip(*pairs, strict=True))
    ahead, first = paired(above, below), pairs[0][1]
    assert ahead.low is not None
    teachers = "teachers have" if len({teacher.path for teacher, _ in pairs}) > 1 else "teacher has"
    text = (
        f"{suite}: the {teachers} {words(first.headline)} {fmean(above):.3f} on {first.judge}, students by labels "
        f"alone {fmean(below):.3f}; difference {signed(ahead.difference)}, 95 % interval {interval(ahead)}."
    )
    if ahead.low > 0:
        return text
    return (
        f"{text} The teacher is not ahead by more than seeds differ: how methods that learn from it compare is "
        "uninformative."
    )
