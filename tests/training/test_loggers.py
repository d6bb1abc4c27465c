"""Loggers: a missing package stops a run before it starts, a failing log does not, wandb resumes offline."""

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

from antishortcut.cli.options import execution_of
from antishortcut.config.recipe import Recipe, teach_run
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir
from antishortcut.training.loggers import TensorBoard
from antishortcut.training.pipeline import Session, distill
from tests.conftest import CPU, assert_same_run, stop_after


def test_a_missing_package_is_an_error_before_training(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.execution = CPU.model_copy(update={"log": ("wandb",)})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"--log wandb: .* not installed; pip install 'antishortcut\[wandb\]'"):
        distill(recipe, session, method="ce", seed=1, suite="s")
    assert not (session.runs / "s" / "ce-s1").exists()


def test_an_unknown_log_is_one_line() -> None:
    with pytest.raises(UserError, match="--log: Input should be 'tensorboard' or 'wandb'"):
        execution_of(log="wand")
    assert execution_of(log="wandb, tensorboard").log == ("wandb", "tensorboard")


def test_training_goes_on_without_a_log_that_fails(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: SummaryWriter, name: str, value: float, step: int) -> None:
        raise OSError("no space left\non device")

    whole = distill(recipe, session, method="ce", seed=1, suite="whole")
    session.quiet = False
    monkeypatch.setattr(SummaryWriter, "add_scalar", full)
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    assert_same_run(*(RunDir(each.folder(session.runs)) for each in (whole, run)))
    assert " ".join(capsys.readouterr().err.split()).count("log tensorboard: OSError: no space left on device") == 1


def test_a_log_that_does_not_open_can_be_left_out(recipe: Recipe, session: Session) -> None:
    folder = session.runs / "s" / "ce-s1"
    folder.mkdir(parents=True)
    (folder / "tensorboard").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="--log tensorboard: FileExistsError"):
        distill(recipe, session, method="ce", seed=1, suite="s")
    session.execution = CPU.model_copy(update={"log": ()})
    assert RunDir(distill(recipe, session, method="ce", seed=1, suite="s").folder(session.runs)).finished


def test_tensorboard_shows_repeated_steps_once(recipe: Recipe, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, values in ((0, (1.0, 2.0, 3.0)), (1, (5.0, 6.0))):  # the second resumes after step 1
        time.sleep(1.1 * start)  # files are sorted by the second in which they were opened
        board = TensorBoard(teach_run(recipe, "fingerprint"), tmp_path, start)
        for number, value in enumerate(values, start=start + 1):
            board.add({"loss": value, "lr": 0.5}, number)
        board.close()
    events: Any = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 5.0), (3, 6.0)]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_resumes_the_same_run_offline(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    session.execution = CPU.model_copy(update={"log": ("wandb", "tensorboard")})
    with stop_after(5):
        distill(recipe, session, method="ce", seed=1, suite="s")
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    files = sorted((run.folder(session.runs) / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1
    assert files[0].name.startswith(f"run-{run.hash}-")
    assert b"iid/accuracy" in files[1].read_bytes()
    assert "traceback" not in capfd.readouterr().err.lower()
