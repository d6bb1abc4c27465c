"""Our runs of the paper's pairs beside the printed numbers.

Numbers are subtracted only where a run and its teacher were trained as the paper's. Otherwise, and for mCE, whose
normaliser is not disclosed, only the signs of the differences to KD are compared. What is printed but was not measured
here is listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from antishortcut.experiments.printed import PRINTED, Printed, of_run
from antishortcut.report import paper_pairs
from antishortcut.report.collect import BASELINE, Student
from antishortcut.report.paper_pairs import DESK, SIGNS, at_desk, pair_of, recipe_of, row_of, share_of, unlike_teacher
from antishortcut.report.reader import Directions
from antishortcut.report.stats import Summary, sign_test, summary
from antishortcut.report.table import HEADLINE, SURE, ResultTable, against, in_pairs, leaves_zero_out, signed, values_of

HEAD = ("measure", "method", "ours (seeds)", "printed", "ours − printed", f"sign against {BASELINE}", "printed in")
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
VIEWS = ("raw", "aligned")  # features as they are where widths are equal, as the paper; else through one linear map


@dataclass(frozen=True)
class Measure:
    """A measure of the paper's as a score of ours."""

    columns: tuple[str, ...]  # the first that there is
    factor: float = 100.0  # from our unit to the paper's
    digits: int = 2
    by_sign: bool = False  # numbers do not compare, only the sign of the difference to the baseline
    to: str = ""  # the row that the number is a difference to
    change: bool = False  # the score is itself a change against the baseline
    over: Callable[[Sequence[float]], float | None] | None = None  # how seeds are aggregated, if not by their mean


def _mechanism(score: str, factor: float = 1.0, digits: int = 2, change: bool = False) -> Measure:
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
    "alignment with T_final": _mechanism("cos_final"),
    "alignment with T_early": _mechanism("cos_early"),
    "% of samples closer to T_final": _mechanism("closer_final", 100.0, 1),
    "signed cosine": _mechanism("signed_cosine", digits=3),
    "% of samples above the threshold": _mechanism("signed_above", 100.0, 1),
    "projection on the shortcut": _mechanism("projection"),
    "shortcut magnitude, % against KD": _mechanism("projection_change", 100.0, 1, change=True),
    "projection on the robust subspace": _mechanism("robust_projection"),
    "InfoNCE, binary, nats": _mechanism("infonce_binary", digits=3),
    "InfoNCE, full, nats": _mechanism("infonce_full"),
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
ALIASES = {  # printed under another name than what it is
    "shape": "stylised",
    "accuracy, called random in-batch negatives": "accuracy",
    "accuracy with the true early checkpoint": "accuracy",
}
ROWS = {"ce": ("ce", "student")}  # the tables' "student" was trained without a teacher
NAMED = {"student": "ce"}  # the same, where a number is a difference to it
NO_MEASURE = {  # settings of a row, and remarks on numbers that stand in a table themselves
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


def why_missing(key: str) -> str | None:
    """Why a measure without a score is not compared; None for what is no measure."""
    if key in NO_MEASURE:
        return None
    if key in STEPS:
        return "asd bench measures steps"
    return "of single seeds, where theirs are not ours" if SEED.search(key) else "no score of ours"


# --- printed numbers ---


@dataclass(frozen=True)
class PrintedNumber:
    """A printed number, once; `places` are all that print it."""

    mean: float
    std: float | None
    places: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]  # contradictions: place, what is wrong

    @property
    def digits(self) -> int:
        return len(repr(self.mean).partition(".")[2]) if self.mean % 1 else 0

    def same(self, other: PrintedNumber) -> bool:
        """Equal, or one is the other rounded (to two digits or more: 80.5 is 80.50); two stds make two numbers."""
        if self.std is not None and other.std is not None and self.std != other.std:
            return False
        rough, fine = sorted((self, other), key=lambda number: number.digits)
        rounded = rough.digits < fine.digits and round(fine.mean, max(rough.digits, 2)) == rough.mean
        return self.mean == other.mean or rounded

    def joined(self, other: PrintedNumber) -> PrintedNumber:
        """With the most digits that it is printed with."""
        return PrintedNumber(
            mean=max(self, other, key=lambda number: number.digits).mean,
            std=other.std if self.std is None else self.std,
            places=tuple(dict.fromkeys((*self.places, *other.places))),
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
        )


