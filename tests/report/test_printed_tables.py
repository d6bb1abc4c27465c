"""Marks against KD, what a difference is worth, and runs of the paper's pairs beside its printed numbers."""

import html
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from antishortcut.config.recipe import Run, distill_run, teach_run
from antishortcut.experiments.jobs import Job
from antishortcut.experiments.paper import MARK, PAIRS, TABLES, desk, find
from antishortcut.methods import method_options, method_roles
from antishortcut.report import build
from antishortcut.report.collect import collect
from antishortcut.report.paper_comparison import ComparisonRow, PaperComparison, compare_with_paper, numbers_of
from antishortcut.report.table import ResultTable
from antishortcut.report.text import Report
from antishortcut.run_dir import RunDir
from tests.browser.fake_runs import score

Scores = dict[str, tuple[float, ...]]
SHIFTS: dict[str, tuple[Scores, Scores]] = {  # row → accuracy and error on corruptions against kd, seed by seed
    "ce": ({"last": (-0.02, -0.021, -0.019)}, {"mce": (0.05, 0.052, 0.048)}),
    "kd": ({"last": (0.0, 0.0, 0.0)}, {"mce": (0.0, 0.0, 0.0)}),
    "asd": ({"last": (0.005, 0.006, 0.007)}, {"mce": (-0.010, -0.012, -0.008)}),
    "crd+kd": ({"last": (0.010, -0.004, 0.006)}, {"mce": (0.02, -0.01, 0.02)}),
}
KD, KD_ERROR = (0.800, 0.802, 0.804), (0.60, 0.61, 0.62)


@cache
def jobs() -> tuple[Job, ...]:
    return TABLES["paper"].jobs()


def made(suite: str, name: str, seed: int = 1) -> Run:
    """A row of the paper's, resolved as a suite resolves it."""
    pair = suite.removesuffix(MARK)
    job = next(job for job in jobs() if (job.suite, job.name) == (pair, name))
    job = desk(job) if suite.endswith(MARK) else job
    recipe = job.recipe
    options = method_options(job.method, recipe.methods.get(job.method, {}) | job.options)
    states = {"early": job.early or recipe.teacher.early}
    return distill_run(
        recipe, "f", method=job.method, options=options, seed=seed, teacher=teach_run(recipe, "f").hash, suite=suite,
        name=name, early=recipe.teacher.early, roles={r: states.get(r, r) for r in method_roles(job.method, options)},
    )  # fmt: skip


def run(root: Path, name: str, seed: int, last: float, suite: str = "P1", **more: Any) -> RunDir:
    """A finished student, made as the row of its pair, save what is given."""
    folder = RunDir(root / f"{name}-s{seed}")
    folder.begin(made(suite, name, seed).model_copy(update=more), {}, {})
    scores = {"accuracy": last, "epoch": 1}
    folder.finish({"set": "test", "last": scores, "best": scores, "seconds": 1.0})
    return folder


def runs(root: Path, names: tuple[str, ...] = tuple(SHIFTS), seeds: int = 3, **more: Any) -> Path:
    """Rows of SHIFTS over the seeds."""
    for name in names:
        accuracy, error = SHIFTS[name]
        for at in range(seeds):
            folder = run(root, name, at + 1, KD[at] + accuracy["last"][at], **more)
            score(folder, "corruptions", {"mce": KD_ERROR[at] + error["mce"][at]})
    return root


def opened(root: Path) -> tuple[ResultTable, list[PaperComparison]]:
    result = collect(root)
    table = ResultTable(result)
    return table, compare_with_paper(table)


def line(sides: list[PaperComparison], method: str, measure: str) -> ComparisonRow:
    (one,) = [one for side in sides for one in side.rows if (one.method, one.measure) == (method, measure)]
    return one


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """P1 at the paper's size, four rows and three seeds, and the report on it."""
    root = runs(tmp_path_factory.mktemp("runs") / "P1")
    return root, build(root)


def test_marks_by_hand(paper: tuple[Path, Report]) -> None:
    """Less error is better: the sign of the difference is turned, the best is the least."""
    marks = paper[1].table.marks
    assert {method: str(mark) for method, mark in marks("last").items()} == {
        "ce": "▼*", "kd": "", "asd": "★▲*", "crd+kd": "▲",
    }  # fmt: skip
    assert {method: str(mark) for method, mark in marks("corruptions mce").items()} == {
        "ce": "▼*", "kd": "", "asd": "★▲*", "crd+kd": "▼",
    }  # fmt: skip
    assert str(marks("best")["asd"]) == "★"  # chosen by looking: no difference is told


