"""Results of modules as an embedding: one vector an image, or a map of vectors where the logits are maps."""
# B batch, D embedding, T tokens, H × W pixels, h × w locations of a map

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.models.hooks import Call
from antishortcut.models.makers import Maker

# layers whose results are sequences with channels first, (B, D, T), and layers that leave the order as it was given
POOLS = (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveAvgPool1d)
SEQUENCES = (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d, *POOLS)
ALIKE = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Dropout)


def channels_first(module: nn.Module, calls: Sequence[Call]) -> frozenset[str]:
    """Paths of modules that gave sequences (B, D, T): such layers, activations of theirs, and what ends in either."""
    found, places = set[str](), set[int]()
    for call in calls:
        if call.result is None or call.result.ndim != 3:
            continue
        part, place = module.get_submodule(call.path), call.result.data_ptr()
        follows = isinstance(part, ALIKE) and call.given is not None and call.given.data_ptr() in places
        if isinstance(part, SEQUENCES) or follows or place in places:
            found.add(call.path)
            places |= {place} - {0}  # where there are no numbers, all lie at 0
    return frozenset(found)


def joined(
    module: nn.Module,
    maker: Maker,
    calls: Sequence[Call],
    image: Tensor,
    maps: bool,
    last: Collection[str],
    first: Collection[str] = (),
) -> Tensor:
    """The embedding that the makers of the logits read, (B, D) or (B, D, h, w)."""
    found = []
    for call in calls:
        if maker.inputs:
            each = as_read(module.get_submodule(call.path), call.given, image, maps)
        else:
            each = as_embedding(call.result, image, module, maps, call.path in last, call.path in first)
        assert each is not None  # it was when the plan was made
        found.append(each)
    if len(found) == 1:
        return found[0]
    if maps:
        found = [each if each.shape == found[0].shape else F.interpolate(each, found[0].shape[2:]) for each in found]
    return torch.stack(found).mean(dim=0) if maker.join == "mean" else torch.cat(found, dim=1)


def as_read(part: nn.Module, given: Tensor | None, image: Tensor, maps: bool) -> Tensor | None:
    """What a classifying layer was given; where it read many locations and the logits are their mean, so is this."""
    if given is None:
        return None
    tokens = isinstance(part, nn.Linear)  # its channels come last
    if maps:
        if given.ndim == 3:
            return as_grid(given, image)
        return given.permute(0, 3, 1, 2) if tokens else given  # (B, D, h, w)
    if given.ndim == 2:
        return given
    return given.flatten(1, -2).mean(dim=1) if tokens else given.flatten(2).mean(dim=2)  # (B, D)


def as_embedding(
    result: Tensor | None, image: Tensor, module: nn.Module, maps: bool, last: bool, first: bool = False
) -> Tensor | None:
    """The output of a module as an embedding; last: the channels of its map come last; first: a sequence's first."""
    if result is None or not result.is_floating_point():
        return None
    if result.ndim == 4:
        found = result.permute(0, 3, 1, 2) if last else result  # (B, D, h, w)
        return found if maps else found.mean(dim=(2, 3))
    if result.ndim == 3 and first:
        return as_grid(result.transpose(1, 2), image) if maps else result.mean(dim=2)
    if result.ndim == 3:
        return as_grid(result[:, prefix(module, result, image) :], image) if maps else pool_tokens(module, result)
    return result if result.ndim == 2 and not maps else None


def as_grid(tokens: Tensor, image: Tensor) -> Tensor | None:
    """(B, T, D) → (B, D, h, w) with the image's proportions, if they are tokens of such a grid."""
    height = round(math.sqrt(tokens.shape[1] * image.shape[2] / image.shape[3]))
    if height == 0 or tokens.shape[1] % height:
        return None
    rows = tokens.transpose(1, 2)  # (B, D, T)
    return rows.reshape(*rows.shape[:2], height, -1)  # (B, D, h, w)


def prefix(module: nn.Module, tokens: Tensor, image: Tensor) -> int:
    """How many tokens before those of the image: class and register tokens."""
    known = getattr(module, "num_prefix_tokens", None)  # timm
    return int(known) if known is not None else int(as_grid(tokens, image) is None)


def pool_tokens(module: nn.Module, tokens: Tensor) -> Tensor:
    """(B, T, D) → (B, D): the class token where the network classifies by it, else the mean of the image's tokens."""
    names = {name.rpartition(".")[2] for name, _ in module.named_parameters()}
    if names & {"cls_token", "class_token"} and getattr(module, "global_pool", "token") == "token":
        return tokens[:, 0]  # (B, D)
    extra = getattr(module, "num_prefix_tokens", 0)  # timm: class and register tokens are no part of the mean
    return tokens[:, extra:].mean(dim=1)  # (B, D)
