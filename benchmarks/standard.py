"""Write docs/results/standard.md from the runs of the suite `standard`: `python benchmarks/standard.py RUNS [PAGE]`.

The page appears with the first finished rows; rows that are not finished are left out. Its tables are those of
`asd report RUNS/standard`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from antishortcut.report.collect import Collected, StudentRun, collect
from antishortcut.report.notes import tally
from antishortcut.report.table import ResultTable
from antishortcut.report.text import write_markdown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "standard.md"
HEAD = """# The standard pair

resnet56 → resnet20 on CIFAR-100: all 50,000 training images, 5,000 of them held out, 30 epochs. To repeat or resume it:
`asd suite run standard`, then `python benchmarks/standard.py runs`, which makes this page.
"""
EXECUTION = ("accelerator", "threads", "precision", "teacher_precision", "cache_teachers")


def cost(runs: Collected) -> str:
    """Hours of training, from the run folders, and what they were computed with."""
    students, teachers = _hours(runs.students, "student"), _hours(tuple(runs.teacher_runs.values()), "teacher")
    how = [{name: one.execution.get(name) for name in EXECUTION} | one.versions for one in runs.students]
    settings = ", ".join(f"{name} {value}" for name, value in tally(how))
    what = f"Cost in training, without evaluations and pilots of the dial: {students}, {teachers}."
    return f"{what} Computed with {settings}."


def _hours(runs: Sequence[StudentRun], what: str) -> str:
    hours = sum(run.seconds or 0.0 for run in runs) / 3600
    return f"{len(runs)} {what}{'s' * (len(runs) != 1)} {hours:.1f} hours"


def main(runs: Path, page: Path = PAGE) -> None:
    table = ResultTable(collect(runs / "standard"))
    if not table.cells:
        raise SystemExit(f"{runs}/standard has no finished row yet: asd suite run standard")
    write_markdown(table, page)
    made = page.read_text().partition("\n\n")[2].partition("\n## Not in the table\n")[0]
    page.write_text(f"{HEAD}\n{cost(table.runs)}\n\n{made.rstrip()}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
