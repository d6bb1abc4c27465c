"""Weight decay against timm's choice, the learning rate and the mean of weights against formulas."""

import math
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.optim._param_groups import param_groups_weight_decay
from torch import nn

from antishortcut.config.recipe import OptimSettings, load_recipe
from antishortcut.models import build
from antishortcut.run_dir import RunDir
from antishortcut.training.optim import (
    WeightAverage,
    build_optimizer,
    decay_at,
    lr_at,
    no_decay_names,
    parameter_groups,
)
from antishortcut.training.pipeline import Session, distill, teach
from tests.conftest import same_weights

WEIGHTS = OptimSettings(name="adamw", decay="weights", weight_decay=0.05)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18"])
def test_the_same_parameters_decay_as_in_timm(name: str) -> None:
    network = timm.create_model(name, num_classes=5)
    listed: set[str] = getattr(network, "no_weight_decay", set)()
    groups = param_groups_weight_decay(network, 0.05, no_weight_decay_list=listed)
    reference = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    assert {id(p) for key, p in network.named_parameters() if key in no_decay_names(network)} == reference


def test_no_weight_decay_of_a_wrapped_network_is_respected() -> None:
    names = no_decay_names(build("timm:vit_tiny_patch16_224", 5, image_size=224))
    assert {name.split(".")[-1] for name in names} >= {"pos_embed", "cls_token", "bias"}
    assert not any(name.endswith("qkv.weight") for name in names)


def test_decay_weights_shrinks_weights_only() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    groups = parameter_groups(WEIGHTS, network)
    assert sorted(id(p) for g in groups for p in g["params"]) == sorted(id(p) for p in network.parameters())
    optimizer = build_optimizer(WEIGHTS.model_copy(update={"lr": 0.5}), network)
    before = {name: value.clone() for name, value in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)  # only decay moves anything
    optimizer.step()
    for name, value in network.named_parameters():
        factor = 1 - 0.5 * 0.05 if name == "0.weight" else 1.0  # AdamW: θ ← θ − lr · decay · θ
        assert torch.allclose(value, factor * before[name]), name


def test_by_default_all_parameters_are_one_group() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    for name in ("sgd", "adamw"):
        optimizer = build_optimizer(OptimSettings.model_validate({"name": name, "betas": (0.8, 0.95)}), network)
        assert [len(group["params"]) for group in optimizer.param_groups] == [4]
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.95)


# --- Learning rate ---


def rates(**settings: object) -> list[float]:
    optim = OptimSettings.model_validate({"lr": 0.1} | settings)
    return [lr_at(optim, step, 10, 100) for step in range(100)]


def test_schedules() -> None:
    cosine = [0.05 * (1 + math.cos(math.pi * step / 100)) for step in range(100)]
    assert rates(schedule="cosine") == pytest.approx(cosine, abs=1e-15)
    steps = rates(schedule="step", milestones=(5, 8))
    assert steps[49:51] + steps[79:81] == pytest.approx([0.1, 0.01, 0.01, 0.001])
    assert rates(schedule="poly")[50] == pytest.approx(0.1 * 0.5**0.9)
    assert set(rates(schedule="constant")) == {0.1}


def test_warmup_is_linear_and_then_the_schedule_starts() -> None:
    result = rates(schedule="cosine", warmup=2)
    assert result[:20] == pytest.approx([0.1 * (step + 1) / 21 for step in range(20)])
    assert (result[20], result[60]) == pytest.approx((0.1, 0.05))  # half of the remaining 80 steps


# --- Exponential moving average of the weights ---


def test_the_average_equals_a_loop_in_float64() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double()
    average = WeightAverage(network, 0.9)
    slow = {name: value.clone() for name, value in network.state_dict().items()}
    for step in range(30):
        network(torch.randn(4, 2, dtype=torch.float64))  # batch statistics move
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update(network, step)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, value in network.state_dict().items():
            slow[name] = value.clone() if value.dtype == torch.int64 else decay * slow[name] + (1 - decay) * value
    for name, value in average.network.state_dict().items():
        assert torch.allclose(value, slow[name], atol=1e-10), name
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
def test_the_average_lags_a_tenth_of_the_steps_at_most(steps: int) -> None:
    """Of weights that equal their step: t / 10 at first, 1 / (1 − decay) in the end."""
    for decay, lag in ((0.9999, steps / 10), (0.9, min(steps / 10, 9))):
        mean = 0.0
        for step in range(steps):
            weight = decay_at(decay, step)
            mean = weight * mean + (1 - weight) * (step + 1)
        assert steps - mean == pytest.approx(lag, abs=1)


def test_the_average_is_scored_and_saved_and_training_is_not_changed(tiny: Path, session: Session) -> None:
    averaged, plain = (
        RunDir(distill(load_recipe(str(tiny), more), session, method="ce", seed=1, suite=suite).folder(session.runs))
        for suite, more in (("ema", ["optim.ema=0.9"]), ("plain", []))
    )
    assert not same_weights(averaged.student, plain.student)
    for row, reference in zip(averaged.history(), plain.history(), strict=True):
        if "scores" in row:
            assert row["raw"] == reference["scores"]
        else:
            assert row == reference
    assert averaged.result()["raw"] == {k: v for k, v in plain.result()["last"].items() if k != "epoch"}
    assert "raw" not in plain.result()


def test_snapshots_of_a_teacher_are_averages(tiny: Path, session: Session) -> None:
    plain, mean = (
        RunDir(teach(load_recipe(str(tiny), more), session).folder(session.runs)) for more in ([], ["optim.ema=0.9"])
    )
    for file in sorted(path.name for path in plain.snapshots.iterdir()):
        one, two = (load_file(folder.snapshots / file) for folder in (plain, mean))
        assert any(not torch.equal(one[name], two[name]) for name in one), file
