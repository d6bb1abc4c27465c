"""The mean of the weights: by hand, as a run keeps it, and where it goes on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import antishortcut.training.trainer as loop
from antishortcut.config.recipe import Execution, Recipe, load_recipe
from antishortcut.run_dir import RunDir
from antishortcut.training.optim import WeightAverage, decay_at
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.training.signals import Stopped


def test_the_mean_is_the_one_of_a_loop_in_float64() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double()
    average = WeightAverage(network, 0.9)
    slow = {name: value.clone() for name, value in network.state_dict().items()}
    for step in range(30):
        network(torch.randn(4, 2, dtype=torch.float64))  # statistics move
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update(network, step)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, value in network.state_dict().items():
            slow[name] = value.clone() if value.dtype == torch.int64 else decay * slow[name] + (1 - decay) * value
    for name, value in average.network.state_dict().items():
        assert torch.allclose(value, slow[name], atol=1e-10), name
    assert int(average.network[1].num_batches_tracked) == 30  # type: ignore[index]
    assert not average.network.training
    assert not any(parameter.requires_grad for parameter in average.network.parameters())


def test_tied_weights_are_averaged_once() -> None:
    one, two = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    two.weight = one.weight
    network = nn.Sequential(one, two)
    nn.init.zeros_(one.weight)
    average = WeightAverage(network, 0.5)
    nn.init.ones_(one.weight)
    average.update(network, 1000)
    assert average.network.state_dict()["0.weight"].tolist() == [[0.5, 0.5]] * 2


@pytest.mark.parametrize("steps", [20, 200, 2000])
def test_an_early_mean_is_of_early_weights(steps: int) -> None:
    """Of weights that say when they were, the mean lags a tenth of the time that passed, and 1 / (1 − d) in the end."""
    mean = 0.0
    for step in range(steps):
        decay = decay_at(0.9999, step)
        mean = decay * mean + (1 - decay) * (step + 1)
    assert steps - mean == pytest.approx(steps / 10, abs=1)
    late = 0.0
    for step in range(steps):
        decay = decay_at(0.9, step)
        late = decay * late + (1 - decay) * (step + 1)
    assert steps - late <= min(steps / 10, 9) + 1


@pytest.fixture
def averaged(tiny: Path) -> Recipe:
    return load_recipe(str(tiny), ["optim.ema=0.9", "optim.mixup=0.4", "optim.cutmix=1.0", "optim.accumulate=3"])


def test_the_mean_is_judged_saved_and_logged_beside_the_raw(
    tiny: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining: list[loop.Trainer] = []
    original = loop.Trainer._finish

    def finish(self: loop.Trainer) -> None:
        remaining.append(self)
        original(self)

    monkeypatch.setattr(loop.Trainer, "_finish", finish)
    run = distill(load_recipe(str(tiny), ["optim.ema=0.9"]), session, method="ce", seed=1, suite="mean")
    plain = distill(load_recipe(str(tiny)), session, method="ce", seed=1, suite="plain")
    folder, other = RunDir(run.folder(session.runs)), RunDir(plain.folder(session.runs))
    saved, raw = load_file(folder.student), load_file(other.student)
    assert remaining[0].average is not None
    mean = remaining[0].average.network.state_dict()
    assert all(torch.equal(saved[name], mean[name]) for name in saved)
    now = remaining[0].student.state_dict()
    assert all(torch.equal(raw[name], now[name]) for name in raw)  # averaging does not touch training
    assert any(not torch.equal(saved[name], raw[name]) for name in raw)
    for row, reference in zip(folder.history(), other.history(), strict=True):
        if "scores" in row:
            assert row["raw"] == reference["scores"]
        else:
            assert row == reference
    assert folder.result()["raw"] == {k: v for k, v in other.result()["last"].items() if k != "epoch"}
    assert "raw" not in other.result()


def test_states_of_a_teacher_are_means_early_and_late(tiny: Path, session: Session) -> None:
    runs = [teach(load_recipe(str(tiny), more), session) for more in ([], ["optim.ema=0.9"])]
    plain, mean = (RunDir(run.folder(session.runs)) for run in runs)
    for file in sorted(path.name for path in plain.snapshots.iterdir()):
        one, two = (load_file(folder.snapshots / file) for folder in (plain, mean))
        assert any(not torch.equal(one[name], two[name]) for name in one), file


def test_stopped_and_resumed_equals_uninterrupted_with_everything_on(
    averaged: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = RunDir(distill(averaged, session, method="asd", seed=1, suite="whole").folder(session.runs))
    original = loop.Trainer._step
    stops = [3, 8, 16]  # inside an epoch, at its end, at the very end

    def step(self: loop.Trainer, batch: Any) -> float:
        rate = original(self, batch)
        if self.done in stops:
            signal.raise_signal(signal.SIGTERM)
        return rate

    monkeypatch.setattr(loop.Trainer, "_step", step)
    for _ in stops:
        with pytest.raises(Stopped):
            distill(averaged, session, method="asd", seed=1, suite="parts")
    pieces = RunDir(distill(averaged, session, method="asd", seed=1, suite="parts").folder(session.runs))
    for name in ("student", "method"):
        one, two = load_file(getattr(whole, name)), load_file(getattr(pieces, name))
        assert all(torch.equal(one[key], two[key]) for key in one | two)
    assert whole.history() == pieces.history()
    same = ("last", "best", "raw")
    assert [whole.result()[key] for key in same] == [pieces.result()[key] for key in same]


def test_a_teacher_resumes_with_its_means(averaged: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = []
    original = loop.Trainer._step
    for name, stop in (("whole", -1), ("parts", 5)):
        here = Session(tmp_path / name, execution=Execution(accelerator="cpu", threads=1), quiet=True)

        def step(self: loop.Trainer, batch: Any, stop: int = stop) -> float:
            rate = original(self, batch)
            if self.done == stop:
                signal.raise_signal(signal.SIGINT)
            return rate

        with monkeypatch.context() as patch:
            patch.setattr(loop.Trainer, "_step", step)
            if stop > 0:
                with pytest.raises(Stopped):
                    teach(averaged, here)
        manifests.append((teach(averaged, here).folder(here.runs) / "manifest.json").read_text())
    assert manifests[0] == manifests[1]
