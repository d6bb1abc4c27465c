"""The learning rate as a pure function of the step: nothing to save, nothing to resume."""

from __future__ import annotations

import math

from antishortcut.config.recipe import OptimSettings


def rate_at(optim: OptimSettings, step: int, steps_per_epoch: int, total: int) -> float:
    """Rate of step 0 … total − 1: linear warm-up, then cosine to 0, steps of a tenth, poly 0.9, or constant."""
    warmup = optim.warmup * steps_per_epoch
    if step < warmup:
        return optim.rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(total - warmup, 1)  # in [0, 1)
    if optim.schedule == "cosine":
        return optim.rate * 0.5 * (1 + math.cos(math.pi * done))
    if optim.schedule == "poly":
        return optim.rate * math.pow(1 - done, 0.9)
    if optim.schedule == "step":
        return optim.rate * math.pow(0.1, sum(step >= milestone * steps_per_epoch for milestone in optim.milestones))
    return optim.rate
