"""Size and latency: the networks of students beside their teacher's, as `asd evaluate --on cost` measured them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antishortcut.report.collect import Collected, StudentRun
from antishortcut.report.stats import Summary, summary

HEAD = ("network", "is", "parameters", "MB", "ms", "smaller", "faster", "runs")


@dataclass(frozen=True)
class SizeRow:
    """A network on a machine; unknown values are None."""

    network: str
    role: str
    machine: str | None
    runs: int  # over which the milliseconds are averaged
    parameters: float | None
    bytes: float | None  # of its weights
    ms: Summary | None
    smaller: float | None  # its teacher's parameters over its own
    faster: float | None  # its teacher's milliseconds over its own, round by round

    def texts(self) -> list[str]:
        def text(value: float | None, form: str = ".3g") -> str:
            return "–" if value is None else f"{value:{form}}"

        ms, spread = (self.ms.mean, self.ms.std) if self.ms else (None, None)
        latency = text(ms) + ("" if spread is None else f" ± {spread:.2g}")
        size = None if self.bytes is None else self.bytes / 1e6
        times = [text(self.smaller), text(self.faster)]
        return [self.network, self.role, text(self.parameters, ",.0f"), text(size), latency, *times, str(self.runs)]

    def flat(self) -> dict[str, Any]:
        return vars(self) | {"ms": self.ms and self.ms.mean}


@dataclass(frozen=True)
class SizeTable:
    rows: list[SizeRow]

    @property
    def machines(self) -> list[str]:
        """On which latency was measured."""
        return list(dict.fromkeys(row.machine or "an unknown machine" for row in self.rows if row.ms is not None))

    def head(self) -> list[str]:
        return [*HEAD, *["on"] * (len(self.machines) > 1)]

    def texts(self) -> list[list[str]]:
        several = len(self.machines) > 1
        return [[*row.texts(), *[row.machine or "–"] * several] for row in self.rows]

    def explanation(self) -> str:
        if not self.machines:
            return "Size on disk and latency: asd evaluate --on cost measures them."
        return (
            "ms: milliseconds for one image at a time, teacher and student in turns; a median in each run, here the "
            "mean of its runs ± standard deviation. smaller, faster: how many times, than its teacher. "
            f"Measured on {'; '.join(self.machines)}."
        )


def size_table(runs: Collected) -> SizeTable | None:
    """Each teacher's network before those of its students; None where nothing is known."""
    students = [student for student in runs.students if student.cost or student.parameters is not None]
    teachers = {hash_: teacher.network for hash_, teacher in runs.teacher_runs.items()}
    named = [(teachers.get(one.run.teacher or "", str(one.run.teacher)), one) for one in students]
    machines = {teacher: one.machine for teacher, one in reversed(named) if one.machine}
    groups: dict[tuple[str, str | None], dict[str, list[StudentRun]]] = {}  # teacher, machine → network → students
    for teacher, one in named:  # those not measured stand with those that are
        machine = one.machine or machines.get(teacher)
        groups.setdefault((teacher, machine), {}).setdefault(one.network, []).append(one)
    rows: list[SizeRow] = []
    for (teacher, machine), networks in groups.items():
        everyone = [one for group in networks.values() for one in group]
        base = _row(teacher, "teacher", machine, everyone, runs.teacher_runs.get(everyone[0].run.teacher or ""), None)
        rows += [base] if base.parameters is not None else []
        rows += [_row(name, "student", machine, group, group[0], base.parameters) for name, group in networks.items()]
    return SizeTable(rows) if rows else None


def _row(
    network: str,
    role: str,
    machine: str | None,
    group: Sequence[StudentRun],
    run: StudentRun | None,
    above: float | None,
) -> SizeRow:
    """From scores/cost.json of these students, where keys of the teacher have a prefix, and from a run of the network.

    `above` is the number of its teacher's parameters.
    """

    def measured(key: str) -> list[float]:
        key = f"teacher_{key}" if role == "teacher" else key
        return [one.cost[key] for one in group if key in one.cost]

    ms, faster = measured("ms"), measured("times_faster")
    parameters = next(iter(measured("parameters")), run.parameters if run else None)
    return SizeRow(
        network=network,
        role=role,
        machine=machine,
        runs=len(ms) or (len(group) if role == "student" else 1),
        parameters=parameters,
        bytes=next(iter(measured("bytes")), None),
        ms=summary(ms) if ms else None,
        smaller=above / parameters if above and parameters else None,
        faster=summary(faster).mean if faster else None,
    )
