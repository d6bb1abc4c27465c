"""Our runs of the paper's pairs beside the printed numbers.

Numbers are subtracted only where a run and its teacher were trained as the paper's. Otherwise, and for mCE, whose
normaliser is not disclosed, only the signs of the differences to KD are compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from antishortcut.experiments.paper import PRINTED, Printed, of_run
from antishortcut.report import paper_pairs
from antishortcut.report.collect import BASELINE, StudentRun
from antishortcut.report.paper_pairs import DESK, SIGNS, at_desk, pair_of, recipe_of, row_of, share_of, unlike_teacher
from antishortcut.report.reader import Directions
from antishortcut.report.stats import Paired, Summary, paired, summary
from antishortcut.report.table import HEADLINE, SURE, ResultTable, in_pairs, leaves_zero_out, signed, values_of

HEAD = ("measure", "method", "ours (seeds)", "printed", "ours − printed", f"sign against {BASELINE}", "printed in")
NOTED = "†"  # a number that the paper contradicts somewhere
EXPLANATION = (
    "Ours and printed in print’s unit, mean ± standard deviation over seeds. Sign: of the difference to "
    f"{BASELINE}, or to the row that the measure names; ours seed by seed, {SURE} where its 95 % interval leaves "
    f"zero out. mCE, ΔCE: the normaliser is not disclosed, so {SIGNS}."
)


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
}
ALIASES = {  # printed under another name than what it is
    "shape": "stylised",
    "accuracy, called random in-batch negatives": "accuracy",
    "accuracy with the true early checkpoint": "accuracy",
}
ROWS = {"student": "ce"}  # the tables' "student" was trained without a teacher


def measure_of(key: str) -> Measure | None:
    """Among our scores, "accuracy against dkd" too; None for what a run has no score of: settings, single seeds."""
    base, _, row = key.partition(" against ")
    if key in MEASURES or base not in MEASURES or "," in row:
        return MEASURES.get(key)
    return replace(MEASURES[base], to=ROWS.get(row, row))


Numbers = dict[str, list[Printed]]  # measure → every place that prints it, the one that counts first


def numbers_of(pair: str, name: str) -> Numbers:
    """What is printed of a row of a pair; tables come first."""
    printed = [number for row in (name, *(r for r in ROWS if ROWS[r] == name)) for number in of_run(pair, row)]
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
    numbers: list[Printed]  # every place that prints it; the first counts
    label: str  # in what its runs are not the paper's: then numbers do not compare
    difference: float | None = None  # ours − printed, where numbers compare
    against: Paired | None = None  # our difference to the baseline, None where there is none
    printed_against: float = 0.0

    @property
    def noted(self) -> list[Printed]:
        """Places with a contradiction."""
        return [number for number in self.numbers if number.note]

    @property
    def agrees(self) -> bool | None:
        """Whether both have the same sign."""
        return None if self.against is None else (self.against.difference > 0) == (self.printed_against > 0)

    @property
    def agreement(self) -> str:
        if self.against is None:
            return "–"
        ours = _sign(self.against.difference) + SURE * leaves_zero_out(self.against)
        return f"agrees ({ours})" if self.agrees else f"differs (ours {ours}, printed {_sign(self.printed_against)})"

    def texts(self) -> list[str]:
        """The cells below HEAD, with all digits that are printed."""
        number = self.numbers[0]
        digits = max(self.digits, len(f"{number.mean:g}".partition(".")[2]))

        def text(mean: float, std: float | None) -> str:
            value = f"{mean:z.{digits}f}".replace("-", "−")
            return value if std is None else f"{value} ± {std:.{digits}f}"

        ours = "–" if self.ours is None else f"{text(self.ours.mean, self.ours.std)} ({self.ours.count})"
        printed = text(number.mean, number.std) + f" {NOTED}" * bool(self.noted)
        difference = signed(self.difference, digits)
        return [self.measure, self.method, ours, printed, difference, self.agreement, number.place]

    def flat(self) -> dict[str, Any]:
        ours, against, number = self.ours, self.against, self.numbers[0]
        return {
            "method": self.method, "measure": self.measure, "score": self.column,
            "ours": ours and ours.mean, "ours ±": ours and ours.std, "seeds": ours.count if ours else 0,
            "printed": number.mean, "printed ±": number.std, "place": number.place,
            "difference": self.difference, "against": against and against.difference,
            "printed against": against and self.printed_against, "agrees": self.agrees,
            "sign_test": against and against.sign_p, "label": self.label,
            "notes": [number.note for number in self.noted],
        }  # fmt: skip


@dataclass(frozen=True)
class PaperComparison:
    """A suite of the paper's beside its printed numbers."""

    suite: str
    title: str
    labels: list[str]  # what a reader must know first
    rows: list[ComparisonRow]
    missing: list[str]  # evaluations that would measure more of what is printed

    def texts(self) -> list[list[str]]:
        return [row.texts() for row in self.rows]

    def footnotes(self) -> list[str]:
        notes: dict[str, str] = {}  # the same remark on several numbers stands once
        for row in self.rows:
            for number in row.noted:
                notes.setdefault(number.note, f"{NOTED} {row.measure}, {number.place}: {number.note}.")
        more = f"More is printed of these runs, which asd evaluate --on {','.join(self.missing)} would measure."
        return [*notes.values(), *[more] * bool(self.missing)]

    def flat(self) -> dict[str, Any]:
        return vars(self) | {"rows": [row.flat() for row in self.rows]}