def test_marks_need_a_difference_and_a_star_two_seeds(tmp_path: Path) -> None:
    table, _ = opened(runs(tmp_path / "one", seeds=1))
    assert str(table.marks("last")["asd"]) == "▲"
    (one,) = [d for d in table.differences if (d.method, d.column) == ("asd", "last")]
    assert one.texts()[2:] == ["+0.005", "–", "–", "1", "–"]
    table, sides = opened(runs(tmp_path / "none", names=("ce", "asd")))
    assert [str(mark) for mark in table.marks("last").values()] == ["", "★"]
    assert table.differences == []
    assert (line(sides, "asd", "accuracy").agreement, line(sides, "asd", "mCE").agrees) == ("–", None)
    for seed in (1, 2):
        for name, last in (("kd", 0.5), ("asd", 0.5), ("dkd", 0.75)):
            run(tmp_path / "equal", name, seed, last)
    marks = opened(tmp_path / "equal")[0].marks("last")
    assert [str(marks[name]) for name in ("asd", "dkd")] == ["", "★▲*"]


def test_asd_beside_crd_on_p12(tmp_path: Path) -> None:
    """S-Table 9, seed by seed; the suite has no row kd, so its own table has no differences."""
    for name, values in {"crd+kd": (0.450, 0.452, 0.449), "asd": (0.456, 0.463, 0.461)}.items():
        for seed, last in enumerate(values, start=1):
            run(tmp_path / "P12", name, seed, last, suite="P12")
    table, sides = opened(tmp_path / "P12")
    assert table.differences == []
    against = line(sides, "asd", "accuracy against crd+kd")
    assert against.texts()[5] == "agrees (+*)"
    assert against.flat()["sign_test"] == 0.125  # S-Sec. A.6


def test_ours_beside_the_printed(paper: tuple[Path, Report]) -> None:
    _, sides = opened(paper[0])
    (side,) = sides
    assert side.labels == []
    asd = line(sides, "asd", "accuracy")
    assert (asd.numbers[0].mean, asd.numbers[0].std) == find("Table 1", "asd", "P1", "accuracy")[4:6]
    assert asd.difference == pytest.approx(80.80 - 80.50)
    assert asd.texts()[:6] == ["accuracy", "asd", "80.80 ± 0.30 (3)", "80.50 ± 0.07 †", "+0.30", "agrees (+*)"]
    assert line(sides, "ce", "accuracy").numbers[0].mean == find("Table 1", "student", "P1", "accuracy").mean
    assert line(sides, "kd", "accuracy").agreement == "–"
    assert line(sides, "crd+kd", "accuracy").texts()[5] == "agrees (+)"  # not sure
    assert line(sides, "crd+kd", "accuracy against asd").texts()[2:5] == ["−0.20 ± 0.75 (3)", "0.21", "−0.41"]
    assert line(sides, "crd+kd", "accuracy against asd").agreement == "differs (ours −, printed +)"
    assert side.missing == ["corruptions", "mechanism", "stylized"]
    assert side.footnotes()[-1].endswith(" which asd evaluate --on corruptions,mechanism,stylized would measure.")


def test_mce_is_compared_by_its_sign_alone(paper: tuple[Path, Report]) -> None:
    """Printed: CE 87.0, KD 86.2, ASD 85.6, CRD 85.2."""
    _, sides = opened(paper[0])
    for method, agreement in (("ce", "agrees (+*)"), ("asd", "agrees (−*)"), ("crd+kd", "differs (ours +, printed −)")):
        one = line(sides, method, "mCE")
        assert (one.difference, one.texts()[4], one.agreement) == (None, "–", agreement)
    assert line(sides, "asd", "mCE").texts()[2:4] == ["60.0 ± 1.1 (3)", "85.6 ± 0.4 †"]
    rows = paper[1].summary(None)["printed"][0]["rows"]
    (row,) = [row for row in rows if (row["method"], row["measure"]) == ("asd", "mCE")]
    assert (row["score"], row["printed"], row["printed ±"], row["difference"]) == ("corruptions mce", 85.6, 0.4, None)
    assert (row["against"], row["printed against"]) == pytest.approx((-1.0, -0.6))
    assert (row["agrees"], row["seeds"]) == (True, 3)


