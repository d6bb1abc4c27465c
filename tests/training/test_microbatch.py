"""Out of memory: micro-batches are halved until a step fits, and what does not fit at all is one line."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import antishortcut.training.trainer as loop
from antishortcut.config.recipe import Execution, Recipe
from antishortcut.errors import UserError
from antishortcut.models import Network
from antishortcut.run_dir import RunDir
from antishortcut.training.microbatch import is_out_of_memory
from antishortcut.training.pipeline import Session, distill


def outcome(run: Any, session: Session) -> tuple[dict[str, Tensor], list[dict[str, Any]], dict[str, Any]]:
    folder = RunDir(run.folder(session.runs))
    return load_file(folder.student), folder.history(), folder.read()[1]


def limit_training_batches(monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    """Networks run out of memory when they train on more images than this."""
    forward = Network.forward

    def limited(self: Network, image: Tensor) -> Any:
        if self.training and len(image) > images:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(self, image)

    monkeypatch.setattr(Network, "forward", limited)


def test_auto_halves_the_micro_batch_until_it_fits(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limit_training_batches(monkeypatch, 8)
    results = []
    for name, count in (("auto", "auto"), ("four", 4)):
        session.execution = Execution.model_validate({"accelerator": "cpu", "threads": 1, "micro_batches": count})
        session.quiet = name != "auto"
        results.append(outcome(distill(recipe, session, method="ce", seed=1, suite=name), session))
    (weights, history, execution), (expected, expected_history, _) = results
    assert execution["micro_batches"] == 4
    assert all(torch.equal(weights[key], expected[key]) for key in expected)  # the trial leaves no trace
    assert history == expected_history
    message = " ".join(capsys.readouterr().err.split())
    assert "a batch of 32 does not fit: using 4 micro-batches" in message


def test_auto_keeps_a_batch_that_fits_in_one_piece(recipe: Recipe, session: Session) -> None:
    session.execution = Execution(accelerator="cpu", threads=1, micro_batches="auto")
    short = recipe.model_copy(update={"epochs": 1})
    assert outcome(distill(short, session, method="asd", seed=1, suite="s"), session)[2]["micro_batches"] == 1


def test_micro_batches_multiply_those_of_the_recipe(recipe: Recipe, session: Session) -> None:
    split = recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"accumulate": 2}), "epochs": 1})
    whole = recipe.model_copy(update={"epochs": 1})
    histories = []
    for name, each, count in (("a", split, 2), ("b", whole, 4)):
        session.execution = Execution(accelerator="cpu", threads=1, micro_batches=count)
        histories.append(outcome(distill(each, session, method="ce", seed=1, suite=name), session)[1])
    assert histories[0] == histories[1]


def test_when_nothing_fits_one_line_says_so_and_no_folder_is_left(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_training_batches(monkeypatch, 1)
    session.execution = Execution(accelerator="cpu", threads=1, micro_batches="auto")
    with pytest.raises(UserError, match="not even 2 images at a time fit into memory"):
        distill(recipe, session, method="ce", seed=1, suite="s")
    assert not (session.runs / "s" / "ce-s1").exists()


def test_only_out_of_memory_errors_count() -> None:
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_run_that_does_not_fit_removes_only_what_it_wrote(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run.json too, or the next start would resume with the settings that did not fit."""
    folder = session.runs / "s" / "ce-s1"
    (folder / "scores").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    limit_training_batches(monkeypatch, 1)
    with pytest.raises(UserError, match="out of memory in step 1"):
        distill(recipe, session, method="ce", seed=1, suite="s")
    assert {path.name for path in folder.iterdir()} == {"scores", "notes.txt"}


@pytest.mark.parametrize("save_every", [0.0, 1e9])
def test_running_out_of_memory_is_one_line(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, save_every: float
) -> None:
    session.execution = Execution(accelerator="cpu", threads=1, save_every=save_every)
    original = loop.Trainer._train_step

    def step(self: loop.Trainer, batch: Any) -> float:
        if self.done == 4:
            torch.empty(2**60, dtype=torch.uint8)  # the allocator's own message
        return original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_train_step", step)
        with pytest.raises(UserError) as caught:
            distill(recipe, session, method="ce", seed=1, suite="s")
    message, folder = str(caught.value), session.runs / "s" / "ce-s1"
    assert message.startswith("out of memory in step 5; ")
    assert "--micro-batches auto" in message
    assert "\n" not in message
    if save_every:  # nothing was saved yet, so the run may start again with other settings
        assert not folder.exists()
        return
    assert "the state after step 4 is saved" in message
    resumed = outcome(distill(recipe, session, method="ce", seed=1, suite="s"), session)
    whole = outcome(distill(recipe, session, method="ce", seed=1, suite="whole"), session)
    assert all(torch.equal(resumed[0][key], whole[0][key]) for key in whole[0])
    assert resumed[1] == whole[1]