def _sign(value: float) -> str:
    return "+" if value > 0 else "−"


def compare_with_paper(table: ResultTable) -> list[PaperComparison]:
    """The suites of the paper's that have something printed; of chosen columns where a person chose them."""
    suites: dict[str, list[list[StudentRun]]] = {}
    for group in table.runs.groups.values():
        if pair_of(group[0].run) is not None:
            suites.setdefault(group[0].run.suite, []).append(group)
    comparisons = [_Suite(table, groups).compare() for groups in suites.values()]
    return [each for each in comparisons if each.rows or each.missing]


class _Suite:
    """The rows of a pair, and what is printed of them."""

    def __init__(self, table: ResultTable, groups: list[list[StudentRun]]) -> None:
        self.table, self.pair = table, pair_of(groups[0][0].run) or ""
        self.groups = {row_of(group[0].run): group for group in groups}
        self.students = [student for group in groups for student in group]
        self.printed = {row: numbers_of(self.pair, row) for row in self.groups}
        self.missing: set[str] = set()  # evaluations

    def compare(self) -> PaperComparison:
        rows = [*self._student_rows(), *([] if self.table.selected else self._teacher_rows())]
        run = self.students[0].run
        return PaperComparison(
            suite=run.suite,
            title=paper_pairs.title_of(run),
            labels=paper_pairs.suite_labels(self.table.runs).get(run.suite, []),
            rows=rows,
            missing=[] if self.table.selected else sorted(self.missing),
        )

    def _student_rows(self) -> list[ComparisonRow]:
        """What is printed of any row and has a score of ours, in the order of print."""
        rows: list[ComparisonRow] = []
        for key in dict.fromkeys(key for numbers in self.printed.values() for key in numbers):
            if (measure := measure_of(key)) is None:
                continue
            column = self._column(measure)
            if column is None:
                group = measure.columns[0].split()[0]
                self.missing.add("clean" if group in (HEADLINE, "val") else group)
            elif measure.to in ("", *self.groups) and (not self.table.selected or column in self.table.selected):
                rows += [self._row(row, key, measure, column) for row in self.groups if key in self.printed[row]]
        return rows

    def _column(self, measure: Measure) -> str | None:
        """The first of a measure's columns that any row has; accuracy is never that of held-out images."""
        held_out = any(s.eval_split == "val" for s in self.students)
        names = [name for name in measure.columns if name != HEADLINE or not held_out]
        return next((name for name in names if any(name in s.values for s in self.students)), None)

    def _row(self, row: str, key: str, measure: Measure, column: str) -> ComparisonRow:
        """Ours is one value per seed: the score, or its difference to the row that the measure names."""
        group, numbers = self.groups[row], self.printed[row][key]
        values = self._differences(group, measure.to, column) if measure.to else values_of(group, column)
        if measure.to or column.endswith("_change"):  # the number is a difference by itself
            differences, printed = values, numbers[0].mean
        else:
            differences = self._differences(group, BASELINE, column)
            base = self.printed.get(BASELINE, {}).get(key, numbers)
            printed = numbers[0].mean - base[0].mean
        values, differences = ([value * measure.factor for value in each] for each in (values, differences))
        against = paired(differences, [0.0] * len(differences)) if differences and printed else None
        labels = [self.table.labels.get(self.groups[name][0].method, "") for name in (row, measure.to or row)]
        ours, label = summary(values) if values else None, labels[0] or labels[1]
        return ComparisonRow(
            group[0].method, key, column, measure.digits, ours, numbers, label,
            difference=ours.mean - numbers[0].mean if ours and not label and not measure.by_sign else None,
            against=against if against and against.difference else None,  # no difference agrees with nothing
            printed_against=printed,
        )  # fmt: skip

    def _differences(self, group: list[StudentRun], to: str, column: str) -> list[float]:
        """To another row, seed by seed."""
        return [a - b for a, b in zip(*in_pairs(group, self.groups.get(to, []), column), strict=True)]

    def _teacher_rows(self) -> list[ComparisonRow]:
        """What is printed of the teacher, beside what its folder holds; the mean where students have several."""
        run, recipe, runs = self.students[0].run, recipe_of(self.students[0].run.suite), self.table.runs
        early = share_of(recipe.teacher.early, recipe.epochs)
        directions = {d.teacher: d for d in reversed(runs.directions) if share_of(d.early, recipe.epochs) == early}
        names = dict.fromkeys(name for s in self.students if (name := s.run.teacher) in runs.teacher_runs)
        teachers = {name: runs.teacher_runs[name] for name in names if name}
        unlike = dict.fromkeys(unlike_teacher(run, teacher.run) for teacher in teachers.values())
        label = "; ".join([DESK] * at_desk(run) + [f"not made as the paper's ({other})" for other in unlike if other])
        values = [teacher_values(teacher, directions.get(name)) for name, teacher in teachers.items()]
        self.missing |= {"mechanism"} if teachers.keys() - directions.keys() else set()
        rows = []
        for key, numbers in teacher_numbers(self.pair).items():
            if known := [each[key] for each in values if key in each]:
                digits = 3 if "energy" in key or "eigengap" in key else 2
                ours = summary(known)
                difference = None if label else ours.mean - numbers[0].mean
                column = f"{TEACHER} {key}"
                rows.append(ComparisonRow(TEACHER, key, column, digits, ours, numbers, label, difference))
        return rows


