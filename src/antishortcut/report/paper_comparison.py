"""Ours beside the printed: for runs of the paper's pairs, what it prints of the same row, and how the two compare.

Numbers are set against each other only where the runs and their teacher were made as the paper's; else, and for mCE,
whose normaliser is not disclosed, only by the sign of their difference to KD. What is printed and has no number of ours
is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from antishortcut.report.collect import BASELINE, Found, Student
from antishortcut.report.columns import parts
from antishortcut.report.marks import SURE, leaves_zero_out
from antishortcut.report.measures import MEASURES, SECONDS, SEED, Measure, Number, measure_of, numbers_of, why_not
from antishortcut.report.pair import SIGNS, labels, pair_of, row_of, title_of
from antishortcut.report.stats import Summary, summary
from antishortcut.report.table import HEADLINE, Table, against, in_pairs, signed, values_of
from antishortcut.report.teacher import ANGLES, DIGITS, TEACHER, School, absent, schools, taught_of, value_of

HEAD = ("measure", "method", "ours (seeds)", "printed", "ours − printed", f"sign against {BASELINE}", "printed in")
EVALUATION = {"training": "clean", "test": "clean", "val": "clean"}  # what fills a set, where it has another name
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Line:
    """One printed number and ours, in print's unit."""

    method: str
    measure: str
    column: str  # ours
    digits: int
    ours: Summary | None  # None where this row was not measured
    number: Number
    notes: tuple[int, ...]  # its footnotes
    label: str  # in what its runs are not the paper's: then numbers do not compare
    by_sign: bool = False  # as the measure is: its numbers never compare
    signs: tuple[int, int] | None = None  # of the difference to the baseline, ours and printed
    sure: bool = False  # the interval of ours leaves zero out

    @property
    def difference(self) -> float | None:
        return self.ours.mean - self.number.mean if self.ours and not self.by_sign and not self.label else None

    @property
    def agrees(self) -> bool | None:
        return None if self.signs is None else self.signs[0] == self.signs[1]

    @property
    def agreement(self) -> str:
        """Of the signs, for a person."""
        if self.signs is None:
            return "–"
        ours, printed = ("+" if sign > 0 else "−" for sign in self.signs)
        ours += SURE * self.sure
        return f"agrees ({ours})" if self.agrees else f"differs (ours {ours}, printed {printed})"

    def texts(self) -> list[str]:
        """As the head has it."""
        ours = "–" if self.ours is None else f"{self._text(self.ours.mean, self.ours.std)} ({self.ours.count})"
        printed = self._text(self.number.mean, self.number.std) + " ".join(raised(note) for note in self.notes)
        first, *others = self.number.places
        where = first + (f" and {len(others)} more" if others else "")
        return [self.measure, self.method, ours, printed, signed(self.difference, self.digits), self.agreement, where]

    def _text(self, mean: float, std: float | None) -> str:
        value = f"{mean:z.{self.digits}f}".replace("-", "−")
        return value if std is None else f"{value} ± {std:.{self.digits}f}"

    def flat(self) -> dict[str, Any]:
        ours, printed = self.signs or (None, None)
        return {
            "method": self.method,
            "measure": self.measure,
            "score": self.column,
            "ours": self.ours.mean if self.ours else None,
            "ours ±": self.ours.std if self.ours else None,
            "seeds": self.ours.count if self.ours else 0,
            "printed": self.number.mean,
            "printed ±": self.number.std,
            "places": list(self.number.places),
            "difference": self.difference,
            "sign": ours,
            "printed sign": printed,
            "agrees": self.agrees,
            "notes": list(self.notes),
            "label": self.label,
        }


@dataclass(frozen=True)
class Beside:
    """A suite of the paper's beside its printed numbers."""

    suite: str
    title: str
    labels: tuple[str, ...]  # what must be said first
    lines: tuple[Line, ...]
    notes: tuple[str, ...]  # footnotes, from the first
    missing: str  # what is printed and was not measured

    def texts(self) -> list[list[str]]:
        return [line.texts() for line in self.lines]

    def footnotes(self) -> list[str]:
        lines = [f"{raised(at)} {note}." for at, note in enumerate(self.notes, start=1)]
        return lines + [f"Printed, but not measured in these runs: {self.missing}."] * bool(self.missing)

    def flat(self) -> dict[str, Any]:
        rows = [line.flat() for line in self.lines]
        known = {"suite": self.suite, "labels": list(self.labels), "rows": rows, "notes": list(self.notes)}
        return known | {"missing": self.missing}


def told(sides: Sequence[Beside]) -> str:
    """How to read the tables."""
    bare = dict.fromkeys(line.measure for side in sides for line in side.lines if line.by_sign)
    said = f" {', '.join(bare)}: the normaliser is not disclosed, so {SIGNS}." if bare else ""
    if TEACHER in (line.method for side in sides for line in side.lines):
        said += f" {TEACHER}: over teachers, its angle between parts over pairs of parts; it has no sign to agree with."
    return (
        "Ours and printed in print’s unit, mean ± standard deviation over seeds. Sign: of the difference to "
        f"{BASELINE}, or to the row that the measure names; ours seed by seed, {SURE} where its 95 % interval leaves "
        f"zero out.{said}"
    )


