"""States kept from a loop of one's own: the right ones, whole, under the names of the bare model."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

import antishortcut
from antishortcut.cli import app
from antishortcut.config.recipe import TeacherSettings
from antishortcut.errors import UserError
from antishortcut.models import build
from antishortcut.run_dir import RunDir
from antishortcut.teachers.imported import imported_states
from antishortcut.teachers.snapshots import KEEP, Snapshots, load_state
from antishortcut.teachers.trajectory import Trajectory, snapshot_steps


class Counter(nn.Module):
    """Its only weight says how many steps it has made."""

    def __init__(self, step: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), float(step)))


def loop(folder: Path, first: int, last: int, total: int = 20, **options: object) -> Snapshots:
    """Steps `first` to `last` of a training, in a process of its own."""
    snapshots = Snapshots(folder, total_steps=total, **options)  # type: ignore[arg-type]
    for step in range(first, last + 1):
        snapshots(Counter(step), step)
    return snapshots


def listed(folder: Path) -> dict[str, int]:
    """Which states the manifest lists, and of which step they are."""
    states = json.loads((folder / "manifest.json").read_text())["states"]
    return {label: entry["step"] for entry in states for label in entry["labels"]}


def held(folder: Path) -> dict[str, float]:
    """What was really in the weights of each listed state."""
    return {label: float(load_state(folder, label)["weight"][0]) for label in listed(folder)}


def test_the_right_states_are_kept(tmp_path: Path) -> None:
    loop(tmp_path, 1, 20, keep=(5, 15, 50))
    assert held(tmp_path) == {"5%": 1, "15%": 3, "50%": 10, "100%": 20, "final": 20}
    names = {path.name for path in (tmp_path / "snapshots").iterdir()}
    assert names == {"5%.safetensors", "15%.safetensors", "50%.safetensors", "final.safetensors"}
    assert float(load_state(str(tmp_path))["weight"][0]) == 20


@pytest.mark.parametrize("total", [1, 7, 100, 1234])
def test_they_are_those_of_asd_teach(tmp_path: Path, total: int) -> None:
    assert TeacherSettings.model_fields["keep"].default == KEEP
    due = Snapshots(tmp_path, total_steps=total).schedule
    due[total].remove("final")
    assert due == snapshot_steps(KEEP, 1, total)


def test_the_untrained_model_is_kept_where_asked(tmp_path: Path) -> None:
    loop(tmp_path / "a", 0, 20, keep=(0, 50))
    assert held(tmp_path / "a") == {"0%": 0, "50%": 10, "100%": 20, "final": 20}
    loop(tmp_path / "b", 1, 20, keep=(0, 50))  # never shown
    assert "0%" not in listed(tmp_path / "b")


def test_states_that_fall_together_are_one_file(tmp_path: Path) -> None:
    loop(tmp_path, 1, 4, total=4, keep=(2, 5, 15, 50))
    assert held(tmp_path) == {"2%": 1, "5%": 1, "15%": 1, "50%": 2, "100%": 4, "final": 4}
    assert len(list((tmp_path / "snapshots").iterdir())) == 3


def test_a_resumed_loop_goes_on(tmp_path: Path) -> None:
    loop(tmp_path, 1, 7, keep=(15, 30, 50))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "snapshots").iterdir()}
    loop(tmp_path, 8, 20, keep=(15, 30, 50))
    assert held(tmp_path) == {"15%": 3, "30%": 6, "50%": 10, "100%": 20, "final": 20}
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())  # what is there stays


def test_what_is_listed_led_to_the_last(tmp_path: Path) -> None:
    """A training begun anew, or resumed before a kept state, does not mix with what another way led to."""
    loop(tmp_path, 1, 20, keep=(15, 50))
    snapshots = Snapshots(tmp_path, total_steps=20, keep=(15, 50))
    for step in range(1, 6):
        snapshots(Counter(100 + step), step)
    assert held(tmp_path) == {"15%": 103}
    with pytest.raises(UserError, match=r"no snapshot 'final': training has not finished .*Snapshots.finish"):
        load_state(tmp_path)


def test_trainings_of_other_lengths_are_not_mixed(tmp_path: Path) -> None:
    """15 % of 20 steps is not 15 % of 100: refused before a step is trained, and nothing is written."""
    begun = Snapshots(tmp_path, total_steps=100)  # at a time when nothing was there
    loop(tmp_path, 1, 20)
    assert json.loads((tmp_path / "manifest.json").read_text())["total_steps"] == 20
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    match = r"total_steps=20, this one has total_steps=100; pass 20 to resume it, use another folder"
    with pytest.raises(ValueError, match=match):
        Snapshots(tmp_path, total_steps=100)
    with pytest.raises(ValueError, match=match):
        begun(Counter(2), 2)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    loop(tmp_path, 4, 6)  # the same length goes on
    assert held(tmp_path) == {"2%": 1, "5%": 1, "10%": 2, "15%": 3, "20%": 4, "30%": 6}


def test_a_loop_that_goes_on_past_its_end(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"step 21 is past total_steps=20: .* finish\(model\)") as caught:
        snapshots = loop(tmp_path, 1, 25, keep=(15,))
    assert [Path(warning.filename).name for warning in caught] == ["test_snapshots.py"]  # once, and where it was called
    assert held(tmp_path) == {"15%": 3, "100%": 20, "final": 20}
    path = snapshots.finish(Counter(25))
    assert path is not None
    assert path.name == "final.safetensors"
    assert snapshots.finish(Counter(25)) is None
    assert held(tmp_path) == {"15%": 3, "100%": 25, "final": 25}
    assert [state.labels for state in imported_states(TeacherSettings(name="cnn-8", final=str(tmp_path)))] == [
        ["15%"], ["100%", "final"],
    ]  # fmt: skip
    with pytest.warns(UserWarning, match="step 24 is past"):  # what is repeated after a crash
        loop(tmp_path, 24, 27, keep=(15,)).finish(Counter(27))
    assert held(tmp_path) == {"15%": 3, "100%": 27, "final": 27}


def test_a_loop_that_goes_on_after_it_was_stopped(tmp_path: Path) -> None:
    """The end that was none is forgotten, the share that was kept with it is not."""
    loop(tmp_path, 1, 10, keep=(50, 75)).finish(Counter(10))

    loop(tmp_path, 11, 15, keep=(50, 75))
    assert held(tmp_path) == {"50%": 10, "75%": 15}
    loop(tmp_path, 16, 20, keep=(50, 75))
    assert held(tmp_path) == {"50%": 10, "75%": 15, "100%": 20, "final": 20}


def test_one_step_of_many_batches_is_kept_once(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, total_steps=4, keep=(50,))
    built = [snapshots(Counter(step), step) for step in (1, 1, 2, 2, 3, 3, 4, 4)]
    assert [path.name if path else None for path in built] == [
        None, None, "50%.safetensors", None, None, None, "final.safetensors", None,
    ]  # fmt: skip


def test_a_loop_that_calls_now_and_then_keeps_the_next_state(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, total_steps=20, keep=(15, 50))
    for step in range(2, 19, 4):  # 2, 6, 10, …, 18
        snapshots(Counter(step), step)
    with pytest.warns(UserWarning, match="step 22 is past total_steps=20"):
        snapshots(Counter(22), 22)
    assert listed(tmp_path) == {"15%": 6, "50%": 10, "100%": 22, "final": 22}
    assert snapshots.finish(Counter(22)) is None


def test_a_loop_that_first_calls_late_keeps_the_latest_state_that_was_due(tmp_path: Path) -> None:
    """Called after every epoch of 100 steps: the share nearest before it, not all that have passed."""
    snapshots = Snapshots(tmp_path, total_steps=600)
    saved = [snapshots(nn.Linear(2, 2), step) for step in range(100, 601, 100)]
    assert [path.stem for path in saved if path] == ["15%", "20%", "50%", "75%", "final"]
    resumed = Snapshots(tmp_path, total_steps=600)
    assert resumed(nn.Linear(2, 2), 401) is None  # 50 % was kept at 300, and 75 % is due at 450


def test_a_loop_that_stops_early_has_a_final_state(tmp_path: Path) -> None:
    snapshots = loop(tmp_path, 1, 10, keep=(15, 50))
    path = snapshots.finish(Counter(10))
    assert path is not None
    assert path.name == "final.safetensors"
    assert snapshots.finish(Counter(10)) is None
    assert held(tmp_path) == {"15%": 3, "50%": 10, "final": 10}
    assert loop(tmp_path / "whole", 1, 20).finish(Counter(20)) is None
    assert Snapshots(tmp_path / "none", total_steps=3).finish(Counter()) is None


def test_wrappers_leave_no_trace_and_tied_weights_are_kept(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # a name a wrapper has too
            self.first = nn.Linear(4, 4)
            self.last = nn.Linear(4, 4)
            self.last.weight = self.first.weight
            self.register_buffer("count", torch.tensor(3))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.first(self.module(x).mean((2, 3))))
            return out

    net = Net()
    half = Net()
    half.load_state_dict(net.state_dict())
    half.first = torch.compile(half.first, backend="eager")  # type: ignore[assignment]
    inside: Any = torch.compile(net, backend="eager")
    outside: Any = torch.compile(nn.DataParallel(net), backend="eager")
    for number, model in enumerate((net, nn.DataParallel(inside), outside, half)):
        folder = tmp_path / str(number)
        Snapshots(folder, total_steps=1)(model, 1)
        state = load_state(folder)
        assert {key: value.shape for key, value in state.items()} == {k: v.shape for k, v in net.state_dict().items()}
        fresh = Net()
        fresh.load_state_dict(state)
        assert all(torch.equal(value, net.state_dict()[key]) for key, value in fresh.state_dict().items())


def test_a_sharded_model_is_refused(tmp_path: Path) -> None:
    class Part(Tensor):
        def full_tensor(self) -> Tensor:
            return self

    class FullyShardedDataParallel(nn.Module):
        pass

    model = nn.Module()
    model.register_buffer("part", torch.zeros(2).as_subclass(Part))
    for sharded in (model, nn.Sequential(FullyShardedDataParallel())):
        with pytest.raises(UserError, match="sharded"):
            Snapshots(tmp_path, total_steps=1)(sharded, 1)


def test_killed_while_writing_nothing_is_half_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop(tmp_path, 1, 5, keep=(15, 50))
    before = (tmp_path / "manifest.json").read_bytes()

    def killed(handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            loop(tmp_path, 6, 10, keep=(15, 50))
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert not (tmp_path / "snapshots" / "50%.safetensors").exists()
    loop(tmp_path, 6, 20, keep=(15, 50))
    assert held(tmp_path) == {"15%": 3, "50%": 10, "100%": 20, "final": 20}
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("last", range(12))
def test_killed_while_replacing_all_that_is_listed_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Wherever it happens: as a final state takes the place of another, which was 50 % as well."""
    loop(tmp_path, 1, 10, keep=(15, 50)).finish(Counter(10))
    resumed = loop(tmp_path, 11, 19, keep=(15, 50))
    left, fsync, replace = [last], os.fsync, os.replace

    def alive() -> int:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return left[0]

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(os, "fsync", lambda handle: (alive(), fsync(handle)))
        patch.setattr(os, "replace", lambda path, place: (alive(), replace(path, place)))
        resumed(Counter(20), 20)
    assert held(tmp_path).items() >= {"15%": 3, "50%": 10}.items()  # each with the checksum that is listed
    assert held(tmp_path).get("final", 20) in (10, 20)
    loop(tmp_path, 19, 20, keep=(15, 50))
    assert held(tmp_path) == {"15%": 3, "50%": 10, "100%": 20, "final": 20}
    assert not list(tmp_path.rglob("*.part"))


