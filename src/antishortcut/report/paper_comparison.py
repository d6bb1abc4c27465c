"""Ours beside the printed: for runs of the paper's pairs, what it prints of the same row, and how the two compare.

Numbers are set against each other only where the runs and their teacher were made as the paper's; else, and for mCE,
whose normaliser is not disclosed, only by the sign of their difference to KD. What is printed and has no number of ours
is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from antishortcut.experiments.printed import PRINTED, Printed, of_run
from antishortcut.report.collect import BASELINE, Found, Student
from antishortcut.report.direction_reader import Directions
from antishortcut.report.paper_pairs import (
    DESK,
    SIGNS,
    at_desk,
    early_of,
    labels,
    pair_of,
    row_of,
    share_of,
    title_of,
    unlike_teacher,
)
from antishortcut.report.stats import Summary, sign_test, summary
from antishortcut.report.table import (
    HEADLINE,
    SURE,
    Table,
    against,
    in_pairs,
    leaves_zero_out,
    parts,
    signed,
    values_of,
)

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
        first, *rest = self.number.places
        where = first + (f" and {len(rest)} more" if rest else "")
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
    text = f" {', '.join(bare)}: the normaliser is not disclosed, so {SIGNS}." if bare else ""
    if TEACHER in (line.method for side in sides for line in side.lines):
        text += f" {TEACHER}: over teachers, its angle between parts over pairs of parts; it has no sign to agree with."
    return (
        "Ours and printed in print’s unit, mean ± standard deviation over seeds. Sign: of the difference to "
        f"{BASELINE}, or to the row that the measure names; ours seed by seed, {SURE} where its 95 % interval leaves "
        f"zero out.{text}"
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
    required = set(table.columns) if table.asked else None
    sides = [suite.beside(name, found, first.get(name, []), required) for name, suite in suites.items()]
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
        held_out = any(s.eval_split == "val" for s in students)
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
        other = number.mean if measure.to else self._printed(key, number)
        signs = None if ours is None or other is None else _both(ours.difference * measure.factor, other)
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


# --- What the paper's measures are among our scores ---

VIEWS = ("raw", "aligned")  # features as they are where widths are equal, as the paper; else through one linear map


@dataclass(frozen=True)
class Measure:
    """A measure of the paper's as a score of ours."""

    columns: tuple[str, ...]  # the first that there is
    factor: float = 100.0  # from our unit to print's
    digits: int = 2
    by_sign: bool = False  # numbers do not compare, only the sign of the difference to the baseline
    to: str = ""  # the row that the number is a difference to
    change: bool = False  # the score is a change against the baseline by itself
    over: Callable[[Sequence[float]], float | None] | None = None  # what the seeds come to, if not their mean


@dataclass(frozen=True)
class Number:
    """A printed number, once; `places` are all that print it."""

    mean: float
    std: float | None
    places: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]  # contradictions: place, what is wrong

    @property
    def digits(self) -> int:
        return len(repr(self.mean).partition(".")[2]) if self.mean % 1 else 0

    def same(self, other: Number) -> bool:
        """Equal, or one is the other rounded (to two digits or more: 80.5 is 80.50); with two stds they are two."""
        if self.std is not None and other.std is not None and self.std != other.std:
            return False
        rough, fine = sorted((self, other), key=lambda number: number.digits)
        rounded = rough.digits < fine.digits and round(fine.mean, max(rough.digits, 2)) == rough.mean
        return self.mean == other.mean or rounded

    def joined(self, other: Number) -> Number:
        """With the most digits that it is printed with."""
        return Number(
            mean=max(self, other, key=lambda number: number.digits).mean,
            std=other.std if self.std is None else self.std,
            places=tuple(dict.fromkeys((*self.places, *other.places))),
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
        )


def _inside(score: str, factor: float = 1.0, digits: int = 2, change: bool = False) -> Measure:
    return Measure(tuple(f"mechanism {view} {score}" for view in VIEWS), factor, digits, change=change)


def _wins(values: Sequence[float]) -> float:
    return float(sum(value > 0 for value in values))


