"""Statistics of contrast targets: against counts by hand, and of a real teacher by the command."""

import math
from itertools import product
from pathlib import Path

import pytest
import torch

from antishortcut.errors import UserError
from antishortcut.experiments.dial import measure
from antishortcut.run_dir import RunDir
from antishortcut.teachers.selection import largest, target_statistics
from tests.conftest import asd, invoke


def certain(classes: list[int], width: int = 3) -> torch.Tensor:
    """Logits of a certain network. (N, C)"""
    rows = torch.full((len(classes), width), -30.0)
    rows[torch.arange(len(classes)), torch.tensor(classes)] = 0.0
    return rows


def test_shares_are_counted() -> None:
    label = torch.tensor([0, 1, 2, 0])
    result = target_statistics(certain([0, 1, 2, 1]), certain([0, 2, 2, 1]), label, 0.0)
    assert (result["agreement"], result["moved"]) == (0.75, 0.0)
    assert [result[f"{which}_accuracy"] for which in ("early", "final", "target")] == [0.5, 0.75, 0.75]
    assert result["hard_accuracy"] == 0.5  # T_early is wrong on the second and the last; the targets on the last


def test_a_target_moves_where_early_was_more_certain() -> None:
    """p_F = (0.6, 0.4), p_E = (0.9, 0.1): with λ = 1 the target's odds are (0.6/0.4)² · (0.1/0.9) = 0.25."""
    final, early = torch.tensor([[0.6, 0.4]]).log(), torch.tensor([[0.9, 0.1]]).log()
    result = target_statistics(final, early, torch.tensor([1]), 1.0, temperature=1.0)
    assert (result["moved"], result["target_accuracy"], result["final_accuracy"]) == (1.0, 1.0, 0.0)
    p = 0.25 / 1.25
    assert result["entropy"] == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), rel=1e-5)


def test_the_largest_strength_stops_where_targets_lose_too_much() -> None:
    rows = [{"strength": s, "final_accuracy": 0.95, "target_accuracy": a} for s, a in ((2, 0.9), (0, 0.95), (1, 0.93))]
    assert largest(rows) == 1.0
    assert largest(rows[:1]) is None
    assert largest([*rows, {"strength": 4, "final_accuracy": 0.95, "target_accuracy": 0.94}]) == 1.0  # not beyond a gap


SETTINGS = ["data.options.count=300", "epochs=1", "teacher.epochs=2", "teacher.name=cnn-4-16", "student.name=cnn-4-16"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("targets")
    words = [word for text in [*SETTINGS, "data.val_fraction=0.2", "teacher.keep=[0,50]"] for word in ("--set", text)]
    invoke("teach", "cues", *words, "--runs", runs)
    return next((runs / "teachers").iterdir())


def test_the_command_uses_the_validation_split(teacher: Path) -> None:
    results = asd("targets", teacher, "--strengths", "0,1")
    assert results["set"] == "val"
    assert results["count"] == 60
    assert [(row["state"], row["strength"]) for row in results["rows"]] == list(product(("0%", "50%"), (0, 1)))
    plain = [row for row in results["rows"] if row["strength"] == 0]
    assert all(row["moved"] == 0 and row["target_accuracy"] == row["final_accuracy"] for row in plain)
    table = invoke("targets", teacher, "--states", "50%", "--strengths", "0.5", "--threads", "1").stdout
    assert "moved" in table
    assert "60 val images; T_final is right in " in table
    assert max(map(len, invoke("targets", teacher, "--threads", "1").stdout.splitlines())) <= 80


@pytest.mark.parametrize("words", ["--strengths big", "--strengths=-1", "--strengths 1,nan", "--states 7%"])
def test_invalid_options_are_refused(teacher: Path, words: str) -> None:
    with pytest.raises(UserError):
        invoke("targets", teacher, *words.split())


def test_a_student_is_refused(teacher: Path, tmp_path: Path) -> None:
    from antishortcut.config.recipe import load_recipe
    from antishortcut.training.pipeline import Session, distill

    session = Session(tmp_path, quiet=True)
    run = distill(load_recipe("cues", SETTINGS), session, method="ce", seed=1, suite="s")
    with pytest.raises(UserError, match="not a finished teacher"):
        measure(RunDir(run.folder(tmp_path)), session.sets(run.data), [], [1.0])
