"""What the folder of a pair's teacher holds of what is printed: its accuracy, its size, and where its features went.

Energy by epoch (S-Table 2), angles to PCA, between parts and of batches (Sec. 6.4, S-Table 8), the spectrum of the
displacement (S-Sec. A.7); all but the first two lie in directions-*.json, which mechanism scores leave there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from antishortcut.experiments.printed import PRINTED, Printed
from antishortcut.report.collect import Found, Student
from antishortcut.report.direction_reader import Directions
from antishortcut.report.measures import Number, by_measure, why_not
from antishortcut.report.pair import DESK, at_desk, early_of, share_of, unlike_teacher
from antishortcut.report.stats import Summary, summary

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
        columns += ["last"] if teacher.headline == score and not held_out else []
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