def numbers_of(pair: str, name: str) -> dict[str, list[PrintedNumber]]:
    """What is printed of a row of a pair, by measure: different values apart, from the first place that has one."""
    printed = [number for row in ROWS.get(name, (name,)) for number in of_run(pair, row)]
    return _by_measure((ALIASES.get(number.measure, number.measure), number) for number in printed)


def teacher_numbers(pair: str) -> dict[str, list[PrintedNumber]]:
    """What is printed of a pair's teacher, by measure."""

    def key(number: Printed) -> str | None:
        if number.row == TEACHER:
            return number.measure
        if number.row.startswith("epoch:"):
            return f"{number.measure}, epoch {number.row.removeprefix('epoch:')}"
        return f"{number.measure}, B = {BATCHES[number.row]}" if number.measure in ANGLES else None

    return _by_measure((name, number) for number in PRINTED if number.column == pair and (name := key(number)))


def _by_measure(printed: Iterable[tuple[str, Printed]]) -> dict[str, list[PrintedNumber]]:
    """The same value in several places is one number."""
    numbers: dict[str, list[PrintedNumber]] = {}
    for key, one in printed:
        new = PrintedNumber(one.mean, one.std, (one.place,), ((one.place, one.note),) if one.note else ())
        known = numbers.setdefault(key, [])
        index = next((index for index, other in enumerate(known) if other.same(new)), None)
        if index is None:
            known.append(new)
        else:
            known[index] = known[index].joined(new)
    return numbers


# --- the comparison of a suite ---


@dataclass(frozen=True)
class ComparisonRow:
    """One printed number and ours, in the paper's unit."""

    method: str
    measure: str
    column: str  # ours
    digits: int
    ours: Summary | None  # None where this row was not measured
    number: PrintedNumber
    notes: tuple[int, ...]  # its footnotes
    label: str  # in what its runs are not the paper's: then numbers do not compare
    by_sign: bool = False  # the numbers of this measure never compare
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
        """Of the signs, as text."""
        if self.signs is None:
            return "–"
        ours, printed = ("+" if sign > 0 else "−" for sign in self.signs)
        ours += SURE * self.sure
        return f"agrees ({ours})" if self.agrees else f"differs (ours {ours}, printed {printed})"

    def texts(self) -> list[str]:
        """The cells below HEAD."""

        def text(mean: float, std: float | None) -> str:
            value = f"{mean:z.{self.digits}f}".replace("-", "−")
            return value if std is None else f"{value} ± {std:.{self.digits}f}"

        ours = "–" if self.ours is None else f"{text(self.ours.mean, self.ours.std)} ({self.ours.count})"
        printed = text(self.number.mean, self.number.std) + " ".join(superscript(note) for note in self.notes)
        first, *rest = self.number.places
        where = first + (f" and {len(rest)} more" if rest else "")
        return [self.measure, self.method, ours, printed, signed(self.difference, self.digits), self.agreement, where]

    def flat(self) -> dict[str, Any]:
        sign, printed_sign = self.signs or (None, None)
        return {
            "method": self.method, "measure": self.measure, "score": self.column,
            "ours": self.ours.mean if self.ours else None, "ours ±": self.ours.std if self.ours else None,
            "seeds": self.ours.count if self.ours else 0, "printed": self.number.mean, "printed ±": self.number.std,
            "places": list(self.number.places), "difference": self.difference, "sign": sign,
            "printed sign": printed_sign, "agrees": self.agrees, "notes": list(self.notes), "label": self.label,
        }  # fmt: skip


@dataclass(frozen=True)
class PaperComparison:
    """A suite of the paper's beside its printed numbers."""

    suite: str
    title: str
    labels: tuple[str, ...]  # what a reader must know first
    rows: tuple[ComparisonRow, ...]
    notes: tuple[str, ...]  # footnotes, from the first
    missing: str  # what is printed and was not measured

    def texts(self) -> list[list[str]]:
        return [row.texts() for row in self.rows]

    def footnotes(self) -> list[str]:
        lines = [f"{superscript(index)} {note}." for index, note in enumerate(self.notes, start=1)]
        return lines + [f"Printed, but not measured in these runs: {self.missing}."] * bool(self.missing)

    def flat(self) -> dict[str, Any]:
        return {
            "suite": self.suite, "labels": list(self.labels), "rows": [row.flat() for row in self.rows],
            "notes": list(self.notes), "missing": self.missing,
        }  # fmt: skip