SECONDS = "seconds"  # of a whole run, from its result.json
ACCURACY = ("last", "test accuracy")
MEASURES = {
    "accuracy": Measure(ACCURACY),
    "std of accuracy": Measure(ACCURACY, over=lambda values: summary(values).std),
    "mIoU": Measure(("val miou",)),
    "pixel accuracy": Measure(("val accuracy",)),
    "mCE": Measure(("corruptions mce",), digits=1, by_sign=True),
    "ΔCE texture": Measure(("corruptions texture",), digits=1, by_sign=True, to="kd"),
    "ΔCE weather": Measure(("corruptions weather",), digits=1, by_sign=True, to="kd"),
    "ΔCE noise": Measure(("corruptions noise",), digits=1, by_sign=True, to="kd"),
    "stylised": Measure(("stylized accuracy",), digits=1),
    "accuracy beside stylised": Measure(("stylized clean_accuracy",), digits=1),
    "stylised against clean": Measure(("stylized gap",), factor=-100.0),
    "ImageNet-R": Measure(("imagenet-r accuracy",)),
    "ImageNet-A": Measure(("imagenet-a accuracy",)),
    "alignment with T_final": _inside("cos_final"),
    "alignment with T_early": _inside("cos_early"),
    "% of samples closer to T_final": _inside("closer_final", 100.0, 1),
    "signed cosine": _inside("signed_cosine", digits=3),
    "% of samples above the threshold": _inside("signed_above", 100.0, 1),
    "projection on the shortcut": _inside("projection"),
    "shortcut magnitude, % against KD": _inside("projection_change", 100.0, 1, change=True),
    "projection on the robust subspace": _inside("robust_projection"),
    "InfoNCE, binary, nats": _inside("infonce_binary", digits=3),
    "InfoNCE, full, nats": _inside("infonce_full"),
    "accuracy against crd+kd, lowest": Measure(ACCURACY, to="crd+kd", over=min),
    "accuracy against crd+kd, highest": Measure(ACCURACY, to="crd+kd", over=max),
    "seeds above crd+kd": Measure(ACCURACY, 1.0, 0, to="crd+kd", over=_wins),
    "p of the one-sided sign test": Measure(
        ACCURACY, 1.0, 3, to="crd+kd", over=lambda values: sign_test(values, [0.0] * len(values))
    ),
    "ImageNet-R, seeds above KD": Measure(("imagenet-r accuracy",), 1.0, 0, to="kd", over=_wins),
    "overhead in all, %, from": Measure((SECONDS,), digits=1, to="kd"),
    "overhead in all, %, to": Measure((SECONDS,), digits=1, to="kd"),
}
ALSO = {  # printed under another name than what it is
    "shape": "stylised",
    "accuracy, called random in-batch negatives": "accuracy",
    "accuracy with the true early checkpoint": "accuracy",
}
ROWS = {"ce": ("ce", "student")}  # the tables' "student" was trained without a teacher
NAMED = {"student": "ce"}  # the same, where a number is a difference to it
SAID = {  # settings of a row, and what is said of numbers that stand in a table themselves
    "K", "M", "B", "ε", "T_early epoch", "T_early, % of training", "warm-up epochs", "warm-up epochs, none",
    "warm-up epochs beyond which it saturates", "M without a queue", "ε, too small", "ε, too large",
    "K that reaches the noise floor", "B of the best accuracy and mCE", "the only weaker epoch",
    "B to which accuracy and mCE are insensitive, from", "B to which accuracy and mCE are insensitive, to",
    "stable T_early, % of training, from", "stable T_early, % of training, to", "epochs of rewinding",
    "rate of rewinding", "ceiling of binary InfoNCE, nats", "checkpoints", "embedding",
}  # fmt: skip
STEPS = {"overhead of the T_early pass, %", "ms of the eigenspace, below", "ms of the contrast"}  # of single steps
SEED = re.compile(r", seed [0-9]+$")


def measure_of(key: str) -> Measure | None:
    """Among our scores; None for what a run has no score of: settings, costs, single seeds."""
    base, _, row = key.partition(" against ")
    if key in MEASURES or not row or "," in row:
        return MEASURES.get(key)
    return replace(MEASURES[base], to=NAMED.get(row, row)) if base in MEASURES else None


def why_not(key: str) -> str | None:
    """Why a measure without a score is not compared; None for what is none."""
    if key in SAID:
        return None
    if key in STEPS:
        return "asd bench measures steps"
    return "of single seeds, where theirs are not ours" if SEED.search(key) else "no score of ours"


