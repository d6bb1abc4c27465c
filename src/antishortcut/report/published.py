"""The suite `standard` beside the published numbers of its pair: do both put the methods in one order? No torch.

Ours are of 30 epochs and 45,000 images, theirs of 240 and 50,000: the order is compared, not the numbers.
"""

from collections.abc import Mapping
from typing import NamedTuple

from antishortcut.report.table import ResultTable

SUITE, COLUMN = "standard", "test accuracy"
REPDISTILLER, MDISTILLER = "RepDistiller", "mdistiller"
HEAD = ("method", "ours, % (seeds)", "240 epochs, published, %", "published by")


class Published(NamedTuple):
    accuracy: float  # per cent, on the test images
    source: str


TEACHER = Published(72.34, REPDISTILLER)
PUBLISHED = {  # by row of the suite; resnet56 → resnet20
    "ce": Published(69.06, REPDISTILLER),
    "kd": Published(70.66, REPDISTILLER),
    "crd+kd": Published(71.16, f"{REPDISTILLER}, CRD without KD"),
    "dkd": Published(71.97, MDISTILLER),
    "reviewkd": Published(71.89, MDISTILLER),
}


class PublishedTable(NamedTuple):
    head: tuple[str, ...]
    rows: list[list[str]]
    below: list[str]


def rank_correlation(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float | None:
    """Spearman's ρ over the methods in both; None for fewer than three, or where one side is all ties."""
    from scipy.stats import spearmanr  # takes most of a second to import

    both = [name for name in theirs if name in ours]
    first, second = ([values[name] for name in both] for values in (ours, theirs))
    if len(both) < 3 or min(len(set(first)), len(set(second))) < 2:
        return None
    return float(spearmanr(first, second).statistic)


def beside_published(table: ResultTable) -> PublishedTable | None:
    """None unless these are runs of the suite, with scores on the test images."""
    if {student.run.suite for student in table.runs.students} != {SUITE}:
        return None
    ours = {name: cells[COLUMN] for name, cells in table.cells.items() if COLUMN in cells}
    rows = []
    for name, one in ours.items():
        spread = "" if one.std is None else f" ± {100 * one.std:.2f}"
        known = PUBLISHED.get(name)
        printed = ["–", ""] if known is None else [f"{known.accuracy:.2f}", known.source]
        rows.append([name, f"{100 * one.mean:.2f}{spread} ({one.count})", *printed])
    rows.append(["teacher", "–", f"{TEACHER.accuracy:.2f}", TEACHER.source])
    means = {name: one.mean for name, one in ours.items()}
    rho = rank_correlation(means, {name: number.accuracy for name, number in PUBLISHED.items()})
    shared = sum(name in means for name in PUBLISHED)
    order = "too few rows to compare the order" if rho is None else f"rank correlation (Spearman) {rho:+.2f}"
    below = (
        f"Order of the {shared} methods in both columns: {order}. The numbers do not compare: 30 epochs against 240."
    )
    return PublishedTable(HEAD, rows, [below]) if ours else None
