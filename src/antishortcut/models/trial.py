"""A network tried out when it is built: what is wrong with it is said in a line, before anything is trained."""
# B batch, C classes, H × W pixels

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models.hooks import silent
from antishortcut.models.network import Network
from antishortcut.models.own import blame
from antishortcut.models.taps import Tapped
from antishortcut.types import Features

CHANNELS = "networks receive 3 channels, grey images as three equal ones: let its first layer take 3"


def try_out(network: Network, name: str, image_size: int, own: bool = False) -> None:
    """One pass as in evaluation, which finds the taps, and one as in training; own: somebody's own code."""
    body = network.body
    assert isinstance(body, Tapped)
    if own:
        check_call(body.module, name)
    weight = next(network.parameters(), torch.empty(0))
    drawn = torch.rand(2, 3, image_size, image_size, generator=torch.Generator().manual_seed(0))
    image = drawn.to(weight.device)
    with silent(network):
        seen = given(network, image, name, "")
    if weight.is_meta:
        return
    with training(network), torch.no_grad():
        learning = given(network, image, name, " in training mode")
    for what in ("logits", "embedding"):
        one, other = getattr(seen, what), getattr(learning, what)
        if one.ndim != other.ndim or one.shape[1] != other.shape[1]:
            raise UserError(
                f"{name} gives {what} of shape {tuple(one.shape)} in evaluation, {tuple(other.shape)} in training; "
                f"let both have the same{', or name a module with embedding = …' * (what == 'embedding')}"
            )
    if own:
        for features, mode in ((seen, "evaluation"), (learning, "training")):
            if is_share(features.logits):
                warnings.warn(
                    f"{name} gives probabilities in {mode} mode, and losses take them for logits, which makes learning "
                    "from them weak; leave the softmax at its end off",
                    stacklevel=3,
                )
                break
        with silent(network), torch.random.fork_rng(devices=[]):
            again: Features = network(image)
        if not torch.allclose(seen.logits, again.logits, rtol=1e-3, atol=1e-4, equal_nan=True):
            warnings.warn(
                f"{name} answers the same images differently in evaluation mode; let randomness heed self.training, "
                "as F.dropout(x, p, self.training) does",
                stacklevel=3,
            )


def is_share(logits: Tensor) -> bool:
    """Whether these are what a softmax gives: nothing below zero, and a sum of one over the classes."""
    total = logits.sum(dim=1)
    return bool((logits >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-3)


def given(network: Network, image: Tensor, name: str, mode: str) -> Features:
    """The network's features; whatever its code raises becomes a line that says what to do."""
    side = image.shape[-1] if network.size is None else network.size
    try:
        features: Features = network(image)
    except UserError as error:
        raise UserError(f"{name}{mode}: {error}") from error
    except NotImplementedError as error:
        raise UserError(f"{name} has no forward; write one that takes images (B, 3, H, W): {blame(error)}") from error
    except Exception as error:
        if takes := re.search(r"to have (\d+) channels, but got 3 channels", str(error)):
            raise UserError(f"{name} takes {takes[1]} channels; {CHANNELS}") from error
        kinds = {each.dtype for each in network.body.parameters() if each.is_floating_point()} - {torch.float32}
        if kinds and re.search("dtype|type|Half|BFloat16|Double", str(error)):
            kind = str(kinds.pop()).removeprefix("torch.")
            raise UserError(
                f"{name} has weights of {kind} and images are float32: return it as .float(); a faster arithmetic is "
                f"chosen for a run ({blame(error)})"
            ) from error
        told = isinstance(error, ValueError) and re.search(r"size|shape|resolution|pixel|height|width|\d\d", str(error))
        if told or isinstance(error, RuntimeError | AssertionError):  # what shapes that do not fit raise
            raise UserError(
                f"{name} cannot read images of {side} pixels{mode}: {blame(error)}; give larger ones "
                "(data.image_size), or those it is made for (size = … beside its name)"
            ) from error
        raise UserError(
            f"{name} failed{mode}: {blame(error)}; networks are called with images (B, 3, H, W) alone: correct it, "
            "or wrap it in a module that calls it"
        ) from error
    if len(features.embedding) != len(image):
        shape = f"the shape {tuple(features.embedding.shape)} for {len(image)} images"
        raise UserError(f"{name}: its embedding has {shape}; name a module that gives one for each: embedding = …")
    if not features.embedding.is_floating_point():
        kind = str(features.embedding.dtype).removeprefix("torch.")
        raise UserError(f"{name}: its embedding has {kind} values; wanted: real floats; name another: embedding = …")
    return features


def check_call(module: nn.Module, name: str) -> None:
    """Networks are called with images alone."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # TorchScript's, which does not say
        return
    try:
        signature.bind(torch.empty(0))
    except TypeError as error:
        raise UserError(
            f"{name} cannot be called with images alone: {error}; give what else its forward takes a default, "
            "or wrap it in a module that calls it"
        ) from None


@contextmanager
def training(network: nn.Module) -> Iterator[None]:
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
