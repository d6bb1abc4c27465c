"""Ours beside the printed: for runs of the paper's pairs, what it prints of the same row, and how the two compare.

Numbers are set against each other only where the runs and their teacher were made as the paper's; else, and for mCE,
whose normaliser is not disclosed, only by the sign of their difference to KD. What is printed and has no number of ours
is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antishortcut.report.beside import TEACHER, Beside, Line
from antishortcut.report.collect import BASELINE, Found, Student
from antishortcut.report.columns import parts
from antishortcut.report.marks import leaves_zero_out
from antishortcut.report.measures import MEASURES, SECONDS, SEED, Measure, Number, measure_of, numbers_of, why_not
from antishortcut.report.pair import labels, pair_of, row_of, title_of
from antishortcut.report.table import HEADLINE, Table, against, in_pairs, values_of
from antishortcut.report.teacher import TAUGHT, School, absent, of_teacher, schools, taught_of, value_of
from antishortcut.stats import Summary, summary

EVALUATION = {"training": "clean", "test": "clean", "val": "clean"}  # what fills a set, where it has another name


def beside(found: Found, table: Table) -> list[Beside]:
    """The suites of the paper's that have something printed; the table's columns alone where a person chose them."""
    suites: dict[str, _Suite] = {}
    for method, group in found.groups.items():
        run = group[0].run
        if (pair := pair_of(run)) is not None:
            suites.setdefault(run.suite, _Suite(pair)).add(row_of(run), group, table.labels.get(method, ""))
    told = labels(found)
    wanted = set(table.columns) if table.asked else None
    made = [suite.beside(name, found, told.get(name, []), wanted) for name, suite in suites.items()]
    return [one for one in made if one.lines or one.missing]


@dataclass
class _Suite:
    """The rows of a pair, what is printed of them, and the footnotes so far."""

    pair: str
    groups: dict[str, list[Student]] = field(default_factory=dict)  # by the row's name
    printed: dict[str, dict[str, list[Number]]] = field(default_factory=dict)  # row → measure
    labels: dict[str, str] = field(default_factory=dict)  # row → in what it is not the paper's
    notes: dict[str, list[str]] = field(default_factory=dict)  # what is wrong → places
    gone: dict[str, dict[str, None]] = field(default_factory=dict)  # why it is not measured → measures

    def add(self, name: str, group: list[Student], label: str) -> None:
        self.groups[name], self.labels[name] = group, label
        self.printed[name] = {key: held for key, held in numbers_of(self.pair, name).items() if not of_teacher(key)}

    def beside(self, name: str, found: Found, told: Sequence[str], wanted: set[str] | None) -> Beside:
        lines: list[Line] = []
        for key, measure in self._measures():
            column = self._column(measure)
            if measure.to and measure.to not in self.groups:
                self._miss(f"no row {measure.to} here", key)
            elif column is None:
                self._miss(self._evaluation(measure), key)
            elif wanted is None or column in wanted:
                each = [(row, number) for row in self.groups for number in self.printed[row].get(key, ())]
                lines += [self._line(row, key, measure, column, number) for row, number in each]
        students = [s for group in self.groups.values() for s in group]
        lines += [] if wanted else self._teachers(schools(found, students))
        taught = (school for s in students if s.run.roles and (school := found.school(s.run)))
        title = title_of(students[0].run, next(taught, None))
        gone = [f"{', '.join(map(_quoted, keys))} ({why})" for why, keys in self.gone.items()]
        notes = tuple(f"{', '.join(places)}: {note}" for note, places in self.notes.items())
        return Beside(name, title, tuple(told), tuple(lines), notes, "" if wanted else "; ".join(gone))

    def _miss(self, why: str, key: str) -> None:
        self.gone.setdefault(why, {})[key] = None

    def _evaluation(self, measure: Measure) -> str:
        """What would measure it."""
        if measure.columns == (SECONDS,):
            return f"seconds of {BASELINE} on the same machine, without cached teachers"
        place = parts(measure.columns[0])[0].split()[0]
        return f"asd evaluate --on {EVALUATION.get(place, place)}"

    def _teachers(self, held: list[School]) -> list[Line]:
        """What is printed of the teacher, beside its folder's."""
        lines = []
        label = "; ".join(dict.fromkeys(school.label for school in held if school.label))
        numbers = taught_of(self.pair)
        for key in sorted(numbers, key=lambda key: list(TAUGHT).index(key) if key in TAUGHT else len(TAUGHT)):
            ours = value_of(key, held) if key in TAUGHT else None
            if ours is None:
                if (why := absent(key, held)) is not None:
                    self._miss(why, f"{TEACHER}'s {key}")
                continue
            lines += [
                Line(
                    method=TEACHER,
                    measure=key,
                    column=f"{TEACHER} {key}",
                    digits=max(TAUGHT[key].digits, number.digits),
                    ours=ours,
                    number=number,
                    notes=self._noted(number),
                    by_sign=False,
                    numeric=not label,
                    signs=None,
                    sure=False,
                    label=label,
                )
                for number in numbers[key]
            ]
        return lines

    def _measures(self) -> list[tuple[str, Measure]]:
        """Those that are printed of any row and can be measured, in the order of `MEASURES`; the others are missed."""
        keys = dict.fromkeys(key for numbers in self.printed.values() for key in numbers)
        known = [(key, measure) for key in keys if (measure := measure_of(key)) is not None]
        for key in keys:
            if measure_of(key) is None and (why := why_not(key)) is not None:
                self._miss(why, SEED.sub("", key))
        order = {key: at for at, key in enumerate(MEASURES)}
        return sorted(known, key=lambda one: order.get(one[0], order.get(one[0].partition(" against ")[0], 0) + 0.5))

    def _column(self, measure: Measure) -> str | None:
        """The first of a measure's columns that any row has; accuracy is never that of held-out images."""
        students = [s for group in self.groups.values() for s in group]
        held_out = any(s.judge == "val" for s in students)
        if measure.columns == (SECONDS,):
            return SECONDS if any(self._overheads(row, measure) for row in self.groups) else None
        names = [name for name in measure.columns if name != HEADLINE or not held_out]
        return next((name for name in names if any(name in s.values for s in students)), None)

    def _line(self, row: str, key: str, measure: Measure, column: str, number: Number) -> Line:
        group = self.groups[row]
        values = [value * measure.factor for value in self._values(row, measure, column)]
        label = self.labels[row] or self.labels.get(measure.to, "")
        signs, sure = self._signs(row, key, measure, column, number)
        return Line(
            method=group[0].method,
            measure=key,
            column=column,
            digits=max(measure.digits, number.digits),
            ours=_ours(values, measure),
            number=number,
            notes=self._noted(number),
            by_sign=measure.by_sign,
            numeric=not measure.by_sign and not label,
            signs=signs,
            sure=sure,
            label=label,
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
        if column == SECONDS:
            return self._overheads(row, measure)
        if not measure.to:
            return values_of(self.groups[row], column)
        return [a - b for a, b in zip(*in_pairs(self.groups[row], self.groups[measure.to], column), strict=True)]

    def _overheads(self, row: str, measure: Measure) -> list[float]:
        """Seconds over those of the named row, less one, seed by seed: on the same machine, and teachers not cached."""
        base = {s.run.seed: s for s in self.groups.get(measure.to, ())}
        return [
            s.seconds / other.seconds - 1
            for s in self.groups[row]
            if (other := base.get(s.run.seed)) and other is not s and s.seconds and other.seconds
            if (s.execution, s.versions) == (other.execution, other.versions) and not s.execution.get("cache_teachers")
        ]

    def _signs(
        self, row: str, key: str, measure: Measure, column: str, number: Number
    ) -> tuple[tuple[int, int] | None, bool]:
        """Signs of the difference to KD, or to the row the measure names, ours and printed; whether ours is sure."""
        group, reference = self.groups[row], self.groups.get(measure.to or BASELINE)
        if measure.over or column == SECONDS:
            return None, False
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


def _ours(values: list[float], measure: Measure) -> Summary | None:
    """Over the seeds; what they come to has no spread of its own."""
    if not values or measure.over is None:
        return summary(values) if values else None
    value = measure.over(values)
    return None if value is None else Summary(value, None, len(values))


def _quoted(key: str) -> str:
    """In a list of names."""
    return f"“{key}”" if "," in key else key


def _both(ours: float, printed: float) -> tuple[int, int] | None:
    """Signs; a difference of zero agrees with nothing."""
    return None if 0 in (ours, printed) else (1 if ours > 0 else -1, 1 if printed > 0 else -1)