def test_contradictions_are_footnotes(paper: tuple[Path, Report]) -> None:
    _, (side,) = opened(paper[0])
    for method, measure, message in (
        ("asd", "accuracy", "Table 1: marked best with 80.50 beside CRD's 80.71"),
        ("asd", "accuracy", "Sec. 6.2: 80.27 here, 80.50 in Tables 1, 6, 7"),  # the text, against the tables
        ("kd", "mCE", "Table 5: cannot be plain errors"),
    ):
        noted = line([side], method, measure).noted
        assert any(f"{number.place}: {number.note}".startswith(message) for number in noted)
        assert sum(note.startswith(f"† {measure}, {message}") for note in side.footnotes()) == 1
    assert line([side], "ce", "accuracy").texts()[3] == "78.79"


def test_page_table_terminal_and_json_say_the_same(paper: tuple[Path, Report]) -> None:
    root, report = paper
    _, (side,) = opened(root)
    text, page = (root / "table.md").read_text(), html.unescape((root / "report.html").read_text())
    shown = {each.title: each for each in report.tables(None, 200)}
    assert next(iter(shown)) == str(root)
    printed = shown["beside the printed numbers: P1: ResNet-34 → ResNet-18, CIFAR-100"]
    assert printed.rows == side.texts()
    assert side.rows
    for cells in side.texts():
        assert f"| {' | '.join(cells)} |" in text
        assert all(f">{cell}</t" in page for cell in cells)
    for note in side.footnotes():
        assert note in text
        assert note in page
        assert note in printed.below
    assert report.summary(None)["printed"] == [side.flat()]
    for cells in (one.texts() for one in report.table.differences):
        assert f"| {' | '.join(cells)} |" in text
    assert "**0.808 ± 0.003** ▲*" in text
    assert "★▲*" in next(iter(shown.values())).rows[1][3]
    message = "▲ better, ▼ worse than kd"
    assert message in text
    assert message in page
    assert page.count('class="best"><span title="best of the column">★') > 2
    assert 'title="worse than kd, the interval leaves zero out"' in page


def test_chosen_columns_are_those_of_the_comparison(paper: tuple[Path, Report]) -> None:
    (side,) = paper[1].summary("mce")["printed"]
    assert {row["measure"] for row in side["rows"]} == {"mCE"}
    assert side["missing"] == []
    assert {row["score"] for row in paper[1].summary("mce")["differences"]} == {"corruptions mce"}


def test_the_first_place_counts_and_tables_come_first() -> None:
    numbers = numbers_of("P1", "asd")
    assert {"Table 1", "Table 6", "S-Table 7", "Sec. 6.1"} <= {number.place for number in numbers["accuracy"]}
    assert numbers["accuracy"][0].place == "Table 1"
    assert [number.mean for number in numbers_of("P1", "kd")["stylised"]] == [47.4, 48.1]  # S-Table 1 calls it shape


def test_mechanism_is_in_the_papers_view_and_unit(tmp_path: Path) -> None:
    for name, value in (("kd", 0.25), ("asd", 0.2)):
        for seed in (1, 2):
            view = {"projection": value + seed / 100, "signed_above": value}
            score(run(tmp_path, name, seed, 0.8), "mechanism", {"aligned": {"projection": 9.0}, "raw": view})
    _, sides = opened(tmp_path)
    assert line(sides, "kd", "projection on the shortcut").column == "mechanism raw projection"
    assert line(sides, "asd", "% of samples above the threshold").texts()[2:5] == ["20.0 ± 0.0 (2)", "11.7", "+8.3"]
    change = line(sides, "asd", "shortcut magnitude, % against KD")
    assert change.ours is not None
    assert change.ours.mean == pytest.approx(50 * (0.21 / 0.26 + 0.22 / 0.27) - 100)
    assert change.texts()[5] == "agrees (−*)"


def test_accuracy_on_held_out_images_is_not_compared(tmp_path: Path) -> None:
    folder = run(tmp_path, "asd", 1, 0.9)
    folder.finish({"set": "val", "last": {"accuracy": 0.9}, "best": {"accuracy": 0.9}, "seconds": 1.0})
    assert "clean" in opened(tmp_path)[1][0].missing
    score(folder, "test", {"accuracy": 0.8})
    assert line(opened(tmp_path)[1], "asd", "accuracy").difference == pytest.approx(-0.5)


def test_a_suite_with_a_pairs_name_on_other_data_is_not_compared(tmp_path: Path) -> None:
    assert opened(runs(tmp_path, data=PAIRS["P1"].recipe().data.model_copy(update={"name": "cues"})))[1] == []
