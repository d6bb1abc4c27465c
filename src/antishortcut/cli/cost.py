"""How `asd suite show --measure` measures and prints what a suite costs here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from antishortcut.cli.options import table, tell

if TYPE_CHECKING:
    from antishortcut.config.recipe import Execution
    from antishortcut.experiments.cost import Cost
    from antishortcut.experiments.suites_suites import Suite


def measure(suite: Suite, runs: Path, execution: Execution) -> Cost:
    from antishortcut.experiments.benchmark import Stopwatch
    from antishortcut.experiments.cost import measured_cost
    from antishortcut.progress import Watch

    clock = Stopwatch(execution)
    with Watch(f"measuring {suite.name}", 1) as watch:

        def progress(done: int, groups: int, problem: str) -> None:
            if done == 0:
                watch.total = groups
                watch.begin(0)
            if problem:
                watch.say(f"left out: {problem}")
            watch.update(done, {})

        return measured_cost(suite.jobs, runs, clock, progress)


def print_cost(cost: Cost) -> None:
    columns = ("", "students", "their hours", "teachers", "their hours")
    table(f"estimated hours on {cost.machine}", columns, [tuple(vars(row).values()) for row in cost.rows])
    tell(f"estimated {cost.hours:,.2f} h for the runs that are not finished, one after the other")
    tell("evaluation is not counted, nor is reading image files")
    for title, why in cost.left_out[:1]:
        tell(f"left out: {title}{f' and {n} more' if (n := len(cost.left_out) - 1) else ''}: {why}")
