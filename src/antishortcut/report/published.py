"""The suite `standard` beside the published numbers of its pair: do both put the methods in one order? No torch.

Ours are of 30 epochs and 45,000 images, theirs (published.csv) of 240 and 50,000: the order is compared, not the
numbers. A row that the field published without KD, and we train with it, is shown and not ranked.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from antishortcut.report.table import ResultTable

SUITE, COLUMN = "standard", "test accuracy"
FEWEST = 4  # methods, below which their order says nothing
HEAD = ("method", "ours, % (seeds)", "240 epochs, published, %", "published by")
SOURCES = (
    "RepDistiller's README (github.com/HobbitLong/RepDistiller; last epoch), mdistiller's "
    "(github.com/megvii-research/mdistiller; best epoch on the test images), CRD's paper (arXiv 1910.10699) and "
    "ReviewKD's (arXiv 2104.09044), the papers as later READMEs repeat them."
)


class Published(NamedTuple):
    accuracy: float  # per cent, on the test images
    source: str


def _read() -> Iterator[tuple[str, Published]]:
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            yield line["row"], Published(float(line["accuracy"]), line["source"])


PUBLISHED = dict(_read())  # by row of the suite; resnet56 → resnet20
TEACHER = PUBLISHED.pop("teacher")


class PublishedTable(NamedTuple):
    head: tuple[str, ...]
    rows: list[list[str]]
    below: list[str]


def rank_correlation(ours: Mapping[str, float], published: Mapping[str, float]) -> float | None:
    """Spearman's ρ over the methods in both; None for fewer than `FEWEST`, or where one side is all ties."""
    from scipy.stats import spearmanr  # takes most of a second to import

    both = [name for name in published if name in ours]
    first, second = ([values[name] for name in both] for values in (ours, published))
    if len(both) < FEWEST or min(len(set(first)), len(set(second))) < 2:
        return None
    return float(spearmanr(first, second).statistic)


def beside_published(table: ResultTable) -> PublishedTable | None:
    """None unless these are runs of the suite, with scores on the test images. Finished rows alone."""
    if {student.run.suite for student in table.runs.students} != {SUITE}:
        return None
    ours = {name: cells[COLUMN] for name, cells in table.cells.items() if COLUMN in cells}
    rows = []
    for name, one in ours.items():
        spread = "" if one.std is None else f" ± {100 * one.std:.2f}"
        rows.append([name, f"{100 * one.mean:.2f}{spread} ({one.count})", *_printed(name)])
    teachers = [run.values[COLUMN] for run in table.runs.teacher_runs.values() if COLUMN in run.values]
    own = f"{100 * sum(teachers) / len(teachers):.2f} ({len(teachers)})" if teachers else "–"
    rows.append(["teacher", own, f"{TEACHER.accuracy:.2f}", TEACHER.source])
    means = {name: one.mean for name, one in ours.items()}
    rho = rank_correlation(means, {name: number.accuracy for name, number in PUBLISHED.items()})
    shared = sum(name in means for name in PUBLISHED)
    order = f"uninformative below {FEWEST}" if rho is None else f"rank correlation (Spearman) {rho:+.2f}"
    below = [
        f"Order of the {shared} finished methods in both columns: {order}. The numbers do not compare: 30 epochs "
        "against 240.",
        f"Published by: {SOURCES}",
    ]
    return PublishedTable(HEAD, rows, below) if ours else None


def _printed(name: str) -> list[str]:
    """The published number of a row, or, unranked, of its method without KD."""
    if known := PUBLISHED.get(name):
        return [f"{known.accuracy:.2f}", known.source]
    if name.endswith("+kd") and (known := PUBLISHED.get(name.removesuffix("+kd"))):
        return [f"{known.accuracy:.2f} without KD, not ranked", known.source]
    return ["–", ""]
