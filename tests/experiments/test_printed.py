"""The paper's printed numbers: all there, and consistent with each other except where a note says otherwise."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable

import pytest

from antishortcut.experiments.paper import PRINTED, Printed, find
from antishortcut.report.stats import sign_test

COUNTS = {
    "Table 1": 45, "Table 2": 50, "Table 3": 30, "Table 4": 18, "Table 5": 48, "Table 6": 8, "Table 7": 15,
    "Table 8": 10, "S-Table 1": 26, "S-Table 2": 14, "S-Table 3": 36, "S-Table 4": 12, "S-Table 5": 12, "S-Table 6": 8,
    "S-Table 7": 8, "S-Table 8": 20, "S-Table 9": 12,
}  # fmt: skip


def group(*fields: str, where: Callable[[Printed], bool] = lambda number: True) -> dict[tuple[str, ...], list[Printed]]:
    result = defaultdict(list)
    for number in filter(where, PRINTED):
        result[tuple(str(getattr(number, key)) for key in fields)].append(number)
    return result


def in_table(number: Printed) -> bool:
    return number.place in COUNTS


def test_every_number_of_every_table_is_there() -> None:
    assert {place: len(result) for (place,), result in group("place", where=in_table).items()} == COUNTS
    assert len(PRINTED) == sum(COUNTS.values()) + 389
    keys = [number[:4] for number in PRINTED if in_table(number)]
    assert len(set(keys)) == len(keys)
    assert all(math.isfinite(number.mean) and (number.std is None or number.std > 0) for number in PRINTED)
    for number in PRINTED:
        if number.place in ("Table 1", "Table 2", "Table 3", "Table 5", "Table 6", "Table 8"):
            assert (number.std is None) == (number.row in ("teacher", "student"))


def test_the_best_value_is_marked_except_twice() -> None:
    wrong = []
    for (place, column, measure), result in group("place", "column", "measure", where=in_table).items():
        rows = [number for number in result if number.row not in ("teacher", "student")]
        marked = [number for number in rows if number.best]
        if marked and max(rows, key=lambda n: -n.mean if measure == "mCE" else n.mean) not in marked:
            wrong.append((place, column))
            assert any(number.note for number in result)
    assert wrong == [("Table 1", "P1"), ("Table 7", "P1")]


def test_repeated_numbers_agree_or_have_a_note() -> None:
    """Rounding aside; where it is not, a note says so."""
    rounded = ("signed cosine", "angular margin", "shortcut energy, highest", "shortcut energy, final", "robust energy")
    for (_, _, measure), result in group("row", "column", "measure").items():
        if len({number.mean for number in result}) == 1:
            continue
        spread = max(number.mean for number in result) - min(number.mean for number in result)
        if measure.startswith(rounded) and not measure.endswith("from"):
            assert spread < 0.05
        else:
            assert any(number.note for number in result), result[0][:4]


DIFFERENCES = [n for n in PRINTED if " against " in n.measure and "%" not in n.measure]
# the rows it is the difference of
WRONG = {("Sec. 5.5", "asd", "ade20k-resnet18", "mIoU against student"): ("asd", "kd")}
LOOSE = {"kd and asd": 0.15, "clean": 0.11}  # said with "about", or between numbers of one decimal


def value(row: str, column: str, measure: str) -> float:
    """Where it is printed first; tables come before text."""
    return next(n.mean for n in PRINTED if n[1:4] == (row, column, measure))


def compared(number: Printed) -> tuple[float, float]:
    """The two numbers a stated difference is between, as its measure says: accuracy against kd, seed 1."""
    measure, _, rest = number.measure.partition(" against ")
    other, _, which = rest.partition(", ")
    if other == "clean":
        return value(number.row, number.column, measure), value(number.row, number.column, "accuracy beside stylised")
    if which in ("lowest", "highest"):
        each = [find("S-Table 9", "asd", "P12", f"accuracy against crd+kd, seed {s}").mean for s in (1, 2, 3)]
        return (min if which == "lowest" else max)(each), 0.0
    name = f"{measure}, {which}" if which.startswith("seed") else measure
    row = "asd" if number.row == "kd and asd" else number.row
    return value(row, number.column, name), value(other, number.column, name)


@pytest.mark.parametrize("number", DIFFERENCES, ids=lambda n: f"{n.place} {n.row} {n.column} {n.measure}")
def test_stated_differences_follow_from_the_tables(number: Printed) -> None:
    one, two = compared(number)
    if number[:4] in WRONG:
        assert one - two != pytest.approx(number.mean, abs=0.5)
        assert number.note
        one, two = (value(row, number.column, "mIoU") for row in WRONG[number[:4]])
    tolerance = max(LOOSE.get(word, 0.0111) for word in (number.row, number.measure.rpartition(" ")[2]))
    assert one - two == pytest.approx(number.mean, abs=tolerance)


@pytest.mark.parametrize("place", ["S-Table 3", "S-Table 9"])
def test_stated_means_follow_from_the_seeds(place: str) -> None:
    for number in [n for n in PRINTED if n.place == place and ", seed" not in n.measure]:
        seeds = [find(place, number.row, number.column, f"{number.measure}, seed {s}").mean for s in (1, 2, 3)]
        assert statistics.fmean(seeds) == pytest.approx(number.mean, abs=0.0051)
        if number.std is not None:
            one, zero = statistics.stdev(seeds), statistics.pstdev(seeds)
            assert min(abs(number.std - one), abs(number.std - zero)) < 0.0075
            with_one = abs(number.std - one) < 0.0075
            assert with_one == (number.measure == "ImageNet-R" and number.row in ("kd", "asd"))  # they mix
            assert with_one == (not number.note)


def test_the_sign_test_is_the_papers() -> None:
    asd, crd = (
        [find("S-Table 9", row, "P12", f"accuracy, seed {s}").mean for s in (1, 2, 3)] for row in ("asd", "crd+kd")
    )
    assert sign_test(asd, crd) == find("S-Sec. A.6", "asd", "P12", "p of the one-sided sign test").mean