def numbers_of(pair: str, name: str) -> dict[str, list[Number]]:
    """What is printed of a row of a pair, by measure: different values apart, from the first place that has one."""
    printed = [number for row in ROWS.get(name, (name,)) for number in of_run(pair, row)]
    return by_measure((ALSO.get(number.measure, number.measure), number) for number in printed)


def by_measure(printed: Iterable[tuple[str, Printed]]) -> dict[str, list[Number]]:
    """The same value in several places is one number."""
    numbers: dict[str, list[Number]] = {}
    for key, one in printed:
        new = Number(one.mean, one.std, (one.place,), ((one.place, one.note),) if one.note else ())
        known = numbers.setdefault(key, [])
        at = next((at for at, other in enumerate(known) if other.same(new)), None)
        if at is None:
            known.append(new)
        else:
            known[at] = known[at].joined(new)
    return numbers


# --- What the folder of a pair's teacher holds of what is printed ---

TEACHER = "teacher"  # its row, in print and here
EPOCHS = (5, 20, 35, 90, 150, 210, 240)  # of S-Table 2
WHOLE = 240
NEAR = 0.002  # of training: states are kept at whole steps
BATCHES = {"asd-b32": 32, "asd": 64, "asd-b128": 128, "asd-b256": 256}  # rows of S-Table 8
ANGLES = {"angle to the global subspace, °": "to_whole", "angle between batches, °": "between"}
DIGITS = {  # of every measure, in the order of the table
    "accuracy": 2, "mIoU": 2, "parameters, millions": 1, "parameters, times the student's": 1,
    "angle of shortcut and T_final's PCA, °": 1, "angle of shortcut and T_early's PCA, °": 1,
    "angle between parts, °": 1, "std of the angle between parts, °": 1, "eigengap": 3, "eigengap, relative": 3,
    "λ₁, uncentred": 2, "λ₁, centred, by the remark": 2, "λ₁, centred": 2, "λ₂, centred": 2, "λ_K, centred": 2,
    "λ_K+1, centred": 2, "shortcut energy, highest": 3, "epoch of the highest shortcut energy": 0,
    "shortcut energy, fall in %": 0, "shortcut energy, final": 3, "robust energy, from": 3, "robust energy, to": 3,
    **{f"{kind} energy, epoch {epoch}": 3 for kind in ("shortcut", "robust") for epoch in EPOCHS},
    **{f"{angle}, B = {size}": 1 for angle in ANGLES for size in BATCHES.values()},
    "angle of random subspaces, °": 1,
}  # fmt: skip
MEASURED_BY = {  # all others by a mechanism score
    "accuracy": "asd evaluate --on clean",
    "mIoU": "asd evaluate --on clean",
    "parameters, millions": "its result.json does not say",
    "parameters, times the student's": "its result.json does not say",
}


@dataclass(frozen=True)
class School:
    """A teacher, its directions from the paper's T_early, and one of its students."""

    teacher: Student
    directions: Directions | None
    student: Student

    @property
    def label(self) -> str:
        """In what it is not the paper's."""
        other = unlike_teacher(self.student.run, self.teacher.run)
        return "; ".join([DESK] * at_desk(self.student.run) + [f"not made as the paper's ({other})"] * bool(other))

    @cached_property
    def values(self) -> dict[str, Summary | float]:
        """By measure, in print's unit; without those that are not there."""
        size, small = self.teacher.parameters, self.student.parameters
        values: dict[str, Summary | float | None] = {
            "accuracy": self._score("accuracy"),
            "mIoU": self._score("miou"),
            "parameters, millions": size / 1e6 if size else None,
            "parameters, times the student's": size / small if size and small else None,
        }
        if self.directions:
            values.update(_subspace(self.directions))
            values.update(_energy(self.directions, self.teacher.run.epochs))
        return {key: value for key, value in values.items() if value is not None}

    def _score(self, score: str) -> float | None:
        """On the test set: while training, unless images were held out for that, or by an evaluation."""
        teacher, held_out = self.teacher, self.teacher.run.data.val_fraction
        columns = [f"{name} {score}" for name in (("test",) if held_out else ("test", "val"))]
        columns += ["last"] if teacher.primary_metric == score and not held_out else []
        return next((100 * teacher.values[column] for column in columns if column in teacher.values), None)


