"""Steps times seconds, summed over the trainings of a suite; and how the seconds come to be known. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from antishortcut.cost.groups import Group, Piece, Size, pieces, size_of
from antishortcut.cost.kept import Machine, Timing, add_size, add_timing, read_book
from antishortcut.errors import UserError
from antishortcut.job import Job
from antishortcut.run import DataSettings

HOUR = 3600.0
Tell = Callable[[int, int, str], None]  # groups done, of how many, what was wrong with the last


class Measured(NamedTuple):
    """As in `Timing`."""

    seconds: float
    steps: int = 1
    share: float = 1.0


class Clock(Protocol):
    """Measures on a machine."""

    @property
    def machine(self) -> Machine: ...
    def step(self, group: Group) -> Measured: ...
    def count(self, data: DataSettings) -> Size:
        """The size of a folder of images, before splits and limits."""
        ...


@dataclass(frozen=True)
class Row:
    """A pair, or all. Hours are the estimate's, also of what is done."""

    suite: str
    students: int
    student_hours: float
    teachers: int
    teacher_hours: float
    done: int  # trainings
    done_hours: float

    @property
    def hours(self) -> float:
        return self.student_hours + self.teacher_hours


@dataclass(frozen=True)
class Cost:
    machine: Machine
    at: str  # when the last of its steps was measured
    share: float  # of the time a core worked on them: less on a machine busy with other things
    alone: float  # hours in all had it worked all the time
    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...]  # trainings that are not in the sums, and why

    @property
    def all(self) -> Row:
        return _row("in all", self.rows)

    def as_json(self) -> dict[str, Any]:
        """Hours on one such machine, one run after the other."""
        rows = [asdict(row) | {"hours": row.hours} for row in self.rows]
        sums = {key: value for key, value in asdict(self.all).items() if key != "suite"} | {"hours": self.all.hours}
        facts = {"machine": self.machine.model_dump(), "measured": self.at, "share": self.share, "alone": self.alone}
        left_out = [{"run": title, "why": why} for title, why in self.left_out]
        return {"estimate": True, **facts, **sums, "pairs": rows, "left_out": left_out}


def known_cost(jobs: Iterable[Job], runs: Path) -> Cost | None:
    """From what was measured before, on the machine that was last; None when nothing was."""
    book = read_book(runs)
    found = pieces(jobs, book.counted, runs)
    machine = book.latest({piece.group.key for piece in found if piece.group is not None})
    return None if machine is None else _cost(found, machine, book.of(machine), {})


def measured_cost(jobs: Sequence[Job], runs: Path, clock: Clock, tell: Tell = lambda *_: None) -> Cost:
    """Measure a step of every group, keep what was measured, and sum up. A group that fails is left out."""
    why: dict[str, str] = {}
    for data in {job.recipe.data.name: job.recipe.data for job in jobs}.values():
        if size_of(data, {}) is None:
            try:
                add_size(runs, data.name, clock.count(data))
            except UserError as error:
                why[data.name] = str(error)
    found = pieces(jobs, {n: s for n, s in read_book(runs).counted.items() if n not in why}, runs)
    groups = {piece.group.key: piece.group for piece in found if piece.group is not None}
    tell(0, len(groups), "")
    for number, (key, group) in enumerate(groups.items(), start=1):
        try:
            timed = clock.step(group)
        except (UserError, RuntimeError, MemoryError) as error:  # out of memory is a RuntimeError of torch's
            why[key] = (str(error) or type(error).__name__).splitlines()[0][:200]
        else:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            add_timing(runs, Timing(group=group, machine=clock.machine, at=now, **timed._asdict()))
        tell(number, len(groups), f"{name_of(group)}: {why[key]}" if key in why else "")
    timings = read_book(runs).of(clock.machine)
    return _cost(found, clock.machine, {key: t for key, t in timings.items() if key not in why}, why)


def name_of(group: Group) -> str:
    teacher = f"{group.teacher.name} → " if group.teacher else ""
    return f"{group.method}, {teacher}{group.network.name}"


def _cost(found: Sequence[Piece], machine: Machine, timings: Mapping[str, Timing], why: Mapping[str, str]) -> Cost:
    rows, left_out, alone = {piece.suite: list[Row]() for piece in found}, list[tuple[str, str]](), 0.0
    for piece in found:
        if piece.group is None:
            left_out.append((piece.title, why.get(piece.data, f"{piece.data} is not counted yet; --measure does it")))
        elif (timing := timings.get(piece.group.key)) is None:
            left_out.append((piece.title, why.get(piece.group.key, "not measured there yet; --measure does it")))
        else:
            hours = piece.steps * timing.seconds / HOUR
            rows[piece.suite].append(_one(piece, hours))
            alone += hours * timing.share
    keys = {piece.group.key for piece in found if piece.group is not None}
    used = [timing for key, timing in timings.items() if key in keys]
    at, share = max((t.at for t in used), default=""), fmean([t.share for t in used] or [1.0])
    sums = tuple(_row(suite, parts) for suite, parts in rows.items() if parts)
    return Cost(machine, at, share, alone, sums, tuple(left_out))


def _one(piece: Piece, hours: float) -> Row:
    done = (1, hours) if piece.done else (0, 0.0)
    if piece.teaches:
        return Row(piece.suite, 0, 0.0, 1, hours, *done)
    return Row(piece.suite, 1, hours, 0, 0.0, *done)


def _row(name: str, rows: Sequence[Row]) -> Row:
    """Their sum."""
    return Row(
        name,
        sum(row.students for row in rows),
        sum(row.student_hours for row in rows),
        sum(row.teachers for row in rows),
        sum(row.teacher_hours for row in rows),
        sum(row.done for row in rows),
        sum(row.done_hours for row in rows),
    )