# --- what the folder of a pair's teacher holds ---

TEACHER = "teacher"  # its row, in print and here
EPOCHS = (5, 20, 35, 90, 150, 210, 240)  # of S-Table 2
WHOLE = 240
NEAR = 0.002  # of training: states are kept at whole steps


def teacher_numbers(pair: str) -> Numbers:
    """What is printed of a pair's teacher, and of its states at some epochs."""

    def key(number: Printed) -> str:
        state, _, epoch = number.row.partition(":")
        return f"{number.measure}, epoch {epoch}" if state == "epoch" else number.measure

    own = (number for number in PRINTED if number.column == pair and number.row.startswith((TEACHER, "epoch:")))
    return _by_measure((key(number), number) for number in own)


def teacher_values(teacher: StudentRun, directions: Directions | None) -> dict[str, float]:
    """By measure, in the paper's unit; without those that are not there."""
    values: dict[str, float | None] = {}
    metric = teacher.primary_metric  # on the test set, not on held-out images
    score = teacher.values.get(f"test {metric}" if teacher.run.data.val_fraction else HEADLINE)
    values["mIoU" if metric == "miou" else metric] = None if score is None else 100 * score
    if directions:
        values |= _spectrum(directions) | _energy(directions, teacher.run.epochs)
    return {key: value for key, value in values.items() if value is not None}


def _spectrum(directions: Directions) -> dict[str, float | None]:
    """Eigenvalues; the gap λ_K − λ_K+1 is that of the centred covariance."""
    gap, centred = directions.gaps.get("centred"), directions.spectrum.get("centred", ())
    eigenvalues = zip(("λ₁", "λ₂", "", "λ_K", "λ_K+1"), centred, strict=False)
    return {
        "eigengap": gap,
        "eigengap, relative": gap / centred[0] if gap is not None and centred and centred[0] else None,
        "λ₁, uncentred": next(iter(directions.spectrum.get("uncentred", ())), None),
        **{f"{name}, centred": value for name, value in eigenvalues},
    }


def _energy(directions: Directions, length: int) -> dict[str, float | None]:
    """At the printed epochs, by the share of training; a state that was not saved is left out."""
    values: dict[str, float | None] = {}
    for row in directions.energy if length else ():
        for epoch in EPOCHS:
            if abs(row["epoch"] / length - epoch / WHOLE) <= NEAR:
                values |= {f"{kind} energy, epoch {epoch}": row.get(kind) for kind in ("shortcut", "robust")}
    return values
