"""Batch norm and a single image: where a map is one pixel, it has nothing to take a variance of."""

from __future__ import annotations

import torch
from torch import nn

from antishortcut.errors import UserError
from antishortcut.models.network import Network
from antishortcut.models.trial import training
from antishortcut.types import Sets


def refuse_alone(network: Network, name: str, sets: Sets, batch: int, processes: int, parts: int) -> None:
    """Say now that it cannot be trained so, not in the step in which a process has one image."""
    if not learns_alone(network, sets.image_size):
        raise UserError(
            f"{name} has batch norm of maps of one pixel, which cannot learn from a single image, and in some step one "
            f"comes alone ({len(sets.train)} images, optim.batch = {batch}, processes: {processes}, parts: {parts}); "
            "take another batch, fewer parts, or larger images"
        )


def learns_alone(network: Network, image_size: int) -> bool:
    """Whether it can be trained with one image; its own state stays as it is."""
    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in network.modules()):
        return True
    weight = next(network.parameters(), torch.empty(0))
    if weight.is_meta:
        return True
    try:
        with training(network), torch.no_grad():
            network(torch.full((1, 3, image_size, image_size), 0.5, device=weight.device))
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            return False
        raise
    return True
