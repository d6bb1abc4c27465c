"""The suite standard beside published numbers: which rows, which label, and the order of both."""

import runpy
import shutil
from pathlib import Path

import pytest

from antishortcut.methods import METHODS
from antishortcut.report.collect import collect
from antishortcut.report.published import PUBLISHED, beside_published, rank_correlation
from antishortcut.report.table import ResultTable
from antishortcut.report.text import write_markdown
from tests.browser.fake_runs import begun, score, student

OURS = {"kd": 0.60, "ce": 0.58, "dkd": 0.62, "reviewkd": 0.61, "crd+kd": 0.63, "asd": 0.64, "fitnets+kd": 0.57}
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "standard.py"


def runs(root: Path, suite: str = "standard") -> ResultTable:
    for name, accuracy in OURS.items():
        for seed in (1, 2):
            folder = student(root / f"{name}-s{seed}", name, seed, 0.5, suite=suite)
            score(folder, "test", {"accuracy": accuracy + 0.001 * seed})
    return ResultTable(collect(root))


def test_rank_correlation_by_hand() -> None:
    theirs = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    assert rank_correlation(theirs, theirs) == pytest.approx(1)
    assert rank_correlation({name: -value for name, value in theirs.items()}, theirs) == pytest.approx(-1)
    swapped = {"a": 10.0, "c": 11.0, "b": 12.0, "d": 13.0, "unpublished": 0.0}
    assert rank_correlation(swapped, theirs) == pytest.approx(1 - 6 * (1 + 1) / (4 * 15))  # 1 − 6 Σ d² / (n (n² − 1))
    assert rank_correlation({"a": 1.0, "b": 2.0, "c": 3.0}, theirs) is None
    assert rank_correlation(dict.fromkeys(theirs, 5.0), theirs) is None


def test_rows_stand_beside_published_numbers(tmp_path: Path) -> None:
    table = runs(tmp_path / "standard")
    found = beside_published(table)
    assert found is not None
    rows = {row[0]: row[1:] for row in found.rows}
    assert rows["kd"] == ["60.15 ± 0.07 (2)", "70.66", "RepDistiller"]
    assert rows["asd"][1:] == ["–", ""]
    assert rows["teacher"] == ["–", "72.34", "RepDistiller"]
    assert rows["crd+kd"][1:] == ["71.63", "CRD's paper"]
    assert rows["fitnets+kd"][1:] == ["69.21 without KD, not ranked", "RepDistiller"]
    # theirs: ce, kd, crd, reviewkd, dkd; ours: ce, kd, reviewkd, dkd, crd: d = 0, 0, 2, 1, 1
    assert f"{1 - 6 * 6 / (5 * 24):+.2f}" in found.below[0]
    assert "5 finished methods" in found.below[0]
    write_markdown(table, tmp_path / "table.md")
    text = (tmp_path / "table.md").read_text()
    assert "## Beside published numbers" in text
    assert "240 epochs, published" in text
    for folder in [*tmp_path.glob("standard/ce-*"), *tmp_path.glob("standard/dkd-*")]:
        shutil.rmtree(folder)
    found = beside_published(ResultTable(collect(tmp_path / "standard")))
    assert found is not None
    assert "3 finished methods in both columns: uninformative below 4" in found.below[0]
    assert not {"ce", "dkd"} & {row[0] for row in found.rows}


def test_other_suites_have_no_such_table(tmp_path: Path) -> None:
    assert beside_published(runs(tmp_path / "desk", "desk")) is None


def test_the_page_is_made_once_rows_exist(tmp_path: Path) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    begun(tmp_path / "standard" / "kd-s9", "kd", 9, suite="standard")
    with pytest.raises(SystemExit, match="no finished row yet"):
        main(tmp_path, tmp_path / "page.md")
    shutil.rmtree(tmp_path / "standard")
    runs(tmp_path / "standard")
    begun(tmp_path / "standard" / "sp-s1", "sp", 1, suite="standard")
    main(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("# The standard pair\n")
    assert "14 students 0.0 hours" in text  # 1.5 s each
    assert text.count("\n# ") == 0
    assert "| kd | 60.15 ± 0.07 (2) | 70.66 | RepDistiller |" in text
    assert "sp" not in text.split()  # not finished
    assert "unfinished" not in text


def test_published_numbers_name_methods_of_ours() -> None:
    assert set(PUBLISHED) <= set(METHODS)