def test_percentages_are_read_as_numbers_or_text(tmp_path: Path) -> None:
    loop(tmp_path, 1, 1000, total=1000, keep=("0.5%", 1, 15.0, "50%"))
    assert listed(tmp_path) == {"0.5%": 5, "1%": 10, "15%": 150, "50%": 500, "100%": 1000, "final": 1000}
    states: list[Any] = [15, 15.0, np.int64(15), "15%"]
    assert {float(load_state(tmp_path, state)["weight"][0]) for state in states} == {150}
    with pytest.raises(UserError, match=r"no snapshot '16%': did you mean .*'15%'"):
        load_state(tmp_path, 16)


PERCENT = r"is in percent: write 15 for 15 %, or '0.15%'"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"keep": [0.15]}, ValueError, PERCENT),
        ({"keep": [50, np.float32(0.15)]}, ValueError, "is in percent"),
        ({"keep": ["x"]}, ValueError, "^keep takes percentages"),
        ({"keep": [120]}, ValueError, "between 0 and 100"),
        ({"keep": [float("nan")]}, ValueError, "^keep "),
        ({"keep": 15}, TypeError, "^keep must be a list"),
        ({"keep": "15%"}, TypeError, "^keep must be a list"),
        ({"keep": [True]}, TypeError, "^keep takes percentages"),
        ({"total_steps": "20"}, TypeError, "^total_steps must be an integer"),
        ({"total_steps": 20.5}, TypeError, "^total_steps must be an integer"),
        ({"total_steps": True}, TypeError, "^total_steps must be an integer"),
        ({"total_steps": 0}, ValueError, "^total_steps must be at least 1"),
        ({"step": 3.5}, TypeError, "^step must be an integer"),
        ({"step": -1}, ValueError, "^step must be at least 0"),
        ({"model": {}}, TypeError, "^model must be an nn.Module"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: Any, error: type[Exception], message: str) -> None:
    values = {"total_steps": 20.0, "keep": KEEP, "model": Counter(), "step": 4} | arguments
    with pytest.raises(error, match=message):
        Snapshots(tmp_path, values["total_steps"], values["keep"])(values["model"], values["step"])
    assert not list(tmp_path.iterdir())


