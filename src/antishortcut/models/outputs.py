"""What a network returns: where its logits are, and what it may say of itself besides.

A tensor, a dict, a tuple, a dataclass or an object. Of several tensors the one that fits the classes is taken, those
under a usual name first.
"""
# B batch, C classes, D embedding, h × w locations of a map

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from antishortcut.errors import UserError

LOGITS = ("logits", "out", "pred", "preds", "prediction", "predictions", "output", "outputs", "scores")
WANTED = "wanted: logits (batch, classes), or maps of them (batch, classes, h, w), alone, first, or under 'logits'"


def parts(output: Any) -> dict[str, Any]:
    """The named parts of an output; those of a tuple are numbered."""
    if isinstance(output, Mapping):
        return {str(key): value for key, value in output.items()}
    if isinstance(output, tuple | list):
        return dict(zip(getattr(output, "_fields", map(str, range(len(output)))), output, strict=True))
    found = dict(vars(output)) if hasattr(output, "__dict__") else {}
    slots = (name for kind in type(output).__mro__ for name in getattr(kind, "__slots__", ()))
    return found | {name: getattr(output, name) for name in slots if hasattr(output, name)}


def tensors(output: Any) -> list[Tensor]:
    """All tensors of an output, those that are usually the logits first."""
    if isinstance(output, Tensor):
        return [output]
    named = parts(output)
    names = [*(name for name in LOGITS if name in named), *(name for name in named if name not in LOGITS)]
    return [named[name] for name in names if isinstance(named[name], Tensor)]


def tensor_in(output: Any) -> Tensor | None:
    """The tensor itself, the one under a usual name, or the first of several."""
    return next(iter(tensors(output)), None)


def logits_in(
    output: Any, batch: int | None, classes: int | None = None, maps: bool | None = None, made: Tensor | None = None
) -> Tensor:
    """Logits (B, C), or maps of them (B, C, h, w); an error that says what came instead.

    batch, maps: None where it need not, or cannot yet, be known. made: what the layer that makes logits gave, which
    goes before others that would fit.
    """
    every = tensors(output)
    fitting = [each for each in every if fits(each, batch, classes)]
    if not every:
        named = {} if isinstance(output, str) else parts(output)
        holds = f" of {', '.join(named)}" if named else ""
        raise UserError(f"the network returns {type(output).__name__}{holds}, no tensor; {WANTED}")
    if not fitting:
        raise UserError(f"the network returns {told(every[0], batch, classes)}")
    logits = next((each for each in fitting if each is made), fitting[0])
    if not logits.is_floating_point():
        kind = str(logits.dtype).removeprefix("torch.")
        raise UserError(f"the network returns {kind} values; wanted: real logits, before argmax, as floats")
    if maps is None:
        maps = logits.ndim == 4 and logits.shape[2:] != (1, 1)
    return logits if maps else logits.flatten(1)


def fits(logits: Tensor, batch: int | None, classes: int | None) -> bool:
    if logits.ndim not in (2, 4) or (batch is not None and logits.shape[0] != batch):
        return False
    return classes is None or logits.shape[1] == classes


def told(logits: Tensor, batch: int | None, classes: int | None) -> str:
    """What is wrong with the shape of these logits, and what to do."""
    shape = tuple(logits.shape)
    if logits.ndim in (1, 2) and classes == 2 and shape[1:] in ((), (1,)):
        return f"a tensor of shape {shape}, one logit an image; give two, one for either class"
    if logits.ndim in (2, 4) and batch in (None, shape[0]) and classes is not None:
        if logits.ndim == 4 and shape[3] == classes:
            return f"maps of shape {shape}, channels last; return them as .permute(0, 3, 1, 2)"
        return f"{shape[1]} logits, but there are {classes} classes; let its factory take num_classes and use it"
    return f"a tensor of shape {shape}; {WANTED}"


def named_in(output: Any, name: str) -> Tensor | None:
    """The tensor a dict or an object holds under that name."""
    if isinstance(output, Tensor):
        return None
    found = parts(output).get(name)
    return found if isinstance(found, Tensor) and found.is_floating_point() else None
