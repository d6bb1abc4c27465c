"""Size and latency: the networks of students beside their teacher's, as `asd evaluate --on cost` measured them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antishortcut.report.collect import Found, Student
from antishortcut.report.stats import Summary, summary

HEAD = ("network", "is", "parameters", "MB", "ms", "smaller", "faster", "runs")


@dataclass(frozen=True)
class SizeRow:
    """A network on a machine; unknown values are None."""

    network: str
    role: str
    machine: str
    runs: int  # over which the milliseconds are averaged
    parameters: float | None
    size: float | None  # bytes of its weights
    ms: Summary | None
    smaller: float | None = None  # its teacher's parameters over its own
    faster: Summary | None = None  # its teacher's milliseconds over its own, round by round

    def texts(self) -> list[str]:
        parameters = "–" if self.parameters is None else f"{self.parameters:,.0f}"
        size = "–" if self.size is None else f"{self.size / 1e6:.3g}"
        smaller = "–" if self.smaller is None else f"{self.smaller:.3g}"
        return [self.network, self.role, parameters, size, _mean(self.ms), smaller, _mean(self.faster), str(self.runs)]

    def flat(self) -> dict[str, Any]:
        return {
            "network": self.network,
            "role": self.role,
            "parameters": self.parameters,
            "bytes": self.size,
            "ms": self.ms and self.ms.mean,
            "faster": self.faster and self.faster.mean,
            "smaller": self.smaller,
            "runs": self.runs,
            "machine": self.machine or None,
        }


@dataclass(frozen=True)
class SizeTable:
    rows: tuple[SizeRow, ...]

    @property
    def machines(self) -> list[str]:
        """On which latency was measured."""
        return list(dict.fromkeys(row.machine for row in self.rows if row.ms is not None))

    def head(self) -> list[str]:
        return [*HEAD, *["on"] * (len(self.machines) > 1)]

    def texts(self) -> list[list[str]]:
        several = len(self.machines) > 1
        return [[*row.texts(), *[row.machine if row.ms else "–"] * several] for row in self.rows]

    def told(self) -> str:
        """How to read it."""
        if not self.machines:
            return "Size on disk and latency: asd evaluate --on cost measures them."
        return (
            "ms: milliseconds for one image at a time, teacher and student in turns; a median in each run, here the "
            "mean of its runs ± standard deviation. smaller, faster: how many times, than its teacher. "
            f"Measured on {'; '.join(self.machines) or 'an unknown machine'}."
        )


def size_table(found: Found) -> SizeTable | None:
    """Each teacher before its students; None where nothing is known."""
    students = [student for student in found.students if student.cost or student.parameters is not None]
    machines = {one.run.teacher: one.machine for one in reversed(students) if one.machine}
    groups: dict[tuple[str | None, str], dict[str, list[Student]]] = {}  # teacher, machine → network → students
    for one in students:  # those not measured stand with those that are
        machine = one.machine or machines.get(one.run.teacher, "")
        groups.setdefault((one.run.teacher, machine), {}).setdefault(one.run.model.name, []).append(one)
    rows: list[SizeRow] = []
    for (teacher, machine), networks in groups.items():
        known = found.taught.get(teacher or "")
        everyone = [one for held in networks.values() for one in held]
        base = None
        if teacher is not None:
            name = known.run.model.name if known else teacher
            base = _row(name, "teacher", machine, everyone, known.parameters if known else None, "teacher_")
            rows += [base] if base.parameters is not None else []
        for network, held in networks.items():
            parameters = next((one.parameters for one in held if one.parameters is not None), None)
            rows.append(_row(network, "student", machine, held, parameters, base=base))
    return SizeTable(tuple(rows)) if rows else None


def _row(
    network: str,
    role: str,
    machine: str,
    held: Sequence[Student],
    parameters: float | None,
    prefix: str = "",
    base: SizeRow | None = None,
) -> SizeRow:
    """From scores/cost.json of the students `held`, where keys of the teacher have a prefix."""

    def measured(key: str) -> list[float]:
        return [one.cost[prefix + key] for one in held if prefix + key in one.cost]

    ms, faster = measured("ms"), measured("times_faster")
    parameters = next(iter(measured("parameters")), parameters)
    return SizeRow(
        network=network,
        role=role,
        machine=machine,
        runs=len(ms) or (len(held) if role == "student" else 1),
        parameters=parameters,
        size=next(iter(measured("bytes")), None),
        ms=summary(ms) if ms else None,
        smaller=base.parameters / parameters if base and base.parameters and parameters else None,
        faster=summary(faster) if faster else None,
    )


def _mean(value: Summary | None) -> str:
    if value is None:
        return "–"
    return f"{value.mean:.3g}" + (f" ± {value.std:.2g}" if value.std is not None else "")