def explanation(comparisons: Sequence[PaperComparison]) -> str:
    """How to read the tables."""
    rows = [row for each in comparisons for row in each.rows]
    by_sign = dict.fromkeys(row.measure for row in rows if row.by_sign)
    text = f" {', '.join(by_sign)}: the normaliser is not disclosed, so {SIGNS}." if by_sign else ""
    if TEACHER in (row.method for row in rows):
        text += f" {TEACHER}: over teachers, its angle between parts over pairs of parts; it has no sign to agree with."
    return (
        "Ours and printed in print’s unit, mean ± standard deviation over seeds. Sign: of the difference to "
        f"{BASELINE}, or to the row that the measure names; ours seed by seed, {SURE} where its 95 % interval leaves "
        f"zero out.{text}"
    )


def superscript(number: int) -> str:
    return str(number).translate(SUPERSCRIPT)


def compare_with_paper(table: ResultTable) -> list[PaperComparison]:
    """The suites of the paper's that have something printed; of chosen columns where a person chose them."""
    suites: dict[str, list[list[Student]]] = {}
    for group in table.runs.groups.values():
        if pair_of(group[0].run) is not None:
            suites.setdefault(group[0].run.suite, []).append(group)
    comparisons = [_Suite(table, groups).compare() for groups in suites.values()]
    return [each for each in comparisons if each.rows or each.missing]


