"""How `asd suite show` tells a suite's runs, and measures and tells what they cost here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.cli.options import table, tell

if TYPE_CHECKING:
    from antishortcut.cost import Cost, Row
    from antishortcut.run import Execution
    from antishortcut.suites import Job, Suite

COLUMNS = ("", "students", "their hours", "teachers", "their hours", "hours in all")
BUSY = 0.9


def listed(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Jobs for JSON, each with every setting of its method, defaults included, as its run will have them."""
    from antishortcut.methods import options_of

    return [
        job.model_dump(mode="json")
        | {"resolved": options_of(job.method, job.recipe.methods.get(job.method, {}) | job.options)}
        for job in jobs
    ]


def measured(suite: Suite, runs: Path, execution: Execution) -> Cost:
    from antishortcut.console import Watch
    from antishortcut.cost import measured_cost
    from antishortcut.cost.measure import Stopwatch

    clock = Stopwatch(execution)
    with Watch(f"measuring {suite.name}", 1) as watch:

        def tell(done: int, groups: int, wrong: str) -> None:
            if done == 0:
                watch.total = groups
                watch.begin(0)
                watch.say(f"steps of {groups} kinds on {clock.machine}")
            if wrong:
                watch.say(f"left out: {wrong}")
            watch.update(done, {})

        return measured_cost(suite.jobs, runs, clock, tell)


def known(suite: Suite, runs: Path) -> Cost | None:
    from antishortcut.cost import known_cost

    return known_cost(suite.jobs, runs)


def print_cost(cost: Cost | None, name: str, scale: str) -> None:
    again = f"asd suite show {name}{'' if scale == 'paper' else f' --scale {scale}'} --measure"
    if cost is None:
        tell(f"hours on this machine: {again}")
        return
    whole = cost.all
    if cost.rows:
        shown = [*cost.rows, whole] if len(cost.rows) > 1 else cost.rows
        table(f"estimated hours on {cost.machine}", COLUMNS, [_cells(row) for row in shown])
        tell(
            f"estimated {_hours(whole.hours)} h, one run after the other: students {_hours(whole.student_hours)} h, "
            f"teachers {_hours(whole.teacher_hours)} h{_done(whole)}"
        )
        when = cost.at[:16].replace("T", " ")
        tell(f"from steps measured there, {when} UTC; evaluation is not counted, nor is reading image files")
        if cost.share < BUSY:
            tell(
                f"the machine was busy: a core worked {cost.share:.0%} of the time on these steps; had it worked all of"
                f" it, {_hours(cost.alone)} h; measure again when it is free: {again}"
            )
    reasons: dict[str, list[str]] = {}
    for title, why in cost.left_out:
        reasons.setdefault(why, []).append(title)
    for why, titles in reasons.items():
        more = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        tell(f"left out: {titles[0]}{more}: {why}")


def _cells(row: Row) -> tuple[str | int, ...]:
    hours = [f"{_hours(value):>8}" for value in (row.student_hours, row.teacher_hours, row.hours)]
    return row.suite, row.students, hours[0], row.teachers, hours[1], hours[2]


def _hours(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def _done(whole: Row) -> str:
    if not whole.done:
        return ""
    count = whole.students + whole.teachers
    left = _hours(whole.hours - whole.done_hours)
    return f"; of which {_hours(whole.done_hours)} h are done ({whole.done} of {count} trainings), {left} h are left"
