"""Which parameters decay, against timm's own answer; and that recipes older than a setting keep their hash."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.optim._param_groups import param_groups_weight_decay
from torch import nn

from antishortcut.config.recipe import OptimSettings, Recipe, Run, distill_run, load_recipe, rewind_run, teach_run
from antishortcut.errors import UserError
from antishortcut.models import build
from antishortcut.training.optim import build_optimizer, no_decay_names, parameter_groups

WEIGHTS = OptimSettings(name="adamw", decay="weights", weight_decay=0.05)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18"])
def test_spared_are_those_that_timm_spares(name: str) -> None:
    network = timm.create_model(name, num_classes=5)
    listed: set[str] = getattr(network, "no_weight_decay", set)()
    groups = param_groups_weight_decay(network, 0.05, no_weight_decay_list=listed)
    reference = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    assert {id(p) for key, p in network.named_parameters() if key in no_decay_names(network)} == reference


def test_what_a_wrapped_network_wants_spared_is_found() -> None:
    names = no_decay_names(build("timm:vit_tiny_patch16_224", 5, image_size=224))
    assert {name.split(".")[-1] for name in names} >= {"pos_embed", "cls_token", "bias"}
    assert not any(name.endswith("qkv.weight") for name in names)


def test_every_parameter_is_in_one_group_and_only_weights_shrink() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    groups = parameter_groups(WEIGHTS, network)
    assert sorted(id(p) for g in groups for p in g["params"]) == sorted(id(p) for p in network.parameters())
    optimizer = build_optimizer(WEIGHTS.model_copy(update={"lr": 0.5}), network)
    before = {name: value.clone() for name, value in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)  # decay alone moves anything
    optimizer.step()
    for name, value in network.named_parameters():
        factor = 1 - 0.5 * 0.05 if name == "0.weight" else 1.0  # AdamW: θ ← θ − rate · decay · θ
        assert torch.allclose(value, factor * before[name]), name


def test_unless_said_there_is_one_group_as_ever() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    for name in ("sgd", "adamw"):
        optimizer = build_optimizer(OptimSettings.model_validate({"name": name, "betas": (0.8, 0.95)}), network)
        assert [len(group["params"]) for group in optimizer.param_groups] == [4]
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.95)


def student(recipe: Recipe, teacher: str) -> Run:
    more = {"options": {}, "seed": 1, "roles": {"final": "final"}, "early": "15%", "suite": "s"}
    return distill_run(recipe, "f", method="kd", teacher=teacher, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["optim.ema=0.99", "optim.mixup=0.2", "optim.cutmix=1", "optim.decay=weights", "optim.betas=[0.9, 0.95]"]
)
def test_a_setting_that_is_not_at_its_default_is_another_run(text: str) -> None:
    plain, other = load_recipe("P2"), load_recipe("P2", [text])
    assert teach_run(plain, "f").hash != teach_run(other, "f").hash
    built = [student(each, "t") for each in (plain, other)]
    assert built[0].hash != built[1].hash


def test_a_rewound_state_is_no_mean() -> None:
    assert rewind_run(teach_run(load_recipe("P2", ["optim.ema=0.99"]), "f")).optim.ema == 0


@pytest.mark.parametrize(
    "text", ["optim.ema=1", "optim.mixup=-1", "optim.cutmix=nan", "optim.decay=some", "optim.betas=[0.9, 1.0]"]
)
def test_what_makes_no_sense_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match=text.split("=")[0].replace(".", r"\.")) as caught:
        load_recipe("P2", [text])
    assert "\n" not in str(caught.value)