class _Suite:
    """The rows of a pair, what is printed of them, and the footnotes so far."""

    def __init__(self, table: ResultTable, groups: list[list[Student]]) -> None:
        self.table, self.name = table, groups[0][0].run.suite
        self.pair = pair_of(groups[0][0].run) or ""
        self.groups = {row_of(group[0].run): group for group in groups}
        self.students = [student for group in groups for student in group]
        self.labels = {row: table.labels.get(group[0].method, "") for row, group in self.groups.items()}
        self.printed = {
            row: {key: each for key, each in numbers_of(self.pair, row).items() if key not in ANGLES}
            for row in self.groups
        }
        self.notes: dict[str, list[str]] = {}  # what is wrong → places
        self.missing: dict[str, dict[str, None]] = {}  # why it is not measured → measures

    def compare(self) -> PaperComparison:
        rows = [*self._student_rows(), *([] if self.table.selected else self._teacher_rows())]
        runs = self.table.runs
        teacher = next((t for s in self.students if s.run.roles and (t := runs.teacher_of(s.run))), None)
        quoted = {why: [f"“{key}”" if "," in key else key for key in keys] for why, keys in self.missing.items()}
        return PaperComparison(
            suite=self.name,
            title=paper_pairs.title_of(self.students[0].run, teacher),
            labels=tuple(paper_pairs.suite_labels(runs).get(self.name, ())),
            rows=tuple(rows),
            notes=tuple(f"{', '.join(places)}: {note}" for note, places in self.notes.items()),
            missing=""
            if self.table.selected
            else "; ".join(f"{', '.join(keys)} ({why})" for why, keys in quoted.items()),
        )

    def _miss(self, why: str, key: str) -> None:
        self.missing.setdefault(why, {})[key] = None

    def _student_rows(self) -> list[ComparisonRow]:
        """What is printed of any row, in the order of MEASURES."""
        measures = []
        for key in dict.fromkeys(key for numbers in self.printed.values() for key in numbers):
            if (measure := measure_of(key)) is not None:
                measures.append((key, measure))
            elif (why := why_missing(key)) is not None:
                self._miss(why, SEED.sub("", key))
        order = {key: index for index, key in enumerate(MEASURES)}
        measures.sort(key=lambda one: order.get(one[0], order.get(one[0].partition(" against ")[0], 0) + 0.5))
        rows: list[ComparisonRow] = []
        for key, measure in measures:
            column = self._column(measure)
            if measure.to and measure.to not in self.groups:
                self._miss(f"no row {measure.to} here", key)
            elif column == SECONDS and not any(self._values(row, measure, column) for row in self.groups):
                self._miss(f"seconds of {BASELINE} on the same machine, without cached teachers", key)
            elif column is None:
                group = measure.columns[0].split()[0]
                evaluation = "clean" if group in ("last", "test", "val") else group
                self._miss(f"asd evaluate --on {evaluation}", key)
            elif not self.table.selected or column in self.table.selected:
                each = [(row, number) for row in self.groups for number in self.printed[row].get(key, ())]
                rows += [self._row(row, key, measure, column, number) for row, number in each]
        return rows

    def _column(self, measure: Measure) -> str | None:
        """The first of a measure's columns that any row has; accuracy is never that of held-out images."""
        if measure.columns == (SECONDS,):
            return SECONDS
        held_out = any(s.eval_split == "val" for s in self.students)
        names = [name for name in measure.columns if name != HEADLINE or not held_out]
        return next((name for name in names if any(name in s.values for s in self.students)), None)

    def _row(self, row: str, key: str, measure: Measure, column: str, number: PrintedNumber) -> ComparisonRow:
        values = [value * measure.factor for value in self._values(row, measure, column)]
        ours = summary(values) if values else None
        if ours and measure.over:  # an aggregate has no spread of its own
            value = measure.over(values)
            ours = None if value is None else Summary(value, None, len(values))
        signs, sure = self._signs(row, key, measure, column, number)
        label = self.labels[row] or self.labels.get(measure.to, "")
        return ComparisonRow(
            self.groups[row][0].method, key, column, max(measure.digits, number.digits), ours, number,
            self._footnotes(number), label, measure.by_sign, signs, sure,
        )  # fmt: skip

    def _footnotes(self, number: PrintedNumber) -> tuple[int, ...]:
        """Its footnotes by their numbers; the same remark on several places is one."""
        for place, note in number.notes:
            places = self.notes.setdefault(note, [])
            places += [place] * (place not in places)
        order = list(self.notes)
        return tuple(dict.fromkeys(order.index(note) + 1 for _, note in number.notes))

    def _values(self, row: str, measure: Measure, column: str) -> list[float]:
        """Ours, one per seed: the score, or its difference to the row the measure names."""
        group, base = self.groups[row], self.groups.get(measure.to, [])
        if column == SECONDS:  # relative, on the same machine, and teachers not cached
            seeds = {s.run.seed: s for s in base}
            return [
                s.seconds / other.seconds - 1
                for s in group
                if (other := seeds.get(s.run.seed)) and other is not s and s.seconds and other.seconds
                if (s.execution, s.versions) == (other.execution, other.versions)
                and not s.execution.get("cache_teachers")
            ]
        if not measure.to:
            return values_of(group, column)
        return [a - b for a, b in zip(*in_pairs(group, base, column), strict=True)]

    def _signs(
        self, row: str, key: str, measure: Measure, column: str, number: PrintedNumber
    ) -> tuple[tuple[int, int] | None, bool]:
        """Signs of the difference to KD, or to the row the measure names, ours and printed; whether ours is sure."""
        group, reference = self.groups[row], self.groups.get(measure.to or BASELINE)
        if measure.over or column == SECONDS:
            return None, False
        if measure.change:  # a change against KD by itself
            values = values_of(group, column)
            return (_both_signs(summary(values).mean, number.mean) if values else None), False
        ours = against(group, reference, column) if reference and reference is not group else None
        printed: float | None = number.mean
        if not measure.to:  # printed difference to KD: to its number in the same place if it has one, else to its first
            base = self.printed.get(BASELINE, {}).get(key, [])
            base = sorted(base, key=lambda one: not set(one.places) & set(number.places))
            printed = number.mean - base[0].mean if base else None
        if ours is None or printed is None:
            return None, False
        signs = _both_signs(ours.difference * measure.factor, printed)
        return signs, signs is not None and leaves_zero_out(ours)

    def _teacher_rows(self) -> list[ComparisonRow]:
        """What is printed of the teacher, beside what its folder holds."""
        runs, first = self.table.runs, self.students[0].run
        recipe = recipe_of(first.suite)
        early = share_of(recipe.teacher.early, recipe.epochs)
        directions = {d.teacher: d for d in reversed(runs.directions) if share_of(d.early, recipe.epochs) == early}
        pupils: dict[str, Student] = {}  # teacher → its first student
        for s in self.students:
            if s.run.teacher in runs.teacher_runs:
                pupils.setdefault(s.run.teacher, s)
        unlike = dict.fromkeys(unlike_teacher(s.run, runs.teacher_runs[name].run) for name, s in pupils.items())
        notes = ["; ".join([DESK] * at_desk(first) + [f"not made as the paper's ({u})"] * bool(u)) for u in unlike]
        label = "; ".join(note for note in notes if note)
        values = [teacher_values(runs.teacher_runs[name], directions.get(name), s) for name, s in pupils.items()]
        rows = []
        order = {key: index for index, key in enumerate(DIGITS)}
        printed = sorted(teacher_numbers(self.pair).items(), key=lambda each: order.get(each[0], len(order)))
        for key, numbers in printed:
            known = [each[key] for each in values if key in each] if key in DIGITS else []
            if known:  # one teacher has the spread of the measure itself, several have that over them
                ours = known[0] if len(known) == 1 else summary([one.mean for one in known])
                rows += [
                    ComparisonRow(
                        TEACHER, key, f"{TEACHER} {key}", max(DIGITS[key], number.digits), ours, number,
                        self._footnotes(number), label,
                    )
                    for number in numbers
                ]  # fmt: skip
            elif key not in DIGITS:
                if (why := why_missing(key)) is not None:
                    self._miss(why, f"{TEACHER}'s {key}")
            else:
                why = (
                    MEASURED_BY.get(key, "asd evaluate --on mechanism")
                    if values
                    else "the teacher's folder is not here"
                )
                self._miss(why, f"{TEACHER}'s {key}")
        return rows


