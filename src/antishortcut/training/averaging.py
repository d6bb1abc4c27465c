"""A running mean of the weights, which generalises better than the last of them (Polyak & Juditsky 1992)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def decay_at(decay: float, step: int) -> float:
    """The decay of step 0, 1, …: (1 + t) / (10 + t) until the wanted one is reached.

    So the first weights are soon forgotten: the mean after t steps is that of weights about t / 10 steps old, never of
    older ones, and later of weights 1 / (1 − decay) steps old.
    """
    return min(decay, (1 + step) / (10 + step))


class Average:
    """The mean of a network's weights over training, as a network that is never trained itself.

    Statistics of batches are averaged like weights, since they belong to them; counters are taken as they are.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.network = copy.deepcopy(network).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """After the step of this number."""
        weight = 1 - decay_at(self.decay, step)
        both = zip(self.network.state_dict().values(), network.state_dict().values(), strict=True)
        pairs = list({mean.data_ptr(): (mean, now) for mean, now in both}.values())  # tied weights have two names
        means: list[Tensor] = [mean for mean, _ in pairs if mean.is_floating_point()]
        torch._foreach_lerp_(means, [now for mean, now in pairs if mean.is_floating_point()], weight)
        for mean, now in pairs:
            if not mean.is_floating_point():
                mean.copy_(now)
