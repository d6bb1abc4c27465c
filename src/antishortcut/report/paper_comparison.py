"""Our runs of the paper's pairs beside the printed numbers.

Numbers are subtracted only where a run and its teacher were trained as the paper's. Otherwise, and for mCE, whose
normaliser is not disclosed, only the signs of the differences to KD are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from antishortcut.experiments.printed import PRINTED, Printed, of_run
from antishortcut.report import paper_pairs
from antishortcut.report.collect import BASELINE, Collected, Student
from antishortcut.report.paper_pairs import DESK, SIGNS, at_desk, pair_of, recipe_of, row_of, share_of, unlike_teacher
from antishortcut.report.reader import Directions
from antishortcut.report.stats import Summary, paired, summary
from antishortcut.report.table import HEADLINE, SURE, ResultTable, in_pairs, leaves_zero_out, signed, values_of

HEAD = ("measure", "method", "ours (seeds)", "printed", "ours − printed", f"sign against {BASELINE}", "printed in")
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Measure:
    """A measure of the paper's as a score of ours."""

    columns: tuple[str, ...]  # the first that there is
    factor: float = 100.0  # from our unit to the paper's
    digits: int = 2
    by_sign: bool = False  # numbers do not compare, only the sign of the difference to the baseline
    to: str = ""  # the row that the number is a difference to


def _mechanism(score: str, factor: float = 1.0, digits: int = 2) -> Measure:
    """On the features as they are where widths are equal, as in the paper; else through one linear map."""
    return Measure((f"mechanism raw {score}", f"mechanism aligned {score}"), factor, digits)


