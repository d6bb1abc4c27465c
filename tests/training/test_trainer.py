"""The loop: what it leaves behind, that it resumes exactly, and that it stops in good order."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import antishortcut.teachers.selection as choice
import antishortcut.training.trainer as loop
from antishortcut.config.recipe import Execution, Recipe, load_recipe
from antishortcut.errors import UserError
from antishortcut.methods import METHODS
from antishortcut.run_dir import RunDir
from antishortcut.training.checkpoint import load_checkpoint, save_checkpoint
from antishortcut.training.fabric import build_fabric
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.training.signals import Stopped


def outcome(folder: RunDir) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    return load_file(folder.student), folder.history()


def equal(one: RunDir, two: RunDir) -> None:
    (weights, rows), (rest, other_rows) = outcome(one), outcome(two)
    assert weights.keys() == rest.keys()
    assert all(torch.equal(weights[key], rest[key]) for key in weights)
    assert rows == other_rows


def test_a_finished_run_has_what_it_promises(recipe: Recipe, session: Session) -> None:
    run = distill(recipe, session, method="asd", seed=1, suite="s")
    folder = RunDir(run.folder(session.runs))
    assert folder.path == session.runs / "s" / "asd-s1"
    there = {path.name for path in folder.path.iterdir()} - {".lock"}
    # equal widths: no projector, but the queue is state of the method
    assert there == {
        "run.json",
        "metrics.jsonl",
        "result.json",
        "student.safetensors",
        "method.safetensors",
        "tensorboard",
    }
    result = folder.result()
    assert result["set"] == "iid"
    assert result["steps"] == 16
    assert result["last"]["epoch"] == 2
    assert result["best"]["accuracy"] >= result["last"]["accuracy"]
    rows = folder.history()
    assert [row["step"] for row in rows if "terms" in row] == list(range(1, 17))
    assert [row["epoch"] for row in rows if "scores" in row] == [1.0, 2.0]
    assert set(rows[-2]["terms"]) == {"task", "kd", "tc", "ss"}
    assert rows[-2]["loss"] == pytest.approx(sum(rows[-2]["terms"].values()))
    assert any((folder.path / "tensorboard").iterdir())
    written = json.loads((folder.path / "run.json").read_text())
    assert written["hash"] == run.hash
    assert written["execution"]["accelerator"] == "cpu"
    assert written["run"]["options"]["temperature"] == 0.07  # defaults are written out
    assert "torch" in written["versions"]


def test_a_finished_run_is_not_repeated(recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    run = distill(recipe, session, method="kd", seed=1, suite="s")
    before = RunDir(run.folder(session.runs)).result()
    left = [
        folder / "resume" / "000000008-0.pt"
        for folder in (run.folder(session.runs), teach(recipe, session).folder(session.runs))
    ]
    for state in left:  # as in a run that was killed as it ended
        state.parent.mkdir()
        state.write_bytes(b"")
    monkeypatch.setattr(loop, "Trainer", None)  # would fail if it trained again
    assert distill(recipe, session, method="kd", seed=1, suite="s") == run
    assert RunDir(run.folder(session.runs)).result() == before
    assert not any(state.parent.exists() for state in left)


def test_students_of_one_seed_start_alike_and_see_the_same_images(recipe: Recipe, session: Session) -> None:
    teach(recipe, session)
    sets = session.sets(recipe.data)
    pieces = []
    for method in ("ce", "asd"):
        run = distill(recipe.model_copy(update={"epochs": 1}), session, method=method, seed=7, suite=method)
        folder = RunDir(session.runs / "fresh" / method)
        fabric = build_fabric(session.execution)
        training = loop.Trainer(run, folder, session.runs, sets, fabric, session.execution)
        pieces.append((training.student.state_dict(), next(training.loader.epoch(0))))
    (weights, batch), (rest, other) = pieces
    assert all(torch.equal(weights[key], rest[key]) for key in weights)
    assert torch.equal(batch.image, other.image)


@pytest.mark.parametrize("method", METHODS)
def test_stopped_and_resumed_equals_uninterrupted(
    recipe: Recipe, session: Session, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "STEPS", 5)
    teach(recipe, session)
    whole = distill(recipe, session, method=method, seed=1, suite="whole").folder(session.runs)
    original = loop.Trainer._step
    stops = iter([3, 8, 13])  # inside an epoch, at its end, inside the next
    stop_at = next(stops)

    def step(self: loop.Trainer, batch: Any) -> float:
        rate = original(self, batch)
        if self.done == stop_at:
            signal.raise_signal(signal.SIGTERM)
        return rate

    monkeypatch.setattr(loop.Trainer, "_step", step)
    for following in (*stops, -1):
        with pytest.raises(Stopped) as caught:
            distill(recipe, session, method=method, seed=1, suite="parts")
        assert caught.value.code == 143
        stop_at = following
    pieces = distill(recipe, session, method=method, seed=1, suite="parts").folder(session.runs)
    equal(RunDir(whole), RunDir(pieces))
    assert not (pieces / "resume").exists()


def test_states_of_another_run_are_not_gone_on_from(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop.Trainer._step

    def step(self: loop.Trainer, batch: Any) -> float:
        signal.raise_signal(signal.SIGTERM)  # heard after the step
        return original(self, batch)

    monkeypatch.setattr(loop.Trainer, "_step", step)
    for seed in (1, 2):  # of the same shapes
        with pytest.raises(Stopped):
            distill(recipe, session, method="ce", seed=seed, suite="s")
    own, other = (session.runs / "s" / f"ce-s{seed}" for seed in (1, 2))
    shutil.rmtree(own / "resume")
    shutil.copytree(other / "resume", own / "resume")
    shutil.copy(other / "metrics.jsonl", own)
    with pytest.raises(UserError, match="a state of another run"):
        distill(recipe, session, method="ce", seed=1, suite="s")


def _other_momentum(state: dict[str, Any]) -> None:
    state["optimizer"]["param_groups"][0]["momentum"] = "x"


def _other_averages(state: dict[str, Any]) -> None:
    state["optimizer"]["state"][0] = {"momentum_buffer": torch.zeros(3, 3)}


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": "x"},
        {"seconds": float("nan")},
        {"best": None},
        {"meter": {"task": "x"}},
        {"log": (-5, 3)},
        {"log": "xy"},
        _other_momentum,
        _other_averages,
    ],
    ids=["word", "nan", "nothing", "meter", "below", "mark", "momentum", "averages"],
)
def test_a_state_of_other_kinds_of_values_is_refused_in_a_line(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    """Its checksum is right: somebody made it so. The log is gone, so nothing is compared with it first."""
    original = loop.Trainer._step

    def step(self: loop.Trainer, batch: Any) -> float:
        signal.raise_signal(signal.SIGTERM)
        return original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_step", step)
        with pytest.raises(Stopped):
            distill(recipe, session, method="ce", seed=1, suite="s")
    place = session.runs / "s" / "ce-s1"
    result = load_checkpoint(place / "resume")
    assert result is not None
    done, state = result
    assert state["step"] == done
    if callable(change):
        change(state)
    shutil.rmtree(place / "resume")
    (place / "metrics.jsonl").unlink()
    save_checkpoint(place / "resume", done, state if callable(change) else state | change)
    with pytest.raises(UserError, match="the saved state is of another run"):
        distill(recipe, session, method="ce", seed=1, suite="s")


def test_a_teacher_resumes_with_its_trajectory(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = []
    for name, stop in (("whole", -1), ("parts", 5)):
        here = Session(tmp_path / name, execution=Execution(accelerator="cpu", threads=1), quiet=True)
        original = loop.Trainer._step

        def step(self: loop.Trainer, batch: Any, stop: int = stop, original: Any = original) -> float:
            rate: float = original(self, batch)
            if self.done == stop:
                signal.raise_signal(signal.SIGINT)
            return rate

        with monkeypatch.context() as patch:
            patch.setattr(loop.Trainer, "_step", step)
            if stop > 0:
                with pytest.raises(Stopped):
                    teach(recipe, here)
        run = teach(recipe, here)
        manifests.append((run.folder(here.runs) / "manifest.json").read_text())
    assert manifests[0] == manifests[1]  # with the sha256 of every state


def test_a_run_whose_log_is_damaged_or_gone_says_so(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session.quiet = False
    teach(recipe, session)
    original = loop.Trainer._step

    def step(self: loop.Trainer, batch: Any) -> float:
        rate = original(self, batch)
        if self.done == 6:
            signal.raise_signal(signal.SIGTERM)
        return rate

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_step", step)
        with pytest.raises(Stopped):
            distill(recipe, session, method="kd", seed=1, suite="s")
    log = session.runs / "s" / "kd-s1" / "metrics.jsonl"
    data = log.read_bytes()
    log.write_bytes(data.replace(b"lr", b"rite", 1))
    with pytest.raises(UserError, match=r"metrics.jsonl: not what was logged .*remove it to go on without its rows"):
        distill(recipe, session, method="kd", seed=1, suite="s")
    log.unlink()
    capsys.readouterr()
    run = distill(recipe, session, method="kd", seed=1, suite="s")
    message = capsys.readouterr()
    assert "was gone: what was logged up to step 6 is missing there" in " ".join((message.out + message.err).split())
    assert RunDir(run.folder(session.runs)).history()[0]["step"] == 7


def test_accumulation_sees_the_same_batches(recipe: Recipe, session: Session) -> None:
    """CE without batch statistics would be equal; with them, half batches differ a little, but every image is used."""
    split = recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"accumulate": 3})})
    whole, pieces = (
        distill(r, session, method="ce", seed=1, suite=n) for r, n in ((recipe, "whole"), (split, "parts"))
    )
    one, two = (RunDir(run.folder(session.runs)).history()[0] for run in (whole, pieces))
    assert one["terms"]["task"] == pytest.approx(two["terms"]["task"], rel=0.2)
    assert whole.hash != pieces.hash


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_state(recipe: Recipe, session: Session) -> None:
    session.execution = Execution(accelerator="cpu", threads=1, save_every=0)
    mad = load_recipe(str(session.runs.parent / "tiny.toml"), ["optim.lr=1e30"])
    with pytest.raises(UserError, match=r"not finite at step \d+: .*task.*the state after step \d+ is kept"):
        distill(mad, session, method="ce", seed=1, suite="mad")
    result = load_checkpoint(session.runs / "mad" / "ce-s1" / "resume")
    assert result is not None
    assert all(torch.isfinite(value).all() for value in result[1]["meter"].values())


def test_bfloat16_goes_through_the_command(recipe: Recipe, session: Session) -> None:
    session.execution = Execution(accelerator="cpu", threads=1, precision="bf16-mixed")
    run = distill(recipe, session, method="asd", seed=1, suite="s")
    folder = RunDir(run.folder(session.runs))
    assert folder.read()[1]["precision"] == "bf16-mixed"
    assert all(value.dtype != torch.bfloat16 for value in load_file(folder.student).values())
    with pytest.raises(UserError, match="16-mixed needs a GPU"):
        build_fabric(Execution(accelerator="cpu", precision="16-mixed"))


def test_what_cannot_be_trained_is_said_before_the_teacher_is_and_leaves_nothing(tiny: Path, session: Session) -> None:
    for wrong, text in (("student.name=nope", "nope"), ("teacher.early=12%", "has no state '12%'")):
        with pytest.raises(UserError, match=text):
            distill(load_recipe(str(tiny), [wrong]), session, method="asd", seed=1, suite="s")
    assert not session.runs.exists()


def test_the_same_name_for_another_run_is_refused(recipe: Recipe, session: Session) -> None:
    distill(recipe, session, method="ce", seed=1, suite="s")
    longer = recipe.model_copy(update={"epochs": 3})
    with pytest.raises(UserError, match="epochs: 2 there, 3 here"):
        distill(longer, session, method="ce", seed=1, suite="s")


def test_a_validation_split_chooses_instead_of_the_test_set(recipe: Recipe, session: Session) -> None:
    held = recipe.model_copy(update={"data": recipe.data.model_copy(update={"val_fraction": 0.25})})
    run = distill(held, session, method="ce", seed=1, suite="s")
    assert RunDir(run.folder(session.runs)).result()["set"] == "val"
    assert len(session.sets(held.data).train) == 192


def test_damaged_states_fall_back_to_the_one_before(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"x": torch.tensor(step)})
    assert len(list(tmp_path.iterdir())) == 2
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:-10])
    result = load_checkpoint(tmp_path)
    assert result is not None
    assert result[0] == 2
    for path in tmp_path.iterdir():
        path.write_bytes(b"junk")
    with pytest.raises(UserError, match="every saved state is damaged"):
        load_checkpoint(tmp_path)


def test_whole_data_directions_are_prepared_once_and_resume(recipe: Recipe, session: Session) -> None:
    run = distill(
        recipe, session, method="asd", seed=1, suite="s", options={"subspace": "dataset", "select": "abandoned"}
    )
    weights = load_file(RunDir(run.folder(session.runs)).method)
    saved = weights["loss.basis.vectors"]
    assert torch.allclose(saved.T @ saved, torch.eye(4), atol=1e-5)


def test_a_section_for_no_method_is_a_slip(recipe: Recipe, session: Session) -> None:
    odd = recipe.model_copy(update={"methods": {"adsd": {"queue": 64}}})
    with pytest.raises(UserError, match="unknown method 'adsd'"):
        distill(odd, session, method="kd", seed=1, suite="s")


def test_a_begun_run_says_that_it_keeps_its_execution_settings(
    recipe: Recipe, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    folder = RunDir(run.folder(session.runs))
    (folder.path / "result.json").unlink()
    other = Session(session.runs, execution=Execution(accelerator="cpu", threads=1, workers=3, save_every=1e9))
    other.fit(run)
    assert "goes on as it began: workers 0, not 3" in capsys.readouterr().err