def raised(number: int) -> str:
    return str(number).translate(SUPERSCRIPT)


def beside(found: Found, table: Table) -> list[Beside]:
    """The suites of the paper's that have something printed; the table's columns alone where a person chose them."""
    suites: dict[str, _Suite] = {}
    for method, group in found.groups.items():
        run = group[0].run
        if (pair := pair_of(run)) is not None:
            suites.setdefault(run.suite, _Suite(pair)).add(row_of(run), group, table.labels.get(method, ""))
    first = labels(found)
    wanted = set(table.columns) if table.asked else None
    sides = [suite.beside(name, found, first.get(name, []), wanted) for name, suite in suites.items()]
    return [side for side in sides if side.lines or side.missing]


@dataclass
class _Suite:
    """The rows of a pair, what is printed of them, and the footnotes so far."""

    pair: str
    groups: dict[str, list[Student]] = field(default_factory=dict)  # by the row's name
    printed: dict[str, dict[str, list[Number]]] = field(default_factory=dict)  # row → measure
    labels: dict[str, str] = field(default_factory=dict)  # row → in what it is not the paper's
    notes: dict[str, list[str]] = field(default_factory=dict)  # what is wrong → places
    missing: dict[str, dict[str, None]] = field(default_factory=dict)  # why it is not measured → measures

    def add(self, name: str, group: list[Student], label: str) -> None:
        self.groups[name], self.labels[name] = group, label
        self.printed[name] = {key: held for key, held in numbers_of(self.pair, name).items() if key not in ANGLES}

    def beside(self, name: str, found: Found, first: Sequence[str], wanted: set[str] | None) -> Beside:
        lines: list[Line] = []
        for key, measure in self._measures():
            column = self._column(measure)
            if measure.to and measure.to not in self.groups:
                self._miss(f"no row {measure.to} here", key)
            elif column is None:
                self._miss(_evaluation(measure), key)
            elif wanted is None or column in wanted:
                each = [(row, number) for row in self.groups for number in self.printed[row].get(key, ())]
                lines += [self._line(row, key, measure, column, number) for row, number in each]
        students = [s for group in self.groups.values() for s in group]
        lines += [] if wanted else self._teachers(schools(found, students))
        teachers = (teacher for s in students if s.run.roles and (teacher := found.school(s.run)))
        title = title_of(students[0].run, next(teachers, None))
        gone = {why: [f"“{key}”" if "," in key else key for key in keys] for why, keys in self.missing.items()}
        missing = "" if wanted else "; ".join(f"{', '.join(keys)} ({why})" for why, keys in gone.items())
        notes = tuple(f"{', '.join(places)}: {note}" for note, places in self.notes.items())
        return Beside(name, title, tuple(first), tuple(lines), notes, missing)

    def _miss(self, why: str, key: str) -> None:
        self.missing.setdefault(why, {})[key] = None

    def _teachers(self, held: list[School]) -> list[Line]:
        """What is printed of the teacher, beside its folder's."""
        lines = []
        label = "; ".join(dict.fromkeys(school.label for school in held if school.label))
        order = {key: at for at, key in enumerate(DIGITS)}
        for key, numbers in sorted(taught_of(self.pair).items(), key=lambda each: order.get(each[0], len(order))):
            ours = value_of(key, held) if key in DIGITS else None
            if ours is not None:
                lines += [
                    Line(
                        TEACHER, key, f"{TEACHER} {key}", max(DIGITS[key], number.digits), ours, number,
                        self._noted(number), label,
                    )
                    for number in numbers
                ]  # fmt: skip
            elif (why := absent(key, held)) is not None:
                self._miss(why, f"{TEACHER}'s {key}")
        return lines

    def _measures(self) -> list[tuple[str, Measure]]:
        """What is printed of any row, in the order of MEASURES; what has no score is missing."""
        known = []
        for key in dict.fromkeys(key for numbers in self.printed.values() for key in numbers):
            measure = measure_of(key)
            if measure is not None:
                known.append((key, measure))
            elif (why := why_not(key)) is not None:
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
        values = [value * measure.factor for value in self._values(row, measure, column)]
        ours = summary(values) if values else None
        if ours and measure.over:  # what the seeds come to has no spread of its own
            value = measure.over(values)
            ours = None if value is None else Summary(value, None, len(values))
        signs, sure = self._signs(row, key, measure, column, number)
        return Line(
            method=self.groups[row][0].method,
            measure=key,
            column=column,
            digits=max(measure.digits, number.digits),
            ours=ours,
            number=number,
            notes=self._noted(number),
            label=self.labels[row] or self.labels.get(measure.to, ""),
            by_sign=measure.by_sign,
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


def _evaluation(measure: Measure) -> str:
    """What would measure it."""
    if measure.columns == (SECONDS,):
        return f"seconds of {BASELINE} on the same machine, without cached teachers"
    place = parts(measure.columns[0])[0].split()[0]
    return f"asd evaluate --on {EVALUATION.get(place, place)}"


def _both(ours: float, printed: float) -> tuple[int, int] | None:
    """Signs; a difference of zero agrees with nothing."""
    return None if 0 in (ours, printed) else (1 if ours > 0 else -1, 1 if printed > 0 else -1)
