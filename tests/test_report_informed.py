"""Whether the teacher was ahead of labels alone: said in the table, on the page and at the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from antishortcut.report import build
from antishortcut.report.collect import collect
from antishortcut.report.informed import informed
from antishortcut.report.terminal import tables
from antishortcut.stats import paired
from tests.test_report_scenes import dense

TEACHER = "0" * 16


def runs(root: Path, teacher: float) -> Path:
    dense(root / "teachers" / TEACHER, "dense-8", 0, teacher, suite="teachers", keep=(100.0,), method="ce")
    for seed, miou in enumerate((0.30, 0.34, 0.35), start=1):
        dense(root / "cues-seg" / f"ce-s{seed}", "ce", seed, miou, method="ce")
        dense(root / "cues-seg" / f"kd-s{seed}", "kd", seed, miou + 0.05, roles={"final": "final"})
    return root / "cues-seg"


def test_a_teacher_that_is_ahead(tmp_path: Path) -> None:
    folder = runs(tmp_path, 0.5)
    (line,) = informed(collect(folder))
    found = paired([0.5] * 3, [0.30, 0.34, 0.35])
    assert found.low is not None
    assert found.high is not None
    assert line == (
        "cues-seg: the teacher has mIoU 0.500 on iid, students by labels alone 0.330; difference +0.170, "
        f"95 % interval +{found.low:.3f} … +{found.high:.3f}."
    )


@pytest.mark.parametrize("miou", [0.36, 0.2])
def test_one_that_is_not_makes_the_comparison_uninformative(tmp_path: Path, miou: float) -> None:
    folder = runs(tmp_path, miou)
    report = build(folder)
    (line,) = informed(report.found)
    assert line.endswith("how methods that learn from it compare is uninformative.")
    assert "uninformative" in (folder / "table.md").read_text(encoding="utf-8")
    assert "uninformative" in (folder / "report.html").read_text(encoding="utf-8")
    assert any("uninformative" in text for shown in tables(report.found, report.table) for text in shown.below)


def test_nothing_is_said_without_both(tmp_path: Path) -> None:
    folder = runs(tmp_path, 0.5)
    (tmp_path / "teachers" / TEACHER / "run.json").unlink()
    assert informed(collect(folder)) == []
