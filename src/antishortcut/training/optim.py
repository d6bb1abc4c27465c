"""Optimizer, learning rate schedule and averaged weights of a training."""

import copy
import math
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from antishortcut.config.schema import OptimSettings


def build_optimizer(optim: OptimSettings, module: nn.Module) -> torch.optim.Optimizer:
    """SGD or AdamW over a student and the heads of its method."""
    groups = parameter_groups(optim, module)
    if optim.name == "adamw":
        return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay)
    return torch.optim.SGD(
        groups, lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay, nesterov=optim.nesterov
    )


def parameter_groups(optim: OptimSettings, module: nn.Module) -> list[dict[str, Any]]:
    """All parameters in one group, or those without weight decay in a second one, as timm does."""
    named = list(module.named_parameters())
    if optim.decay == "all":
        return [{"params": [parameter for _, parameter in named]}]
    exempt = no_decay_names(module)
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named if name not in exempt]},
        {"params": [p for name, p in named if name in exempt], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def no_decay_names(module: nn.Module) -> set[str]:
    """Names of biases, of norms' and other vectors, and of what a network names in no_weight_decay()."""
    names = {name: parameter.ndim for name, parameter in module.named_parameters()}
    patterns = [
        f"{path}.{pattern}" if path else pattern
        for path, submodule in module.named_modules()
        if callable(list_names := getattr(submodule, "no_weight_decay", None))
        for pattern in list_names()
    ]
    vectors = {name for name, dimensions in names.items() if dimensions <= 1 or name.endswith(".bias")}
    return vectors | {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}


# --- The learning rate as a pure function of the step: nothing to save, nothing to resume ---


def lr_at(optim: OptimSettings, step: int, steps_per_epoch: int, total: int) -> float:
    """Learning rate of steps 0 … total − 1: linear warm-up, then cosine to 0, steps of 0.1, poly 0.9, or constant."""
    warmup = optim.warmup * steps_per_epoch
    if step < warmup:
        return optim.lr * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(total - warmup, 1)  # in [0, 1)
    if optim.schedule == "cosine":
        return optim.lr * 0.5 * (1 + math.cos(math.pi * done))
    if optim.schedule == "poly":
        return optim.lr * math.pow(1 - done, 0.9)
    if optim.schedule == "step":
        return optim.lr * math.pow(0.1, sum(step >= milestone * steps_per_epoch for milestone in optim.milestones))
    return optim.lr


# --- A running mean of the weights ---


def decay_at(decay: float, step: int) -> float:
    """The decay of step 0, 1, …: (1 + t) / (10 + t) until `decay` is reached.

    So the first weights are soon forgotten: the mean after t steps is that of weights about t / 10 steps old, never of
    older ones, and later of weights 1 / (1 − decay) steps old.
    """
    return min(decay, (1 + step) / (10 + step))


class WeightAverage:
    """The mean of a network's weights over training, as a network that is never trained itself.

    Statistics of batches are averaged like weights, since they belong to them; counters are taken as they are.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.network = copy.deepcopy(network).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """After the step of this number."""
        both = zip(self.network.state_dict().values(), network.state_dict().values(), strict=True)
        pairs = list({mean.data_ptr(): (mean, now) for mean, now in both}.values())  # tied weights have two names
        if floats := [(mean, now) for mean, now in pairs if mean.is_floating_point()]:
            means, nows = map(list, zip(*floats, strict=True))
            average = get_ema_multi_avg_fn(decay_at(self.decay, step))  # type: ignore[no-untyped-call]
            average(means, nows, step)
        for mean, now in pairs:
            if not mean.is_floating_point():
                mean.copy_(now)
