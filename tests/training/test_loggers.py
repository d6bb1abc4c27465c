"""Logs: what is missing is said before training, what fails in its midst does not end it, wandb goes on offline."""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import antishortcut.training.trainer as loop
from antishortcut.cli.options import execution_of
from antishortcut.config.recipe import Execution, Recipe, Run, teach_run
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir
from antishortcut.training import loggers as logs
from antishortcut.training.pipeline import Session, distill
from antishortcut.training.signals import Stopped


def test_a_missing_package_is_said_before_training(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.execution = Execution(accelerator="cpu", threads=1, log=("wandb",))
    monkeypatch.setattr(logs, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--log wandb: .* not installed; pip install 'antishortcut\[wandb\]'"):
        distill(recipe, session, method="ce", seed=1, suite="s")
    assert not (session.runs / "s" / "ce-s1").exists()


def test_an_unknown_log_is_one_line() -> None:
    with pytest.raises(UserError, match="--log: no log 'wand'; there are tensorboard, wandb"):
        execution_of(log="wand")
    assert execution_of(log="wandb, tensorboard").log == ("wandb", "tensorboard")


class Failing:
    """A log whose disk is full from the third entry on."""

    def __init__(self, run: Run, folder: Path, step: int) -> None:
        self.count = 0

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        self.count += 1
        if self.count > 2:
            raise OSError("no space left\non device")

    def close(self) -> None: ...


def test_a_log_that_fails_is_left_out_and_training_ends_as_ever(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = distill(recipe, session, method="ce", seed=1, suite="whole")
    session.quiet = False
    monkeypatch.setitem(logs.KINDS, "tensorboard", Failing)
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    one, two = (RunDir(each.folder(session.runs)) for each in (whole, run))
    assert one.history() == two.history()
    message = " ".join(capsys.readouterr().err.split())
    assert message.count("log tensorboard: OSError: no space left on device; training goes on without it") == 1


def test_a_log_that_cannot_be_opened_is_said_and_may_be_left_out_when_the_run_goes_on(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run: Run, folder: Path, step: int) -> Any:
        raise ConnectionError("not logged in")

    monkeypatch.setitem(logs.KINDS, "tensorboard", refuse)
    with pytest.raises(UserError, match="--log tensorboard: ConnectionError: not logged in"):
        distill(recipe, session, method="ce", seed=1, suite="s")
    session.execution = Execution(accelerator="cpu", threads=1, log=())
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    assert RunDir(run.folder(session.runs)).finished


def test_tensorboard_reads_the_repeated_steps_of_a_resumed_run_once(recipe: Recipe, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, values in ((0, (1.0, 2.0, 3.0)), (1, (5.0, 6.0))):  # the second resumes after step 1
        board = logs.TensorBoard(teach_run(recipe, "fingerprint"), tmp_path, start)
        for number, value in enumerate(values, start=start + 1):
            board.add({"loss": value, "lr": 0.5}, number)
        board.close()
        time.sleep(1.1)  # files are put in order by the second they were begun in
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 5.0), (3, 6.0)]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_offline_goes_on_as_the_same_run(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    session.execution = Execution(accelerator="cpu", threads=1, log=("wandb", "tensorboard"))
    original = loop.Trainer._step

    def step(self: loop.Trainer, batch: Any) -> float:
        rate = original(self, batch)
        if self.done == 5:
            signal.raise_signal(signal.SIGTERM)
        return rate

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_step", step)
        with pytest.raises(Stopped):
            distill(recipe, session, method="ce", seed=1, suite="s")
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    files = sorted((run.folder(session.runs) / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1  # the same run, goes on
    assert files[0].name.startswith(f"run-{run.hash}-")
    assert b"iid/accuracy" in files[1].read_bytes()
    assert "traceback" not in capfd.readouterr().err.lower()
