"""asd selftest: it passes here, notices what is wrong, and its file becomes the page of GPU results."""

import json
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from antishortcut.experiments import selftest
from antishortcut.experiments.method_check import FLOOR, largest_difference
from antishortcut.methods import METHODS
from tests.conftest import Ended, Refusal, asd

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
QUICK = ("selftest", "--device", "cpu", "--quick")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], str]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    made: Callable[[dict[str, Any]], str] = runpy.run_path(str(BENCHMARKS / "gpu.py"))["page"]
    return made


def test_terms_and_loader_pass_and_become_a_page(here: Path, page: Callable[[dict[str, Any]], str]) -> None:
    result = asd(*QUICK, "--only", "terms,loader")
    assert json.loads((here / "selftest-cpu.json").read_text()) == result
    assert result["passed"]
    assert list(result["parts"]) == ["terms", "loader"]
    differences = result["parts"]["terms"]["differences"]
    assert list(differences) == list(METHODS)
    assert 0 < max(differences.values()) < result["parts"]["terms"]["tolerance"]
    text = page({"selftest-cpu.json": result})
    assert "No GPU results" not in text
    assert f"| terms | passed | {len(METHODS)} methods against noise on features" in text
    assert text.count("images a second |") == 2
    with pytest.raises(SystemExit, match="make it again"):
        page({"old.json": {"format": 0}})


def test_without_files_the_page_says_so(page: Callable[[dict[str, Any]], str]) -> None:
    assert page({}).endswith("\n\nNo GPU results have been contributed yet.\n")


def test_a_difference_or_a_crash_is_named_and_the_other_parts_still_run(
    here: Path, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*words: object) -> None:
        raise RuntimeError("CUDA error: no kernel image")

    monkeypatch.setattr(selftest, "LAST_DIGIT", 0.1)
    monkeypatch.setattr(selftest, "METHODS", ["kd"])
    monkeypatch.setitem(selftest.PARTS, "speed", crash)
    _, error, code = ended(*QUICK, "--only", "terms,speed,loader", "--out", "found.json")
    assert code == 2
    assert "asd: selftest failed: terms, speed; the details are in found.json" in error
    parts = json.loads((here / "found.json").read_text())["parts"]
    assert parts["terms"]["problem"].startswith("terms or gradients differ by more than 0.001: kd 0.")
    assert parts["speed"]["problem"] == "RuntimeError: CUDA error: no kernel image"
    assert parts["loader"]["passed"]


def test_unknown_parts_and_devices_are_refused(refusal: Refusal) -> None:
    assert "--only term: there is no such part; did you mean" in refusal(*QUICK, "--only", "term")
    if not torch.cuda.is_available():
        assert "--device cuda" in refusal("selftest", "--device", "cuda")


def test_differences_are_relative_and_no_nan_passes() -> None:
    one = {"kd at 0": torch.tensor(2.0), "head a": torch.tensor([1.0, 4.0]), "head b": torch.tensor([1e-9])}
    assert largest_difference(one, one) == 0
    assert largest_difference(one, one | {"head a": torch.tensor([1.0, 5.0])}) == 0.25
    assert largest_difference(one, one | {"head b": torch.tensor([0.04])}) == pytest.approx(0.04 / (FLOOR * 4.0))
    assert largest_difference(one, one | {"kd at 0": torch.tensor(math.nan)}) == math.inf
    assert largest_difference(one, {"kd at 0": torch.tensor(2.0)}) == math.inf


def test_a_training_that_fails_is_no_pass(tmp_path: Path) -> None:
    with pytest.raises(selftest.Failed, match="ended with code 2: asd: unknown method 'kdd'"):
        selftest._train(tmp_path, "--device", "cpu", "--method", "kdd")


@pytest.mark.slow
def test_a_training_that_ends_before_its_kill_is_no_pass(tmp_path: Path) -> None:
    with pytest.raises(selftest.Failed, match="before it could be killed"):
        selftest._killed(tmp_path, "--device", "cpu", "--method", "kdd")


@pytest.mark.slow
def test_the_whole_quick_run_passes(here: Path, page: Callable[[dict[str, Any]], str]) -> None:
    result = asd(*QUICK)
    assert list(result["parts"]) == list(selftest.PARTS)
    assert result["passed"], {name: part["problem"] for name, part in result["parts"].items()}
    assert result["parts"]["resume"]["differences"] == {"asd": 0.0}
    assert result["parts"]["resume"]["killed_after_step"]["asd"] >= 5
    assert result["parts"]["processes"]["backend"] == "gloo"
    assert "P2 wrn-40-2:wrn-16-2" in page({"file.json": result})
