"""Which layers make the logits: what goes into them is the embedding.

Sure first: the layer whose result is the logits, as they are, pooled or enlarged; several whose sum or mean they are;
any other module with weights that returns them. Where nothing of that kind is found, the last result that all the
logits know of the image has to pass through, which is tried out by holding the gradient up there.
"""
# B batch, C classes, D embedding, T tokens, h × w locations of a map

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.models.hooks import Call, recording, silent
from antishortcut.models.outputs import Place, logits_in, tensor_in

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
MANY = 8  # how many of the last results are tried


@dataclass(frozen=True)
class Maker:
    """Calls whose inputs, or results, are the embedding, as (module path, turn)."""

    calls: tuple[tuple[str, int], ...]
    inputs: bool = True  # or results, pooled
    join: str = "cat"  # of several: side by side, or their mean where one layer read them all
    beside: tuple[str, ...] = ()  # layers that read the same as one of these

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*(path for path, _ in self.calls), *self.beside)))

    def __str__(self) -> str:
        names = " and ".join(self.paths)
        return f"what goes into {names}" if self.inputs else f"what comes out of {names}"


def find_maker(
    module: nn.Module, calls: Sequence[Call], logits: Tensor, x: Tensor, place: Place | None = None
) -> Maker | None:
    """The layers that made these logits, which lie at that place of what the network returns."""
    layers = [call for call in calls if could_make(module.get_submodule(call.path), call, logits, x)]
    if not logits.is_meta and not logits.any():  # a head that starts at zero: all results look alike
        calls, logits = jolted(module, {call.path for call in layers}, x, int(logits.shape[1]), place)
        layers = [call for call in calls if could_make(module.get_submodule(call.path), call, logits, x)]
    same = [call for call in layers if call.result is not None and call.result.data_ptr() == logits.data_ptr()]
    if same:
        return Maker(((same[-1].path, same[-1].turn),))
    if logits.is_meta:  # there is nothing to compare
        return None
    for few in subsets(layers):
        if adds_up([call.result for call in few if call.result is not None], logits):
            return joined(few)
    for call in calls:  # those inside end before those around them
        if returns(module.get_submodule(call.path), call, logits, x):
            return Maker(((call.path, call.turn),))
    # logits that were scaled, cast, normalised or pooled in another way afterwards
    layers = [call for call in layers if is_point(module.get_submodule(call.path)) or is_last(module, call, calls)]
    if len(layers) == 1 and is_cut(module, x, layers[0], int(logits.shape[1]), place):
        return Maker(((layers[0].path, layers[0].turn),))
    return last_cut(module, calls, logits, x, place)


def is_point(part: nn.Module) -> bool:
    """A layer that reads one location at a time; others may be any convolution that is as wide as there are classes."""
    return isinstance(part, nn.Linear) or set(getattr(part, "kernel_size", ())) == {1}


def is_last(module: nn.Module, call: Call, calls: Sequence[Call]) -> bool:
    """Whether nothing that learns comes after it, but for the modules around it."""
    for other in reversed(calls):
        if other is call:
            return True
        learns = next(module.get_submodule(other.path).parameters(), None) is not None
        if learns and not call.path.startswith(f"{other.path}."):
            return False
    return False


def could_make(part: nn.Module, call: Call, logits: Tensor, x: Tensor) -> bool:
    """A layer with as many results as there are classes, for vectors or maps as the logits are."""
    result, given = call.result, call.given
    if not isinstance(part, LAYERS) or result is None or given is None or result.shape[0] != logits.shape[0]:
        return False
    if logits.ndim == 2 and not is_point(part) and given.shape == x.shape:  # the image itself is no embedding
        return False
    return bool(result.shape[-1 if isinstance(part, nn.Linear) else 1] == logits.shape[1])


def subsets(layers: Sequence[Call]) -> Iterator[tuple[Call, ...]]:
    """One of them, the last first, or two to four of the last four."""
    last = layers[::-1][:MANY]
    for size in range(1, 5):
        yield from combinations(last if size == 1 else last[:4], size)


def adds_up(results: Sequence[Tensor], logits: Tensor) -> bool:
    """Whether the logits are the sum or the mean of these, pooled or enlarged."""
    total = results[0]
    for result in results[1:]:
        if result.shape != total.shape:
            return False
        total = total + result
    scale = float(logits.abs().max())
    if not math.isfinite(scale) or total.is_complex():  # nothing can be told from such numbers
        return False
    for form in forms(total.to(logits.dtype), logits):  # a network may compute in another precision by itself
        if any(torch.allclose(form / share, logits, rtol=1e-3, atol=1e-5 * scale) for share in {1, len(results)}):
            return True
    return False


