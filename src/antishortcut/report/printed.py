"""Ours beside the printed: for runs of the paper's pairs, what it prints of the same row, and how the two compare.

Numbers are set against each other only where the runs were made as the paper's; else, and for mCE, whose normaliser is
not disclosed, only by the sign of their difference to KD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antishortcut.report.beside import Beside, Line
from antishortcut.report.collect import BASELINE, Found, Student
from antishortcut.report.columns import parts
from antishortcut.report.marks import leaves_zero_out
from antishortcut.report.measures import MEASURES, Measure, Number, measure_of, numbers_of
from antishortcut.report.pair import comparable, labels, pair_of, title_of
from antishortcut.report.table import HEADLINE, Table, against, in_pairs, values_of
from antishortcut.stats import summary

EVALUATION = {"training": "clean", "test": "clean", "val": "clean"}  # what fills a set, where it has another name


def beside(found: Found, table: Table) -> list[Beside]:
    """The suites of the paper's that have something printed; the table's columns alone where a person chose them."""
    suites: dict[str, _Suite] = {}
    for group in found.groups.values():
        run = group[0].run
        if (pair := pair_of(run)) is not None:
            suites.setdefault(run.suite, _Suite()).add(pair, run.name, group)
    told = labels(found)
    wanted = set(table.columns) if table.asked else None
    made = [suite.beside(name, told.get(name, []), wanted) for name, suite in suites.items()]
    return [one for one in made if one.lines or one.missing]


@dataclass
class _Suite:
    """The rows of a pair, what is printed of them, and the footnotes so far."""

    groups: dict[str, list[Student]] = field(default_factory=dict)  # by the row's name
    printed: dict[str, dict[str, list[Number]]] = field(default_factory=dict)  # row → measure
    comparable: dict[str, bool] = field(default_factory=dict)  # row → whether it was made as the paper's
    notes: dict[str, list[str]] = field(default_factory=dict)  # what is wrong → places

    def add(self, pair: str, name: str, group: list[Student]) -> None:
        self.groups[name], self.printed[name] = group, numbers_of(pair, name)
        self.comparable[name] = comparable(s.run for s in group)

    def beside(self, name: str, told: Sequence[str], wanted: set[str] | None) -> Beside:
        lines: list[Line] = []
        missing: dict[str, list[str]] = {}  # evaluation → measures
        for key, measure in self._measures():
            column = self._column(measure)
            if column is None:
                place = parts(measure.columns[0])[0].split()[0]
                missing.setdefault(EVALUATION.get(place, place), []).append(key)
            elif wanted is None or column in wanted:
                each = [(row, number) for row in self.groups for number in self.printed[row].get(key, ())]
                lines += [self._line(row, key, measure, column, number) for row, number in each]
        title = title_of(next(iter(self.groups.values()))[0].run)
        gone = [f"{', '.join(keys)} (asd evaluate --on {where})" for where, keys in missing.items()]
        notes = tuple(f"{', '.join(places)}: {note}" for note, places in self.notes.items())
        return Beside(name, title, tuple(told), tuple(lines), notes, "" if wanted else "; ".join(gone))

    def _measures(self) -> list[tuple[str, Measure]]:
        """Those that are printed of any row and can be measured, in the order of `MEASURES`."""
        keys = dict.fromkeys(key for numbers in self.printed.values() for key in numbers)
        known = [(key, measure) for key in keys if (measure := measure_of(key)) is not None]
        order = {key: at for at, key in enumerate(MEASURES)}
        held = [(key, measure) for key, measure in known if not measure.to or measure.to in self.groups]
        return sorted(held, key=lambda one: order.get(one[0], order.get(one[0].partition(" against ")[0], 0) + 0.5))

    def _column(self, measure: Measure) -> str | None:
        """The first of a measure's columns that any row has; accuracy is never that of held-out images."""
        students = [s for group in self.groups.values() for s in group]
        held_out = any(s.judge == "val" for s in students)
        names = [name for name in measure.columns if name != HEADLINE or not held_out]
        return next((name for name in names if any(name in s.values for s in students)), None)

    def _line(self, row: str, key: str, measure: Measure, column: str, number: Number) -> Line:
        group = self.groups[row]
        values = self._values(row, measure, column)
        signs, sure = self._signs(row, key, measure, column, number)
        return Line(
            method=group[0].method,
            measure=key,
            column=column,
            digits=max(measure.digits, number.digits),
            ours=summary([value * measure.factor for value in values]) if values else None,
            number=number,
            notes=self._noted(number),
            by_sign=measure.by_sign,
            numeric=not measure.by_sign and self.comparable[row] and self.comparable.get(measure.to, True),
            signs=signs,
            sure=sure,
        )

    def _noted(self, number: Number) -> tuple[int, ...]:
        """Its footnotes by their numbers; the same thing said of several places is one."""
        for place, note in number.notes:
            places = self.notes.setdefault(note, [])
            places += [place] * (place not in places)
        order = list(self.notes)
        return tuple(dict.fromkeys(order.index(note) + 1 for _, note in number.notes))

    def _values(self, row: str, measure: Measure, column: str) -> list[float]:
        """Ours, one per seed: the score, or its difference to the row the measure names."""
        if not measure.to:
            return values_of(self.groups[row], column)
        return [a - b for a, b in zip(*in_pairs(self.groups[row], self.groups[measure.to], column), strict=True)]

    def _signs(
        self, row: str, key: str, measure: Measure, column: str, number: Number
    ) -> tuple[tuple[int, int] | None, bool]:
        """Signs of the difference to KD, or to the row the measure names, ours and printed; whether ours is sure."""
        group, reference = self.groups[row], self.groups.get(measure.to or BASELINE)
        if measure.change:  # a change against KD by itself
            values = values_of(group, column)
            return (_both(summary(values).mean, number.mean) if values else None), False
        ours = against(group, reference, column) if reference and reference is not group else None
        theirs = number.mean if measure.to else self._printed(key, number)
        signs = None if ours is None or theirs is None else _both(ours.difference * measure.factor, theirs)
        return signs, signs is not None and ours is not None and leaves_zero_out(ours)

    def _printed(self, key: str, number: Number) -> float | None:
        """The printed difference to KD: to its number in the same place if it has one there, else to its first."""
        base = self.printed.get(BASELINE, {}).get(key, [])
        same = [one for one in base if set(one.places) & set(number.places)]
        return next((number.mean - one.mean for one in (*same, *base)), None)


def _both(ours: float, printed: float) -> tuple[int, int] | None:
    """Signs; a difference of zero agrees with nothing."""
    return None if 0 in (ours, printed) else (1 if ours > 0 else -1, 1 if printed > 0 else -1)
