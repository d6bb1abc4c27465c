"""A row of ours and what is printed of it, as words for tables and as numbers for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antishortcut.report.collect import BASELINE
from antishortcut.report.marks import SURE
from antishortcut.report.measures import Number
from antishortcut.report.pair import SIGNS
from antishortcut.report.table import signed
from antishortcut.stats import Summary

HEAD = ("measure", "method", "ours (seeds)", "printed", "ours − printed", f"sign against {BASELINE}", "printed in")
TEACHER = "teacher"  # its row, in print and here
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
    by_sign: bool  # as the measure is: its numbers never compare
    numeric: bool  # whether ours − printed means anything
    signs: tuple[int, int] | None  # of the difference to the baseline, ours and printed
    sure: bool  # the interval of ours leaves zero out
    label: str = ""  # in what its runs are not the paper's

    @property
    def difference(self) -> float | None:
        return self.ours.mean - self.number.mean if self.ours and self.numeric else None

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
        own = "–" if self.ours is None else f"{self._text(self.ours.mean, self.ours.std)} ({self.ours.count})"
        printed = self._text(self.number.mean, self.number.std) + " ".join(raised(note) for note in self.notes)
        first, *others = self.number.places
        where = first + (f" and {len(others)} more" if others else "")
        return [self.measure, self.method, own, printed, signed(self.difference, self.digits), self.agreement, where]

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
        return {
            "suite": self.suite,
            "labels": list(self.labels),
            "rows": [line.flat() for line in self.lines],
            "notes": list(self.notes),
            "missing": self.missing,
        }


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
