"""Size and latency: the networks of students beside their teacher's, as `asd evaluate --on cost` measured them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antishortcut.report.collect import Collected, Student
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
        def text(value: Summary | float | None, form: str = ".3g") -> str:
            if isinstance(value, Summary):
                return f"{value.mean:.3g}" + (f" ± {value.std:.2g}" if value.std is not None else "")
            return "–" if value is None else f"{value:{form}}"

        size = None if self.size is None else self.size / 1e6
        cells = [text(self.parameters, ",.0f"), *(text(value) for value in (size, self.ms, self.smaller, self.faster))]
        return [self.network, self.role, *cells, str(self.runs)]

    def flat(self) -> dict[str, Any]:
        return {
            "network": self.network, "role": self.role, "parameters": self.parameters, "bytes": self.size,
            "ms": self.ms and self.ms.mean, "faster": self.faster and self.faster.mean, "smaller": self.smaller,
            "runs": self.runs, "machine": self.machine or None,
        }  # fmt: skip


@dataclass(frozen=True)
class SizeTable:
    rows: list[SizeRow]

    @property
    def machines(self) -> list[str]:
        """On which latency was measured."""
        return list(dict.fromkeys(row.machine for row in self.rows if row.ms is not None))

    def head(self) -> list[str]:
        return [*HEAD, *["on"] * (len(self.machines) > 1)]

    def texts(self) -> list[list[str]]:
        several = len(self.machines) > 1
        return [[*row.texts(), *[row.machine if row.ms else "–"] * several] for row in self.rows]

    def explanation(self) -> str:
        if not self.machines:
            return "Size on disk and latency: asd evaluate --on cost measures them."
        return (
            "ms: milliseconds for one image at a time, teacher and student in turns; a median in each run, here the "
            "mean of its runs ± standard deviation. smaller, faster: how many times, than its teacher. "
            f"Measured on {'; '.join(self.machines) or 'an unknown machine'}."
        )


def size_table(runs: Collected) -> SizeTable | None:
    """Each teacher before its students; None where nothing is known."""
    students = [student for student in runs.students if student.cost or student.parameters is not None]
    machines = {one.run.teacher: one.machine for one in reversed(students) if one.machine}
    groups: dict[tuple[str | None, str], dict[str, list[Student]]] = {}  # teacher, machine → network → students
    for one in students:  # those not measured stand with those that are
        machine = one.machine or machines.get(one.run.teacher, "")
        groups.setdefault((one.run.teacher, machine), {}).setdefault(one.run.model.name, []).append(one)
    rows: list[SizeRow] = []
    for (hash_, machine), networks in groups.items():
        base = None
        if hash_ is not None:
            teacher = runs.teacher_runs.get(hash_)
            everyone = [one for group in networks.values() for one in group]
            name = teacher.run.model.name if teacher else hash_
            base = _row(name, "teacher", machine, everyone, teacher.parameters if teacher else None, None)
            rows += [base] if base.parameters is not None else []
        for network, group in networks.items():
            parameters = next((one.parameters for one in group if one.parameters is not None), None)
            rows.append(_row(network, "student", machine, group, parameters, base))
    return SizeTable(rows) if rows else None


def _row(
    network: str, role: str, machine: str, group: Sequence[Student], parameters: float | None, base: SizeRow | None
) -> SizeRow:
    """From scores/cost.json of these students, where keys of the teacher have a prefix."""

    def measured(key: str) -> list[float]:
        key = f"teacher_{key}" if role == "teacher" else key
        return [one.cost[key] for one in group if key in one.cost]

    ms, faster = measured("ms"), measured("times_faster")
    parameters = next(iter(measured("parameters")), parameters)
    return SizeRow(
        network=network,
        role=role,
        machine=machine,
        runs=len(ms) or (len(group) if role == "student" else 1),
        parameters=parameters,
        size=next(iter(measured("bytes")), None),
        ms=summary(ms) if ms else None,
        smaller=base.parameters / parameters if base and base.parameters and parameters else None,
        faster=summary(faster) if faster else None,
    )