SECONDS = "seconds"  # of a whole run, from its result.json
MEASURES = {
    "accuracy": Measure((HEADLINE, "test accuracy")),
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
    "signed cosine": _mechanism("signed_cosine"),
    "% of samples above the threshold": _mechanism("signed_above", 100.0, 1),
    "projection on the shortcut": _mechanism("projection"),
    "shortcut magnitude, % against KD": _mechanism("projection_change", 100.0, 1),
    "projection on the robust subspace": _mechanism("robust_projection"),
    "InfoNCE, binary, nats": _mechanism("infonce_binary", digits=3),
    "InfoNCE, full, nats": _mechanism("infonce_full"),
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


def measure_of(key: str) -> Measure | None:
    """Among our scores, "accuracy against dkd" too; None for what a run has no score of: settings, single seeds."""
    base, _, row = key.partition(" against ")
    if key in MEASURES or base not in MEASURES or "," in row:
        return MEASURES.get(key)
    return replace(MEASURES[base], to=NAMED.get(row, row))


Numbers = dict[str, list[Printed]]  # measure → every place that prints it, the one that counts first


def numbers_of(pair: str, name: str) -> Numbers:
    """What is printed of a row of a pair; tables come first."""
    printed = [number for row in ROWS.get(name, (name,)) for number in of_run(pair, row)]
    return _by_measure((ALIASES.get(number.measure, number.measure), number) for number in printed)


def _by_measure(printed: Iterable[tuple[str, Printed]]) -> Numbers:
    numbers: Numbers = {}
    for key, number in printed:
        numbers.setdefault(key, []).append(number)
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
    number: Printed
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
        """The cells below HEAD, with all digits that are printed."""
        digits = max(self.digits, len(f"{self.number.mean:g}".partition(".")[2]))

        def text(mean: float, std: float | None) -> str:
            value = f"{mean:z.{digits}f}".replace("-", "−")
            return value if std is None else f"{value} ± {std:.{digits}f}"

        ours = "–" if self.ours is None else f"{text(self.ours.mean, self.ours.std)} ({self.ours.count})"
        printed = text(self.number.mean, self.number.std) + " ".join(superscript(note) for note in self.notes)
        difference = signed(self.difference, digits)
        return [self.measure, self.method, ours, printed, difference, self.agreement, self.number.place]

    def flat(self) -> dict[str, Any]:
        sign, printed_sign = self.signs or (None, None)
        return {
            "method": self.method, "measure": self.measure, "score": self.column,
            "ours": self.ours.mean if self.ours else None, "ours ±": self.ours.std if self.ours else None,
            "seeds": self.ours.count if self.ours else 0, "printed": self.number.mean, "printed ±": self.number.std,
            "place": self.number.place, "difference": self.difference, "sign": sign, "printed sign": printed_sign,
            "agrees": self.agrees, "notes": list(self.notes), "label": self.label,
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
        return vars(self) | {"rows": [row.flat() for row in self.rows]}


def explanation(comparisons: Sequence[PaperComparison]) -> str:
    """How to read the tables."""
    by_sign = dict.fromkeys(row.measure for each in comparisons for row in each.rows if row.by_sign)
    text = f" {', '.join(by_sign)}: the normaliser is not disclosed, so {SIGNS}." if by_sign else ""
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
        self.table, self.pair = table, pair_of(groups[0][0].run) or ""
        self.groups = {row_of(group[0].run): group for group in groups}
        self.students = [student for group in groups for student in group]
        self.printed = {row: numbers_of(self.pair, row) for row in self.groups}
        self.notes: dict[str, str] = {}  # contradiction → the first place it is about
        self.missing: dict[str, dict[str, None]] = {}  # why it is not measured → measures

    def compare(self) -> PaperComparison:
        rows = [*self._student_rows(), *([] if self.table.selected else self._teacher_rows())]
        runs, run = self.table.runs, self.students[0].run
        teacher = next((t for s in self.students if s.run.roles and (t := runs.teacher_of(s.run))), None)
        missing = [f"{', '.join(keys)} ({why})" for why, keys in self.missing.items()]
        return PaperComparison(
            suite=run.suite,
            title=paper_pairs.title_of(run, teacher),
            labels=tuple(paper_pairs.suite_labels(runs).get(run.suite, ())),
            rows=tuple(rows),
            notes=tuple(f"{place}: {note}" for note, place in self.notes.items()),
            missing="" if self.table.selected else "; ".join(missing),
        )

    def _student_rows(self) -> list[ComparisonRow]:
        """What is printed of any row and has a score of ours, in the order of MEASURES."""
        order = list(MEASURES)
        measures = {key: measure_of(key) for numbers in self.printed.values() for key in numbers}
        known = [(key, measure) for key, measure in measures.items() if measure is not None]
        known.sort(key=lambda one: order.index(one[0] if one[0] in MEASURES else one[0].partition(" against ")[0]))
        rows: list[ComparisonRow] = []
        for key, measure in known:
            column = self._column(measure)
            if column is None:
                group = measure.columns[0].split()[0]
                evaluation = "clean" if group in (HEADLINE, "val") else group
                self._miss(f"asd evaluate --on {evaluation}", key)
            elif measure.to and measure.to not in self.groups:
                continue
            elif not self.table.selected or column in self.table.selected:
                names = [row for row in self.groups if key in self.printed[row]]
                rows += [self._row(row, key, measure, column) for row in names]
        return rows

    def _miss(self, why: str, key: str) -> None:
        self.missing.setdefault(why, {})[key.partition(",")[0]] = None

    def _column(self, measure: Measure) -> str | None:
        """The first of a measure's columns that any row has; accuracy is never that of held-out images."""
        if measure.columns == (SECONDS,):
            return SECONDS
        held_out = any(s.eval_split == "val" for s in self.students)
        names = [name for name in measure.columns if name != HEADLINE or not held_out]
        return next((name for name in names if any(name in s.values for s in self.students)), None)

    def _row(self, row: str, key: str, measure: Measure, column: str) -> ComparisonRow:
        """Ours is one value per seed: the score, or its difference to the row that the measure names."""
        group, numbers = self.groups[row], self.printed[row][key]
        base = self.printed.get(BASELINE, {}).get(key)
        printed = numbers[0].mean - base[0].mean if base else None  # the difference to the baseline
        if measure.to:
            ours = differences = self._differences(group, measure.to, column)
            printed = numbers[0].mean
        elif column.endswith("_change"):  # against the baseline, by itself
            ours = differences = values_of(group, column)
            printed = numbers[0].mean
        else:
            ours, differences = values_of(group, column), self._differences(group, BASELINE, column)
        values = [value * measure.factor for value in ours]
        signs, sure = None, False
        if differences and printed:
            difference = paired(differences, [0.0] * len(differences))
            sign = _sign(difference.difference * measure.factor)
            signs = (sign, _sign(printed)) if sign else None  # no difference agrees with nothing
            sure = leaves_zero_out(difference)
        labels = [self.table.labels.get(self.groups[name][0].method, "") for name in (row, measure.to or row)]
        return ComparisonRow(
            group[0].method, key, column, measure.digits, summary(values) if values else None, numbers[0],
            self._footnotes(numbers), labels[0] or labels[1], measure.by_sign, signs, sure,
        )  # fmt: skip

    def _differences(self, group: list[Student], to: str, column: str) -> list[float]:
        """To another row, seed by seed. Seconds are relative, and need the same machine and no cached teachers."""
        base = self.groups.get(to, [])
        if column != SECONDS:
            return [a - b for a, b in zip(*in_pairs(group, base, column), strict=True)]
        seeds = {s.run.seed: s for s in base}
        return [
            s.seconds / other.seconds - 1
            for s in group
            if (other := seeds.get(s.run.seed)) and s.seconds and other.seconds
            if (s.execution, s.versions) == (other.execution, other.versions) and not s.execution.get("cache_teachers")
        ]

    def _footnotes(self, numbers: Iterable[Printed]) -> tuple[int, ...]:
        """What contradicts a number anywhere, as numbers of footnotes; the same remark on several places is one."""
        noted = [number for number in numbers if number.note]
        for number in noted:
            self.notes.setdefault(number.note, number.place)
        order = list(self.notes)
        return tuple(dict.fromkeys(order.index(number.note) + 1 for number in noted))

    def _teacher_rows(self) -> list[ComparisonRow]:
        """What is printed of the teacher, beside what its folder holds; the mean where students have several."""
        teachers = _teachers(self.table.runs, self.students)
        first = self.students[0].run
        unlike = dict.fromkeys(unlike_teacher(first, teacher.run) for teacher, _ in teachers)
        notes = [DESK] * at_desk(first) + [f"not made as the paper's ({other})" for other in unlike if other]
        values = [teacher_values(*each) for each in teachers]
        rows = []
        for key, numbers in teacher_numbers(self.pair).items():
            if ours := [each[key] for each in values if key in each]:
                rows.append(
                    ComparisonRow(
                        TEACHER, key, f"{TEACHER} {key}", _digits(key), summary(ours), numbers[0],
                        self._footnotes(numbers), "; ".join(notes),
                    )
                )  # fmt: skip
            else:
                evaluation = "clean" if key in ("accuracy", "mIoU") else "mechanism"
                why = f"asd evaluate --on {evaluation}" if values else "the teacher's folder is not here"
                self._miss(why, f"{TEACHER}'s {key}")
        return rows


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


# --- what the folder of a pair's teacher holds ---

TEACHER = "teacher"  # its row, in print and here
EPOCHS = (5, 20, 35, 90, 150, 210, 240)  # of S-Table 2
WHOLE = 240
NEAR = 0.002  # of training: states are kept at whole steps
BATCHES = {"asd-b32": 32, "asd": 64, "asd-b128": 128, "asd-b256": 256}  # rows of S-Table 8
ANGLES = {"angle to the global subspace, °": "to_whole", "angle between batches, °": "between"}
TEACHER_MEASURES = (  # besides angles by batch and energies by epoch
    "accuracy", "mIoU", "angle of shortcut and T_final's PCA, °", "angle of shortcut and T_early's PCA, °",
    "angle between parts, °", "std of the angle between parts, °", "eigengap", "eigengap, relative", "λ₁, uncentred",
    "λ₁, centred", "λ₂, centred", "λ_K, centred", "λ_K+1, centred",
)  # fmt: skip


def teacher_numbers(pair: str) -> Numbers:
    """What is printed of a pair's teacher, in the order above."""

    def key(number: Printed) -> str | None:
        if number.row == TEACHER and number.measure in TEACHER_MEASURES:
            return number.measure
        if number.row.startswith("epoch:"):
            return f"{number.measure}, epoch {number.row.removeprefix('epoch:')}"
        return f"{number.measure}, B = {BATCHES[number.row]}" if number.measure in ANGLES else None

    return _by_measure((name, number) for number in PRINTED if number.column == pair and (name := key(number)))


def _digits(key: str) -> int:
    return 3 if "energy" in key or "eigengap" in key else 1 if "angle" in key else 2


def _teachers(runs: Collected, students: Sequence[Student]) -> list[tuple[Student, Directions | None]]:
    """Of these students, with their directions from the recipe's early state."""
    recipe = recipe_of(students[0].run.suite)
    early = share_of(recipe.teacher.early, recipe.epochs)
    directions = {d.teacher: d for d in reversed(runs.directions) if share_of(d.early, recipe.epochs) == early}
    names = dict.fromkeys(s.run.teacher for s in students if s.run.teacher in runs.teacher_runs)
    return [(runs.teacher_runs[name], directions.get(name)) for name in names if name]


def teacher_values(teacher: Student, directions: Directions | None) -> dict[str, float]:
    """By measure, in the paper's unit; without those that are not there."""
    values: dict[str, float | None] = {}
    held_out = teacher.run.data.val_fraction
    for key, score in (("accuracy", "accuracy"), ("mIoU", "miou")):  # on the test set, not on held-out images
        columns = [f"test {score}"] if held_out else [f"test {score}", f"val {score}"]
        columns += [HEADLINE] if teacher.primary_metric == score and not held_out else []
        values[key] = next((100 * teacher.values[column] for column in columns if column in teacher.values), None)
    if directions:
        values |= _subspace(directions) | _energy(directions, teacher.run.epochs)
    return {key: value for key, value in values.items() if value is not None}


def _subspace(directions: Directions) -> dict[str, float | None]:
    """Angles and eigenvalues; the gap λ_K − λ_K+1 is that of the centred covariance."""
    gap, centred = directions.gaps.get("centred"), directions.spectrum.get("centred", ())
    pca = {state: directions.angles.get(f"shortcut_{state}") for state in ("final", "early")}
    eigenvalues = zip(("λ₁", "λ₂", "", "λ_K", "λ_K+1"), centred, strict=False)
    return {
        **{f"angle of shortcut and T_{s}'s PCA, °": summary(each).mean for s, each in pca.items() if each},
        "angle between parts, °": directions.bootstrap.get("mean"),
        "std of the angle between parts, °": directions.bootstrap.get("std"),
        "eigengap": gap,
        "eigengap, relative": gap / centred[0] if gap is not None and centred and centred[0] else None,
        "λ₁, uncentred": next(iter(directions.spectrum.get("uncentred", ())), None),
        **{f"{name}, centred": value for name, value in eigenvalues if name},
        **{f"{angle}, B = {row['batch']:g}": row.get(k) for angle, k in ANGLES.items() for row in directions.batches},
    }


def _energy(directions: Directions, length: int) -> dict[str, float | None]:
    """At the printed epochs, by the share of training; a state that was not saved is left out."""
    values: dict[str, float | None] = {}
    for row in directions.energy if length else ():
        for epoch in EPOCHS:
            if abs(row["epoch"] / length - epoch / WHOLE) <= NEAR:
                values |= {f"{kind} energy, epoch {epoch}": row.get(kind) for kind in ("shortcut", "robust")}
    return values
