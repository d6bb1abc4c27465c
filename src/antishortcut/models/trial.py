"""Try a network out when it is built: what cannot work fails before training, with one line."""
# B batch, C classes, H × W pixels

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models.feature_extractor import silent
from antishortcut.models.user_models import error_line
from antishortcut.models.wrapper import Network
from antishortcut.types import Features, Sets


def try_out(network: Network, name: str, image_size: int, own: bool = False) -> None:
    """One pass in evaluation mode, which finds embedding and stages, and one in training mode; own: a user's code."""
    weight = next(network.parameters(), torch.empty(0))
    image = torch.rand(2, 3, image_size, image_size, generator=torch.Generator().manual_seed(0)).to(weight.device)
    with silent(network):
        evaluated = _features(network, image, name, "")
    if weight.is_meta:
        return
    with training_mode(network), torch.no_grad():
        trained = _features(network, image, name, " in training mode")
    for what in ("logits", "embedding"):
        one, other = getattr(evaluated, what), getattr(trained, what)
        if one.ndim != other.ndim or one.shape[1] != other.shape[1]:
            raise UserError(
                f"{name} gives {what} of shape {tuple(one.shape)} in evaluation, {tuple(other.shape)} in training; "
                f"let both be the same{', or name a module with embedding = …' * (what == 'embedding')}"
            )
    if not own:
        return
    if _is_probability(evaluated.logits) or _is_probability(trained.logits):
        warnings.warn(
            f"{name} returns probabilities, and losses expect logits; remove the softmax at its end", stacklevel=3
        )
    with silent(network), torch.random.fork_rng(devices=[]):
        again: Features = network(image)
    if not torch.allclose(evaluated.logits, again.logits, rtol=1e-3, atol=1e-4, equal_nan=True):
        warnings.warn(
            f"{name} is random in evaluation mode; use self.training, as in F.dropout(x, p, self.training)",
            stacklevel=3,
        )


def _is_probability(logits: Tensor) -> bool:
    total = logits.sum(dim=1)
    return bool((logits >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-3)


def _features(network: Network, image: Tensor, name: str, mode: str) -> Features:
    """The network's features; whatever its code raises becomes a line that says what to do."""
    try:
        features: Features = network(image)
    except UserError as error:
        raise UserError(f"{name}{mode}: {error}") from error
    except Exception as error:
        if channels := re.search(r"to have (\d+) channels, but got 3 channels", str(error)):
            raise UserError(
                f"{name} takes {channels[1]} channels; images have 3, grey ones three equal ones"
            ) from error
        if isinstance(error, RuntimeError | AssertionError | ValueError) and not isinstance(error, NotImplementedError):
            side = image.shape[-1] if network.size is None else network.size
            raise UserError(
                f"{name} cannot read images of {side} pixels{mode}: {error_line(error)}; use larger ones "
                "(data.image_size), or those it is made for (size = … beside its name)"
            ) from error
        raise UserError(
            f"{name} failed{mode}: {error_line(error)}; forward must take images (B, 3, H, W) and nothing else"
        ) from error
    if len(features.embedding) != len(image) or not features.embedding.is_floating_point():
        shape = f"shape {tuple(features.embedding.shape)} and type {features.embedding.dtype}"
        raise UserError(f"{name}: its embedding has {shape}; expected floats (batch, D); name a module: embedding = …")
    return features


@contextmanager
def training_mode(network: nn.Module) -> Iterator[None]:
    """Training mode that leaves no trace in modes, buffers, or random numbers."""
    modes = [(part, part.training) for part in network.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in network.buffers()]
    try:
        with torch.random.fork_rng(devices=[]):
            network.train()
            yield
    finally:
        for part, mode in modes:
            part.training = mode
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def check_single_image(network: Network, name: str, sets: Sets) -> None:
    """Raise if the network cannot train on a batch of one image: batch norm of a 1 × 1 map needs two values."""
    image = torch.full((1, 3, sets.image_size, sets.image_size), 0.5, device=network.mean.device)
    try:
        with training_mode(network), torch.no_grad():
            network(image)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            f"{name} cannot train on a single image (batch norm of 1 × 1 maps), and some steps have only one; "
            "use another optim.batch, fewer processes or parts, or larger images"
        ) from None