def test_missing_and_damaged_snapshots_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no snapshots"):
        load_state(tmp_path)
    loop(tmp_path, 1, 20)
    with pytest.raises(ValueError, match=PERCENT):
        load_state(tmp_path, 0.15)
    path = tmp_path / "snapshots" / "15%.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="missing or damaged"):
        load_state(tmp_path, "15%")
    path.unlink()
    with pytest.raises(UserError, match="missing or damaged"):
        load_state(tmp_path, "15%")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest.json is damaged"):
        load_state(tmp_path, "30%")


def test_the_folder_is_laid_out_as_that_of_a_teacher(tmp_path: Path) -> None:
    loop(tmp_path, 1, 20)
    trajectory = Trajectory(RunDir(tmp_path))
    for state in ("15%", "final"):
        assert torch.equal(trajectory.weights(state)["weight"], load_state(tmp_path, state)["weight"])
    trajectory.entries[-1]["labels"] = ["100%"]  # and the other way round
    trajectory.write()
    assert float(load_state(tmp_path, "final")["weight"][0]) == 20


def test_asd_audit_takes_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("antishortcut.report.audit_page.draw_all", lambda figure, folder: None)
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("ape", "bee"):
            (folder := tmp_path / "own" / split / name).mkdir(parents=True)
            for number in range(6):
                Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    snapshots = Snapshots("teacher-states", total_steps=10, keep=(10,))
    for step in range(1, 11):
        torch.manual_seed(step)
        snapshots(build("cnn-2-8", 2, image_size=16), step)
    states = Path("teacher-states") / "snapshots"
    words = ["--final", f"{states}/final.safetensors", "--early", f"{states}/10%.safetensors", "--model", "cnn-2-8"]
    where = ["--data", "folder:own", "--image-size", "16", "--threads", "1", "--json"]
    result = CliRunner().invoke(app, ["audit", *words, *where], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["early"] == "10%"


def test_the_names_are_public() -> None:
    assert antishortcut.Snapshots is Snapshots
    assert antishortcut.load_state is load_state
