"""What the folder of a pair's teacher holds of what is printed: its accuracy, its size, and where its features went.

Energy by epoch (S-Table 2), angles to PCA, between parts and of batches (Sec. 6.4, S-Table 8), the spectrum of the
displacement (S-Sec. A.7); all but the first two lie in directions-*.json, which mechanism scores leave there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from antishortcut.paper.printed import PRINTED, Printed
from antishortcut.report.beside import TEACHER
from antishortcut.report.collect import Found, Student
from antishortcut.report.directions import Directions
from antishortcut.report.measures import Number, once, why_not
from antishortcut.report.pair import DESK, at_desk, early_of, share_of, unlike_teacher
from antishortcut.stats import Summary, summary

EPOCHS = (5, 20, 35, 90, 150, 210, 240)  # of S-Table 2
WHOLE = 240
NEAR = 0.002  # of training: states are kept at whole steps
BATCHES = {"asd-b32": 32, "asd": 64, "asd-b128": 128, "asd-b256": 256}  # rows of S-Table 8
ANGLES = {"angle to the global subspace, °": "to_whole", "angle between batches, °": "between"}
MECHANISM = "asd evaluate --on mechanism"


@dataclass(frozen=True)
class School:
    """A teacher, its directions from the paper's T_early, and one of its students."""

    run: Student
    directions: Directions | None
    student: Student
    label: str  # in what it is not the paper's

    def course(self) -> list[tuple[int, dict[str, float]]]:
        """Printed epoch and energies there, by the share of training; a state that was not kept is left out."""
        length = self.run.run.epochs
        rows = list(self.directions.energy) if self.directions and length else []
        found = []
        for epoch in EPOCHS if rows else ():
            row = min(rows, key=lambda row: abs(row["epoch"] / length - epoch / WHOLE))
            if abs(row["epoch"] / length - epoch / WHOLE) <= NEAR:
                found.append((epoch, row))
        return found


Reader = Callable[[School], Summary | float | None]


@dataclass(frozen=True)
class Taught:
    """A measure of a teacher's, in print's unit."""

    read: Reader
    digits: int = 2
    where: str = MECHANISM  # the evaluation that measures it


def schools(found: Found, students: Sequence[Student]) -> list[School]:
    """Teachers of a suite's students whose folders are here, each once."""
    early, epochs = early_of(students[0].run.suite)
    ways = {d.teacher: d for d in reversed(found.directions) if share_of(d.early, epochs) == share_of(early, epochs)}
    first: dict[str, Student] = {}
    for student in students:
        if student.run.teacher is not None:
            first.setdefault(student.run.teacher, student)
    return [
        School(found.taught[name], ways.get(name), student, _label(student, found.taught[name]))
        for name, student in first.items()
        if name in found.taught
    ]


def taught_of(pair: str) -> dict[str, list[Number]]:
    """What is printed of a pair's teacher, by measure."""
    found: dict[str, list[Printed]] = {}
    for number in PRINTED:
        if number.column == pair and (key := _key(number)) is not None:
            found.setdefault(key, []).append(number)
    return {key: once(numbers) for key, numbers in found.items()}


def value_of(key: str, held: Sequence[School]) -> Summary | None:
    """Ours: of one teacher with the spread that the measure has by itself, of several over them."""
    read = TAUGHT[key].read
    values = [value for school in held if (value := read(school)) is not None]
    if len(values) == 1 and isinstance(values[0], Summary):
        return values[0]
    return summary([x.mean if isinstance(x, Summary) else x for x in values]) if values else None


def absent(key: str, held: Sequence[School]) -> str | None:
    """Why a measure has no value; None for what is none."""
    if key not in TAUGHT:
        return why_not(key)
    return TAUGHT[key].where if held else "the teacher's folder is not here"


def of_teacher(measure: str) -> bool:
    """Whether a number that is printed of a student's row is its teacher's."""
    return measure in ANGLES


def _label(student: Student, teacher: Student) -> str:
    other = unlike_teacher(student.run, teacher.run)
    told = [DESK] * at_desk(student.run) + [f"not made as the paper's ({other})"] * bool(other)
    return "; ".join(told)


def _key(number: Printed) -> str | None:
    if number.row == TEACHER:
        return number.measure
    if number.row.startswith("epoch:"):
        return f"{number.measure}, epoch {number.row.removeprefix('epoch:')}"
    return f"{number.measure}, B = {BATCHES[number.row]}" if number.measure in ANGLES else None


def _judged(score: str, school: School) -> float | None:
    """On the test set: while training, unless images were held out for that, or by an evaluation."""
    teacher = school.run
    own = teacher.values["last"] if teacher.headline == score and not teacher.run.data.val_fraction else None
    found = next((teacher.values[f"{name} {score}"] for name in _sets(teacher, score)), own)
    return None if found is None else 100 * found


def _sets(teacher: Student, score: str) -> list[str]:
    wanted = ("test",) if teacher.run.data.val_fraction else ("test", "val")
    return [name for name in wanted if f"{name} {score}" in teacher.values]


