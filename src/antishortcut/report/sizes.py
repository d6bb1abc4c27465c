"""Size and latency: the networks of students beside their teacher's, as `asd evaluate --on cost` measured them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antishortcut.report.collect import Found, Student
from antishortcut.stats import Summary, summary

HEAD = ("network", "is", "parameters", "MB", "ms", "smaller", "faster", "runs")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TEACHER = "teacher_"
Key = tuple[str | None, str, str]  # hash of the teacher, machine, name of the network


@dataclass(frozen=True)
class SizeRow:
    """A network on a machine; of what is not known None."""

    network: str
    role: str
    machine: str
    runs: int  # whose milliseconds these are the mean of
    parameters: float | None
    size: float | None  # bytes of its weights
    ms: Summary | None
    smaller: float | None = None  # its teacher's parameters over its own
    faster: Summary | None = None  # its teacher's milliseconds over its own, round by round

    def texts(self) -> list[str]:
        parameters = "–" if self.parameters is None else f"{self.parameters:,.0f}"
        size = "–" if self.size is None else f"{self.size / 1e6:.3g}"
        times = "–" if self.smaller is None else f"{self.smaller:.3g}"
        return [self.network, self.role, parameters, size, _mean(self.ms), times, _mean(self.faster), str(self.runs)]

    def flat(self) -> dict[str, Any]:
        mean = {name: None if held is None else held.mean for name, held in (("ms", self.ms), ("faster", self.faster))}
        own = {"network": self.network, "role": self.role, "parameters": self.parameters, "bytes": self.size}
        return own | mean | {"smaller": self.smaller, "runs": self.runs, "machine": self.machine or None}


@dataclass(frozen=True)
class SizeTable:
    rows: tuple[SizeRow, ...]

    @property
    def measured(self) -> bool:
        return any(row.ms is not None for row in self.rows)

    @property
    def _machines(self) -> list[str]:
        return list(dict.fromkeys(row.machine for row in self.rows if row.ms is not None))

    def head(self) -> list[str]:
        return [*HEAD, *["on"] * (len(self._machines) > 1)]

    def texts(self) -> list[list[str]]:
        """Machines have long names: a letter each, where there are several."""
        letters = dict(zip(self._machines, LETTERS, strict=False))
        several = len(self._machines) > 1
        return [[*row.texts(), *[letters.get(row.machine, "–") if row.ms else "–"] * several] for row in self.rows]

    def told(self) -> str:
        """How to read it."""
        if not self.measured:
            return "Size on disk and latency: asd evaluate --on cost measures them."
        machines = self._machines
        named = [f"{letter}: {machine}" for letter, machine in zip(LETTERS, machines, strict=False)]
        where = machines[0] if len(machines) == 1 else "; ".join(named)
        return (
            "ms: milliseconds for one image at a time, teacher and student in turns; a median in each run, here the "
            "mean of its runs ± standard deviation. smaller, faster: how many times, than its teacher. "
            f"Measured on {where or 'a machine unknown'}."
        )


def size_table(found: Found) -> SizeTable | None:
    """Each teacher before its students; None where nothing is known."""
    known = [student for student in found.students if student.cost or student.parameters is not None]
    machines = {one.run.teacher: one.machine for one in reversed(known) if one.machine}
    groups: dict[Key, list[Student]] = {}
    for one in known:  # those not measured stand with those that are
        machine = one.machine or machines.get(one.run.teacher, "")
        groups.setdefault((one.run.teacher, machine, one.run.model.name), []).append(one)
    if not groups:
        return None
    rows: list[SizeRow] = []
    seen: set[tuple[str | None, str]] = set()
    for teacher, machine, network in sorted(groups, key=lambda key: _place(key, list(groups))):
        held = groups[teacher, machine, network]
        if (teacher, machine) not in seen:
            seen.add((teacher, machine))
            beside = [one for key, group in groups.items() if key[:2] == (teacher, machine) for one in group]
            rows += _teacher(found, teacher, machine, beside)
        rows.append(_student(found, machine, network, held))
    return SizeTable(tuple(rows))


def _place(key: Key, keys: list[Key]) -> int:
    """Networks of one teacher and machine follow each other, as they were first met."""
    return next(at for at, other in enumerate(keys) if other[:2] == key[:2])


def _student(found: Found, machine: str, network: str, held: Sequence[Student]) -> SizeRow:
    parameters = _first([_parameters(one) for one in held])
    theirs = _first([_of_teacher(found, one) for one in held])
    return SizeRow(
        network=network,
        role="student",
        machine=machine,
        runs=len(_values(held, "ms")) or len(held),
        parameters=parameters,
        size=_first(_values(held, "bytes")),
        ms=_summary(_values(held, "ms")),
        smaller=theirs / parameters if theirs and parameters else None,
        faster=_summary(_values(held, "times_faster")),
    )


def _teacher(found: Found, teacher: str | None, machine: str, held: Sequence[Student]) -> list[SizeRow]:
    """A row, where something is known of it."""
    parameters = _first([_of_teacher(found, one) for one in held])
    ms = _values(held, f"{TEACHER}ms")
    if teacher is None or parameters is None:
        return []
    name = found.taught[teacher].run.model.name if teacher in found.taught else teacher
    size = _first(_values(held, f"{TEACHER}bytes"))
    return [SizeRow(name, "teacher", machine, len(ms) or 1, parameters, size, _summary(ms))]


def _parameters(student: Student) -> float | None:
    return student.cost.get("parameters", student.parameters)


def _of_teacher(found: Found, student: Student) -> float | None:
    """Parameters of its teacher."""
    known = found.taught.get(student.run.teacher or "")
    return student.cost.get(f"{TEACHER}parameters", known.parameters if known else None)


def _values(held: Sequence[Student], name: str) -> list[float]:
    return [one.cost[name] for one in held if name in one.cost]


def _first(values: Sequence[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def _summary(values: list[float]) -> Summary | None:
    return summary(values) if values else None


def _mean(held: Summary | None) -> str:
    if held is None:
        return "–"
    return f"{held.mean:.3g}" + (f" ± {held.std:.2g}" if held.std is not None else "")
