"""The optimiser of a training, and which of its parameters decay."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from antishortcut.config.schema import OptimSettings


def make_optimizer(optim: OptimSettings, module: nn.Module) -> torch.optim.Optimizer:
    """SGD or AdamW over a student and the heads of its method."""
    groups = parameter_groups(optim, module)
    if optim.name == "adamw":
        return torch.optim.AdamW(groups, lr=optim.rate, betas=optim.betas, weight_decay=optim.weight_decay)
    return torch.optim.SGD(
        groups, lr=optim.rate, momentum=optim.momentum, weight_decay=optim.weight_decay, nesterov=optim.nesterov
    )


def parameter_groups(optim: OptimSettings, module: nn.Module) -> list[dict[str, Any]]:
    """All parameters as one group, or those that are spared from decay as a second one, as timm has it."""
    named = list(module.named_parameters())
    if optim.decay == "all":
        return [{"params": [parameter for _, parameter in named]}]
    spare = spared(module)
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named if name not in spare]},
        {"params": [p for name, p in named if name in spare], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def spared(module: nn.Module) -> set[str]:
    """Names of biases, of norms' and other vectors, and of what a network names in no_weight_decay()."""
    names = {name: parameter.ndim for name, parameter in module.named_parameters()}
    patterns = [
        f"{path}.{pattern}" if path else pattern
        for path, part in module.named_modules()
        if callable(wish := getattr(part, "no_weight_decay", None))
        for pattern in wish()
    ]
    vectors = {name for name, dimensions in names.items() if dimensions <= 1 or name.endswith(".bias")}
    return vectors | {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}
