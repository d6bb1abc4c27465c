"""How many processes decode a run's images: the machine's own number unless said, and the same run with any."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from antishortcut import hardware as machine
from antishortcut.cli.options import execution_of
from antishortcut.config.recipe import Execution, Recipe
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir
from antishortcut.training.fabric import resolve_execution
from antishortcut.training.pipeline import Session, distill
from antishortcut.training.signals import Stopped
from antishortcut.training.trainer import Trainer
from tests.data.official import make_folder


def test_a_worker_for_every_core_or_thread_a_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 6)
    monkeypatch.setattr("sys.platform", "linux")
    assert Execution().workers == "auto"
    assert resolve_execution(Execution()).workers == 6
    assert resolve_execution(Execution(devices=2)).workers == 3
    assert resolve_execution(Execution(threads=1)).workers == 1  # as much of the machine as it was given
    assert resolve_execution(Execution(threads=8)).workers == 6
    assert resolve_execution(Execution(workers=0)).workers == 0
    assert resolve_execution(Execution(workers=9, threads=1)).workers == 9


def test_the_option() -> None:
    assert execution_of(workers="auto").workers == "auto"
    assert execution_of(workers="3").workers == 3
    for wrong in ("-1", "many", "1.5"):
        with pytest.raises(UserError, match=r"^--workers: Input should be") as caught:
            execution_of(workers=wrong)
        assert "\n" not in str(caught.value)


def on_disk(recipe: Recipe, root: Path) -> Recipe:
    """Six images of 72 × 72 that stay on disk, in batches of two."""
    data = recipe.data.model_copy(update={"name": f"folder:{root}", "image_size": 72, "options": {}})
    data = data.model_copy(update={"augment": "imagenet"})
    optim = recipe.optim.model_copy(update={"batch": 2})
    return recipe.model_copy(update={"data": data, "optim": optim, "epochs": 2})


def test_a_run_says_its_workers_and_is_the_same_with_any(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 2)
    recipe, students = on_disk(recipe, make_folder(tmp_path / "own")), []
    for name, workers in (("none", 0), ("two", 2), ("auto", "auto")):
        execution = Execution.model_validate({"accelerator": "cpu", "save_every": 1e9, "workers": workers})
        here = Session(tmp_path / name, execution=execution, quiet=True)
        run = distill(recipe, here, method="ce", seed=1, suite="s")
        folder = RunDir(run.folder(here.runs))
        assert folder.read()[1]["workers"] == (0 if workers == 0 else 2)
        students.append(load_file(folder.student))
    for student in students[1:]:
        assert all(torch.equal(student[key], value) for key, value in students[0].items())


def test_a_run_that_goes_on_is_silent_about_workers_nobody_asked_for(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(tmp_path / "runs", execution=Execution(accelerator="cpu", threads=1, save_every=1e9))
    real = Trainer._step

    def stops(self: Trainer, batch: object) -> float:
        if self.done == 3:
            raise Stopped(2, self.done)
        return real(self, batch)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stops)
        with pytest.raises(Stopped):
            distill(recipe, session, method="ce", seed=1, suite="s")
    distill(recipe, session, method="ce", seed=1, suite="s")
    assert "workers" not in capsys.readouterr().err