def forms(result: Tensor, logits: Tensor) -> Iterator[Tensor]:
    """The result in the logits' shape: as it is, a mean over locations, or enlarged."""
    if result.shape == logits.shape:
        yield result
    elif logits.ndim == 2 and result.ndim == 4:
        yield from (form for form in (result.mean(dim=(2, 3)), result.mean(dim=(1, 2))) if form.shape == logits.shape)
    elif logits.ndim == 2 and result.ndim == 3:  # (B, T, C) or (B, C, T) → (B, C)
        yield from (form for form in (result.mean(dim=1), result.mean(dim=2)) if form.shape == logits.shape)
    elif logits.ndim == 4 and result.ndim == 4:
        for maps in (result, result.permute(0, 3, 1, 2)):
            if maps.shape[1] == logits.shape[1]:
                yield F.interpolate(maps, logits.shape[2:], mode="bilinear", align_corners=False)
                yield F.interpolate(maps, logits.shape[2:], mode="bilinear", align_corners=True)
                yield F.interpolate(maps, logits.shape[2:], mode="nearest")


def joined(few: Sequence[Call]) -> Maker:
    """Those with inputs of their own; a layer that was used several times reads a mean."""
    if len({call.path for call in few}) == 1:
        return Maker(tuple((call.path, call.turn) for call in few), join="mean")
    own: dict[int, Call] = {}
    for call in sorted(few, key=lambda call: (call.path, call.turn)):
        assert call.given is not None
        own.setdefault(call.given.data_ptr(), call)
    beside = tuple(call.path for call in few if call not in own.values())
    return Maker(tuple((call.path, call.turn) for call in own.values()), beside=beside)


def returns(part: nn.Module, call: Call, logits: Tensor, x: Tensor) -> bool:
    """A module with weights of its own kind that turns vectors (or maps) into the logits."""
    given, result = call.given, call.result
    if given is None or result is None or next(part.parameters(), None) is None or given.shape == result.shape:
        return False
    if not given.is_floating_point() or given.shape == x.shape or not adds_up([result], logits):
        return False
    vector = given.ndim == 2 or (given.ndim == 4 and given.shape[2:] == (1, 1))
    return given.shape[0] == logits.shape[0] and (vector if logits.ndim == 2 else given.ndim == 4)


def last_cut(module: nn.Module, calls: Sequence[Call], logits: Tensor, x: Tensor, place: Place | None) -> Maker | None:
    """The last result that all the logits know of the image passes through."""
    tried = 0
    for call in reversed(calls):
        result = call.result
        kinds = (2, 3, 4) if logits.ndim == 2 else (4,)
        if result is None or result.ndim not in kinds or not result.is_floating_point():
            continue
        if result.shape[0] != len(logits) or result.shape == logits.shape or result.data_ptr() == logits.data_ptr():
            continue
        tried += 1
        if tried > MANY:
            return None
        if is_cut(module, x, call, int(logits.shape[1]), place):
            return Maker(((call.path, call.turn),), inputs=False)
    return None


def is_cut(module: nn.Module, x: Tensor, call: Call, classes: int, place: Place | None) -> bool:
    """Whether the logits depend on the image through this result alone: no gradient comes past it."""
    turns = 0

    def hold(part: nn.Module, args: Any, output: Any) -> Any:
        nonlocal turns
        turns += 1
        held = tensor_in(output)
        if turns != call.turn + 1 or held is None:
            return output
        if type(output) in (tuple, list):  # attention gives its weights beside
            return type(output)(held.detach() if each is held else each for each in output)
        return held.detach() if held is output else output

    handle = module.get_submodule(call.path).register_forward_hook(hold)
    try:
        with silent(module), torch.enable_grad():
            image = x.detach().clone().requires_grad_()
            logits = logits_in(module(image * 1.0), len(x), classes, place=place)
            if not logits.requires_grad:
                return True
            return torch.autograd.grad(logits.sum(), image, allow_unused=True)[0] is None
    except Exception:  # somebody's code, which may not bear it
        return False
    finally:
        handle.remove()


def jolted(
    module: nn.Module, paths: set[str], x: Tensor, classes: int, place: Place | None
) -> tuple[list[Call], Tensor]:
    """Calls and logits of a pass in which these layers have random weights."""
    weights = [p for path in sorted(paths) for p in module.get_submodule(path).parameters()]
    before = [weight.detach().clone() for weight in weights]
    draw = torch.Generator().manual_seed(0)
    every = [path for path, _ in module.named_modules() if path]
    try:
        with torch.no_grad():
            for weight in weights:
                weight.copy_(torch.randn(weight.shape, generator=draw))
        with silent(module), recording(module, every) as calls:
            return calls, logits_in(module(x), len(x), classes, place=place)
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)
