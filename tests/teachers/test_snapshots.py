"""Snapshots from any training loop: at the right steps, whole, under the names of the bare model."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from antishortcut import Snapshots, load_state
from antishortcut.config.recipe import TeacherSettings
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir
from antishortcut.teachers.imported import imported_states
from antishortcut.teachers.snapshots import KEEP
from antishortcut.teachers.trajectory import Trajectory, snapshot_steps


class Counter(nn.Module):
    """Its only weight is the number of its steps."""

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
    """The step of every state in the manifest."""
    states = json.loads((folder / "manifest.json").read_text())["states"]
    return {label: entry["step"] for entry in states for label in entry["labels"]}


def saved(folder: Path) -> dict[str, float]:
    """The step of every state by its weights."""
    return {label: float(load_state(folder, label)["weight"][0]) for label in listed(folder)}


@pytest.mark.parametrize(
    ("first", "total", "keep", "expected", "files"),
    [
        (1, 20, (5, 15, 50), {"5%": 1, "15%": 3, "50%": 10}, 4),
        (0, 20, (0, 50), {"0%": 0, "50%": 10}, 3),
        (1, 20, (0, 50), {"50%": 10}, 2),  # the untrained model was not passed
        (1, 4, (2, 5, 15, 50), {"2%": 1, "5%": 1, "15%": 1, "50%": 2}, 3),  # one file for a step
        (1, 1000, ("0.5%", 1, 15.0, "50%"), {"0.5%": 5, "1%": 10, "15%": 150, "50%": 500}, 5),
    ],
)
def test_states_are_saved_at_their_percentage(
    tmp_path: Path, first: int, total: int, keep: tuple[Any, ...], expected: dict[str, int], files: int
) -> None:
    loop(tmp_path, first, total, total, keep=keep)
    assert saved(tmp_path) == listed(tmp_path) == expected | {"100%": total, "final": total}
    names = {path.name for path in (tmp_path / "snapshots").iterdir()}
    assert "final.safetensors" in names
    assert len(names) == files
    assert float(load_state(str(tmp_path))["weight"][0]) == total


@pytest.mark.parametrize("total", [1, 7, 100, 1234])
def test_the_schedule_is_that_of_asd_teach(tmp_path: Path, total: int) -> None:
    assert TeacherSettings.model_fields["keep"].default == KEEP
    schedule = Snapshots(tmp_path, total_steps=total).schedule
    schedule[total].remove("final")
    assert schedule == snapshot_steps(KEEP, 1, total)


def test_a_resumed_loop_continues(tmp_path: Path) -> None:
    loop(tmp_path, 1, 7, keep=(15, 30, 50))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "snapshots").iterdir()}
    loop(tmp_path, 8, 20, keep=(15, 30, 50))
    assert saved(tmp_path) == {"15%": 3, "30%": 6, "50%": 10, "100%": 20, "final": 20}
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_a_loop_that_starts_again_drops_later_states(tmp_path: Path) -> None:
    loop(tmp_path, 1, 20, keep=(15, 50))
    snapshots = Snapshots(tmp_path, total_steps=20, keep=(15, 50))
    for step in range(1, 6):
        snapshots(Counter(100 + step), step)
    assert saved(tmp_path) == {"15%": 103}
    with pytest.raises(UserError, match=r"no snapshot 'final': training has not finished .*Snapshots.finish"):
        load_state(tmp_path)


def test_a_training_of_another_length_is_refused(tmp_path: Path) -> None:
    earlier = Snapshots(tmp_path, total_steps=100)
    loop(tmp_path, 1, 20)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    match = r"total_steps=20, this one has total_steps=100; pass 20 to resume it, use another folder"
    with pytest.raises(ValueError, match=match):
        Snapshots(tmp_path, total_steps=100)
    with pytest.raises(ValueError, match=match):
        earlier(Counter(2), 2)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_loop_past_total_steps_is_warned_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"step 21 is past total_steps=20: .* finish\(model\)") as caught:
        snapshots = loop(tmp_path, 1, 25, keep=(15,))
    assert [Path(warning.filename).name for warning in caught] == ["test_snapshots.py"]  # where it was called
    assert saved(tmp_path) == {"15%": 3, "100%": 20, "final": 20}
    path = snapshots.finish(Counter(25))
    assert path is not None
    assert path.name == "final.safetensors"
    assert snapshots.finish(Counter(25)) is None
    assert saved(tmp_path) == {"15%": 3, "100%": 25, "final": 25}
    states = imported_states(TeacherSettings(name="cnn-8", final=str(tmp_path)))
    assert [state.labels for state in states] == [["15%"], ["100%", "final"]]
    with pytest.warns(UserWarning, match="step 24 is past"):  # repeated after a crash
        loop(tmp_path, 24, 27, keep=(15,)).finish(Counter(27))
    assert saved(tmp_path) == {"15%": 3, "100%": 27, "final": 27}


def test_finish_saves_the_final_state_of_a_loop_that_stops_early(tmp_path: Path) -> None:
    snapshots = loop(tmp_path, 1, 10, keep=(50, 75))
    assert snapshots.finish(Counter(10)) == tmp_path / "snapshots" / "final.safetensors"
    assert snapshots.finish(Counter(10)) is None
    assert saved(tmp_path) == {"50%": 10, "final": 10}
    loop(tmp_path, 11, 15, keep=(50, 75))  # it continues after all
    assert saved(tmp_path) == {"50%": 10, "75%": 15}
    assert loop(tmp_path, 16, 20, keep=(50, 75)).finish(Counter(20)) is None
    assert saved(tmp_path) == {"50%": 10, "75%": 15, "100%": 20, "final": 20}
    assert Snapshots(tmp_path / "none", total_steps=3).finish(Counter()) is None


def test_a_step_of_many_micro_batches_is_saved_once(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, total_steps=4, keep=(50,))
    files = [snapshots(Counter(step), step) for step in (1, 1, 2, 2, 3, 3, 4, 4)]
    names = [None, None, "50%.safetensors", None, None, None, "final.safetensors", None]
    assert [path.name if path else None for path in files] == names


def test_if_called_every_few_steps_the_next_state_is_saved(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "a", total_steps=20, keep=(15, 50))
    for step in range(2, 19, 4):  # 2, 6, 10, …, 18
        snapshots(Counter(step), step)
    with pytest.warns(UserWarning, match="step 22 is past total_steps=20"):
        snapshots(Counter(22), 22)
    assert listed(tmp_path / "a") == {"15%": 6, "50%": 10, "100%": 22, "final": 22}
    assert snapshots.finish(Counter(22)) is None
    snapshots = Snapshots(tmp_path / "b", total_steps=600)  # after every epoch of 100 steps
    files = [snapshots(nn.Linear(2, 2), step) for step in range(100, 601, 100)]
    assert [path.stem for path in files if path] == ["15%", "20%", "50%", "75%", "final"]
    assert Snapshots(tmp_path / "b", total_steps=600)(nn.Linear(2, 2), 401) is None  # 75 % comes at 450


def test_names_of_wrappers_are_removed_and_tied_weights_saved(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("last", range(12))
def test_a_kill_at_any_moment_leaves_a_valid_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """While a final state replaces another one, which was 50 % as well."""
    loop(tmp_path, 1, 10, keep=(15, 50)).finish(Counter(10))
    resumed = loop(tmp_path, 11, 19, keep=(15, 50))
    calls, fsync, replace = iter(range(last)), os.fsync, os.replace

    def alive() -> bool:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return True

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(os, "fsync", lambda handle: alive() and fsync(handle))
        patch.setattr(os, "replace", lambda path, place: alive() and replace(path, place))
        resumed(Counter(20), 20)
    assert saved(tmp_path).items() >= {"15%": 3, "50%": 10}.items()  # with the checksums of the manifest
    assert saved(tmp_path).get("final", 20) in (10, 20)
    loop(tmp_path, 19, 20, keep=(15, 50))
    assert saved(tmp_path) == {"15%": 3, "50%": 10, "100%": 20, "final": 20}
    assert not list(tmp_path.rglob("*.part"))


PERCENT = r"is in percent: write 15 for 15 %, or '0.15%'"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"keep": [0.15]}, ValueError, PERCENT),
        ({"keep": ["x"]}, ValueError, "^keep takes percentages"),
        ({"keep": [120]}, ValueError, "between 0 and 100"),
        ({"keep": "15%"}, TypeError, "^keep must be a list"),
        ({"keep": [True]}, TypeError, "^keep takes percentages"),
        ({"total_steps": "20"}, TypeError, "^total_steps must be an integer"),
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


def test_missing_and_damaged_snapshots_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no snapshots"):
        load_state(tmp_path)
    loop(tmp_path, 1, 20)
    states: list[Any] = [15, 15.0, np.int64(15), "15%"]
    assert {float(load_state(tmp_path, state)["weight"][0]) for state in states} == {3}
    with pytest.raises(ValueError, match=PERCENT):
        load_state(tmp_path, 0.15)
    with pytest.raises(UserError, match=r"no snapshot '16%': did you mean .*'15%'"):
        load_state(tmp_path, 16)
    path = tmp_path / "snapshots" / "15%.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    for _ in ("damaged", "missing"):
        with pytest.raises(UserError, match="missing or damaged"):
            load_state(tmp_path, "15%")
        path.unlink(missing_ok=True)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest.json is damaged"):
        load_state(tmp_path, "30%")


def test_the_folder_has_the_layout_of_a_teacher(tmp_path: Path) -> None:
    loop(tmp_path, 1, 20)
    trajectory = Trajectory(RunDir(tmp_path))
    for state in ("15%", "final"):
        assert torch.equal(trajectory.weights(state)["weight"], load_state(tmp_path, state)["weight"])
    trajectory.entries[-1]["labels"] = ["100%"]  # and the other way round
    trajectory.write()
    assert float(load_state(tmp_path, "final")["weight"][0]) == 20