def _millions(school: School) -> float | None:
    return None if school.run.parameters is None else school.run.parameters / 1e6


def _times(school: School) -> float | None:
    """Parameters over the student's."""
    ours, theirs = school.run.parameters, school.student.parameters
    return ours / theirs if ours and theirs else None


def _angle(pair: str, school: School) -> float | None:
    held = school.directions.angles.get(pair) if school.directions else None
    return summary(held).mean if held else None


def _random(school: School) -> float | None:
    return school.directions.batches_random if school.directions else None


def _parts(school: School) -> Summary | None:
    held = school.directions.bootstrap if school.directions else {}
    return Summary(held["mean"], held.get("std"), 1) if "mean" in held else None


def _parts_std(school: School) -> float | None:
    return school.directions.bootstrap.get("std") if school.directions else None


def _batch(size: int, key: str, school: School) -> float | None:
    rows = school.directions.batches if school.directions else ()
    return next((row[key] for row in rows if row["batch"] == size and key in row), None)


def _eigenvalue(kind: str, at: int, school: School) -> float | None:
    """λ_at, counted from 1."""
    held = school.directions.spectrum.get(kind, ()) if school.directions else ()
    return held[at - 1] if len(held) >= at else None


def _gap(relative: bool, school: School) -> float | None:
    """λ_K − λ_K+1 of the centred covariance, as the paper's, alone or over λ₁."""
    gap = school.directions.gaps.get("centred") if school.directions else None
    first = _eigenvalue("centred", 1, school)
    if gap is None or not relative:
        return gap
    return gap / first if first else None


def _energy(kind: str, epoch: int, school: School) -> float | None:
    return next((row.get(kind) for at, row in school.course() if at == epoch), None)


def _energies(kind: str, school: School) -> dict[int, float]:
    """Of all printed epochs, or nothing: extremes of some say nothing of extremes of all."""
    held = {epoch: row[kind] for epoch, row in school.course() if kind in row}
    return held if len(held) == len(EPOCHS) else {}


def _of_energies(kind: str, come_to: Callable[[dict[int, float]], float], school: School) -> float | None:
    held = _energies(kind, school)
    return come_to(held) if held else None


def _fall(held: dict[int, float]) -> float:
    """Of the highest, until the end, in per cent."""
    highest = max(held.values())
    return 100 * (1 - held[WHOLE] / highest) if highest else 0.0


def _shortcut(come_to: Callable[[dict[int, float]], float]) -> Reader:
    return partial(_of_energies, "shortcut", come_to)


def _robust(come_to: Callable[[dict[int, float]], float]) -> Reader:
    return partial(_of_energies, "robust", come_to)


TAUGHT: dict[str, Taught] = {
    "accuracy": Taught(partial(_judged, "accuracy"), where="asd evaluate --on clean"),
    "mIoU": Taught(partial(_judged, "miou"), where="asd evaluate --on clean"),
    "parameters, millions": Taught(_millions, 1, where="its result.json does not say"),
    "parameters, times the student's": Taught(_times, 1, where="its result.json does not say"),
    "angle of shortcut and T_final's PCA, °": Taught(partial(_angle, "shortcut_final"), 1),
    "angle of shortcut and T_early's PCA, °": Taught(partial(_angle, "shortcut_early"), 1),
    "angle between parts, °": Taught(_parts, 1),
    "std of the angle between parts, °": Taught(_parts_std, 1),
    "eigengap": Taught(partial(_gap, False), 3),
    "eigengap, relative": Taught(partial(_gap, True), 3),
    "λ₁, uncentred": Taught(partial(_eigenvalue, "uncentred", 1)),
    "λ₁, centred, by the remark": Taught(partial(_eigenvalue, "centred", 1)),
    "λ₁, centred": Taught(partial(_eigenvalue, "centred", 1)),
    "λ₂, centred": Taught(partial(_eigenvalue, "centred", 2)),
    "λ_K, centred": Taught(partial(_eigenvalue, "centred", 4)),
    "λ_K+1, centred": Taught(partial(_eigenvalue, "centred", 5)),
    "shortcut energy, highest": Taught(_shortcut(lambda held: max(held.values())), 3),
    "epoch of the highest shortcut energy": Taught(_shortcut(lambda held: max(held, key=held.__getitem__)), 0),
    "shortcut energy, fall in %": Taught(_shortcut(_fall), 0),
    "shortcut energy, final": Taught(partial(_energy, "shortcut", WHOLE), 3),
    "robust energy, from": Taught(_robust(lambda held: min(held.values())), 3),
    "robust energy, to": Taught(_robust(lambda held: max(held.values())), 3),
    **{
        f"{kind} energy, epoch {epoch}": Taught(partial(_energy, kind, epoch), 3)
        for kind in ("shortcut", "robust")
        for epoch in EPOCHS
    },
    **{
        f"{angle}, B = {size}": Taught(partial(_batch, size, key), 1)
        for angle, key in ANGLES.items()
        for size in BATCHES.values()
    },
    "angle of random subspaces, °": Taught(_random, 1),
}