def _subspace(directions: Directions) -> Mapping[str, Summary | float | None]:
    """Angles and eigenvalues; of the spectrum as the paper's, the gap λ_K − λ_K+1 is the centred covariance's."""
    parts, gap = directions.bootstrap, directions.gaps.get("centred")
    raw, centred = ((*directions.spectrum.get(kind, ()), *[None] * 5) for kind in ("uncentred", "centred"))
    pca = {state: directions.angles.get(f"shortcut_{state}") for state in ("final", "early")}
    return {
        **{f"angle of shortcut and T_{s}'s PCA, °": summary(each).mean for s, each in pca.items() if each},
        "angle between parts, °": Summary(parts["mean"], parts.get("std"), 1) if "mean" in parts else None,
        "std of the angle between parts, °": parts.get("std"),
        "eigengap": gap,
        "eigengap, relative": gap / centred[0] if gap is not None and centred[0] else None,
        "λ₁, uncentred": raw[0],
        "λ₁, centred, by the remark": centred[0],
        "λ₁, centred": centred[0],
        "λ₂, centred": centred[1],
        "λ_K, centred": centred[3],
        "λ_K+1, centred": centred[4],
        "angle of random subspaces, °": directions.batches_random,
        **{
            f"{angle}, B = {row['batch']:g}": row.get(key)
            for angle, key in ANGLES.items()
            for row in reversed(directions.batches)
        },
    }


def _energy(directions: Directions, length: int) -> Mapping[str, float | None]:
    """At the printed epochs, by the share of training; a state that was not kept is left out."""
    values: dict[str, float | None] = {}
    for kind in ("shortcut", "robust"):
        known = {}
        for epoch in EPOCHS if directions.energy and length else ():
            row = min(directions.energy, key=lambda row: abs(row["epoch"] / length - epoch / WHOLE))
            if abs(row["epoch"] / length - epoch / WHOLE) <= NEAR and kind in row:
                known[epoch] = row[kind]
        values |= {f"{kind} energy, epoch {epoch}": value for epoch, value in known.items()}
        values[f"{kind} energy, final"] = known.get(WHOLE)
        if len(known) == len(EPOCHS):  # extremes of some say nothing of extremes of all
            low, high = min(known.values()), max(known.values())
            values |= {f"{kind} energy, from": low, f"{kind} energy, to": high, f"{kind} energy, highest": high}
            values[f"epoch of the highest {kind} energy"] = max(known, key=known.__getitem__)
            values[f"{kind} energy, fall in %"] = 100 * (1 - known[WHOLE] / high) if high else 0.0
    return values


def schools(found: Found, students: Sequence[Student]) -> list[School]:
    """Teachers of a suite's students whose folders are here, each once."""
    early, epochs = early_of(students[0].run.suite)
    ways = {d.teacher: d for d in reversed(found.directions) if share_of(d.early, epochs) == share_of(early, epochs)}
    first: dict[str, Student] = {}
    for student in students:
        if student.run.teacher in found.taught:
            first.setdefault(student.run.teacher, student)
    return [School(found.taught[name], ways.get(name), student) for name, student in first.items()]


def taught_of(pair: str) -> dict[str, list[Number]]:
    """What is printed of a pair's teacher, by measure."""
    printed = [(key, number) for number in PRINTED if number.column == pair and (key := _key(number)) is not None]
    return by_measure(printed)


def _key(number: Printed) -> str | None:
    if number.row == TEACHER:
        return number.measure
    if number.row.startswith("epoch:"):
        return f"{number.measure}, epoch {number.row.removeprefix('epoch:')}"
    return f"{number.measure}, B = {BATCHES[number.row]}" if number.measure in ANGLES else None


def value_of(key: str, schools: Sequence[School]) -> Summary | None:
    """Ours: of one teacher with the spread that the measure has by itself, of several over them."""
    values = [school.values[key] for school in schools if key in school.values]
    if len(values) == 1 and isinstance(values[0], Summary):
        return values[0]
    return summary([x.mean if isinstance(x, Summary) else x for x in values]) if values else None


def absent(key: str, schools: Sequence[School]) -> str | None:
    """Why a measure has no value; None for what is none."""
    if key not in DIGITS:
        return why_not(key)
    return MEASURED_BY.get(key, "asd evaluate --on mechanism") if schools else "the teacher's folder is not here"