def _both_signs(ours: float, printed: float) -> tuple[int, int] | None:
    """A difference of zero agrees with nothing."""
    return None if 0 in (ours, printed) else (1 if ours > 0 else -1, 1 if printed > 0 else -1)


# --- what the folder of a pair's teacher holds ---

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


def teacher_values(teacher: Student, directions: Directions | None, student: Student) -> dict[str, Summary]:
    """By measure, in the paper's unit; without those that are not there."""
    size, small, held_out = teacher.parameters, student.parameters, teacher.run.data.val_fraction
    values: dict[str, Summary | float | None] = {
        "parameters, millions": size / 1e6 if size else None,
        "parameters, times the student's": size / small if size and small else None,
    }
    for key, score in (("accuracy", "accuracy"), ("mIoU", "miou")):  # on the test set, not on held-out images
        columns = [f"test {score}"] if held_out else [f"test {score}", f"val {score}"]
        columns += [HEADLINE] if teacher.primary_metric == score and not held_out else []
        values[key] = next((100 * teacher.values[column] for column in columns if column in teacher.values), None)
    if directions:
        values |= _subspace(directions) | _energy(directions, teacher.run.epochs)
    return {
        key: value if isinstance(value, Summary) else Summary(value, None, 1)
        for key, value in values.items()
        if value is not None
    }


def _subspace(directions: Directions) -> dict[str, Summary | float | None]:
    """Angles and eigenvalues; the gap λ_K − λ_K+1 is that of the centred covariance."""
    bootstrap, gap = directions.bootstrap, directions.gaps.get("centred")
    raw, centred = ((*directions.spectrum.get(kind, ()), *[None] * 5) for kind in ("uncentred", "centred"))
    pca = {state: directions.angles.get(f"shortcut_{state}") for state in ("final", "early")}
    return {
        **{f"angle of shortcut and T_{s}'s PCA, °": summary(each).mean for s, each in pca.items() if each},
        "angle between parts, °": Summary(bootstrap["mean"], bootstrap.get("std"), 1) if "mean" in bootstrap else None,
        "std of the angle between parts, °": bootstrap.get("std"),
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


def _energy(directions: Directions, length: int) -> dict[str, Summary | float | None]:
    """At the printed epochs, by the share of training; a state that was not saved is left out."""
    values: dict[str, Summary | float | None] = {}
    for kind in ("shortcut", "robust"):
        known: dict[int, float] = {}
        for epoch in EPOCHS if directions.energy and length else ():
            row = min(directions.energy, key=lambda row: abs(row["epoch"] / length - epoch / WHOLE))
            if abs(row["epoch"] / length - epoch / WHOLE) <= NEAR and kind in row:
                known[epoch] = row[kind]
        values |= {f"{kind} energy, epoch {epoch}": value for epoch, value in known.items()}
        values[f"{kind} energy, final"] = known.get(WHOLE)
        if len(known) == len(EPOCHS):  # extremes of some are not extremes of all
            low, high = min(known.values()), max(known.values())
            values |= {f"{kind} energy, from": low, f"{kind} energy, to": high, f"{kind} energy, highest": high}
            values[f"epoch of the highest {kind} energy"] = float(max(known, key=known.__getitem__))
            values[f"{kind} energy, fall in %"] = 100 * (1 - known[WHOLE] / high) if high else 0.0
    return values
