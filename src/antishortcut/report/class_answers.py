"""Which classes are hard, what they are taken for, and the mistakes a network is surest of."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from antishortcut.report.collect import StudentRun
from antishortcut.report.reader import Confusion, Mistake, Notes, Picture, open_picture
from antishortcut.report.summary import SUITES, Overview, overviews
from antishortcut.report.table import ResultTable

MOST = 10  # classes and confusions on the page
Pair = tuple[str, str]  # class and answer
Shares = dict[str, float]  # method → share of the images of a class, mean over seeds


@dataclass(frozen=True)
class ClassAnswers:
    """Of one suite on the set that was judged during training, or the first one with answers."""

    title: str
    methods: list[str]
    count: int  # classes
    worst: dict[Pair, Shares]  # every class with itself: its accuracy, the lowest first
    confused: dict[Pair, Shares]  # the largest first
    method: str  # whose mistakes these are
    mistakes: list[Mistake]
    picture: Picture | None


def class_answers(table: ResultTable, notes: Notes) -> list[ClassAnswers]:
    return [each for one in overviews(table)[:SUITES] if (each := _of_suite(one, notes))]


def _of_suite(one: Overview, notes: Notes) -> ClassAnswers | None:
    usual = one.ordinary.name
    names = [name for group in one.groups.values() for student in group for name in student.confusion]
    if not names:
        return None
    name = usual if usual in names else names[0]
    groups = {
        method: scored for method, group in one.groups.items() if (scored := [s for s in group if name in s.confusion])
    }
    first = next(iter(groups.values()))[0].confusion[name]
    pairs = {
        (label, answer)
        for group in groups.values()
        for student in group
        for label, row in student.confusion[name].items()
        for answer in row
        if answer != label
    }
    worst = _ordered({(label, label) for label in first}, groups, name)
    confused = _ordered(pairs, groups, name)
    method = one.chosen if one.chosen in groups else next(iter(groups))
    student, picture = groups[method][0], None
    with notes.reading(f"{student.path}/artifacts/mistakes-{name}.png"):
        if student.mistakes[name]:
            picture = open_picture(student.place / "artifacts" / f"mistakes-{name}.png", notes)
    title = f"{name} set" + f" of {one.suite}" * (len(set(one.table.runs.suites.values())) > 1)
    lowest, largest = list(worst.items())[:MOST], list(confused.items())[::-1][:MOST]
    mistakes = student.mistakes[name][:MOST]
    return ClassAnswers(title, list(groups), len(first), dict(lowest), dict(largest), method, mistakes, picture)


def _ordered(pairs: set[Pair], groups: dict[str, list[StudentRun]], name: str) -> dict[Pair, Shares]:
    """Means over seeds by method, in the order of their mean over methods, the lowest first."""
    result: dict[Pair, Shares] = {}
    for pair in sorted(pairs):
        shares = {method: [_share(s.confusion[name], *pair) for s in group] for method, group in groups.items()}
        known = {method: [share for share in each if share is not None] for method, each in shares.items()}
        if means := {method: fmean(each) for method, each in known.items() if each}:
            result[pair] = means
    return dict(sorted(result.items(), key=lambda item: fmean(item[1].values())))


def _share(matrix: Confusion, label: str, answer: str) -> float | None:
    """Of the images of a class, those that are given this answer."""
    row = matrix.get(label)
    return row.get(answer, 0.0) / sum(row.values()) if row and sum(row.values()) > 0 else None
