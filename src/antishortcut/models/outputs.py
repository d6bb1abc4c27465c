"""What a network returns: where its logits are, and what it may say of itself besides.

A tensor, a dict, a tuple, a dataclass or an object, in which dicts and tuples may lie. Of several tensors the one that
fits the classes is taken, those under a usual name first.
"""
# B batch, C classes, D embedding, h × w locations of a map

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from antishortcut.errors import UserError

LOGITS = ("logits", "out", "pred", "preds", "prediction", "predictions", "output", "outputs", "scores")
LATE = ("aux", "embedding")  # what is said beside the logits under these names has a meaning of its own
WANTED = "wanted: logits (batch, classes), or maps of them (batch, classes, h, w), alone, first, or under 'logits'"
UNNAMED = "return logits, one for each of num_classes, under 'logits'"


def parts(output: Any) -> dict[str, Any]:
    """The named parts of an output; those of a tuple are numbered."""
    if isinstance(output, Mapping):
        return {str(key): value for key, value in output.items()}
    if isinstance(output, tuple | list):
        return dict(zip(getattr(output, "_fields", map(str, range(len(output)))), output, strict=True))
    found = dict(vars(output)) if hasattr(output, "__dict__") else {}
    slots = (name for kind in type(output).__mro__ for name in getattr(kind, "__slots__", ()))
    return found | {name: getattr(output, name) for name in slots if hasattr(output, name)}


@dataclass(frozen=True)
class Place:
    """Under which of its names an output holds the logits; an output with other names is another matter."""

    name: str
    names: tuple[str, ...]

    def known(self, output: Any) -> bool:
        """Whether the output is of the kind this was found in; in training it may hold more."""
        return tuple(sorted(tensors(output))) == self.names


def tensors(output: Any) -> dict[str, Tensor]:
    """All tensors of an output, those that are usually the logits first, those one level down last."""
    found = outer(output)
    if isinstance(output, Tensor | str):
        return found
    for name, value in parts(output).items():
        if isinstance(value, Mapping | tuple | list):
            found |= {f"{name}.{inner}": each for inner, each in outer(value).items()}
    return found


def outer(output: Any) -> dict[str, Tensor]:
    """The same without those one level down."""
    if isinstance(output, Tensor):
        return {"": output}
    named = parts(output)
    usual, late = ([name for name in names if name in named] for names in (LOGITS, LATE))
    names = [*usual, *(name for name in named if name not in (*LOGITS, *LATE)), *late]
    return {name: named[name] for name in names if isinstance(named[name], Tensor)}


def tensor_in(output: Any) -> Tensor | None:
    """The tensor itself, the one under a usual name, or the first of several."""
    return next(iter(outer(output).values()), None)


def fitting_in(output: Any, batch: int | None, classes: int | None) -> dict[str, Tensor]:
    """Every tensor that could be the logits, at least one; an error that says what came instead."""
    every = tensors(output)
    if not every:
        named = {} if isinstance(output, str) else parts(output)
        holds = f" of {', '.join(named)}" if named else ""
        raise UserError(f"the network returns {type(output).__name__}{holds}, no tensor; {WANTED}")
    fitting = {name: each for name, each in every.items() if fits(each, batch, classes)}
    if not fitting:
        first = next(iter(every))
        if len(every) == 1 or first in LOGITS or classes is None:
            raise UserError(f"the network returns {told(every[first], batch, classes)}")
        raise UserError(f"the network returns tensors {listed(every)}, none with {classes} columns; {UNNAMED}")
    return fitting


def logits_in(
    output: Any,
    batch: int | None,
    classes: int | None = None,
    maps: bool | None = None,
    made: Tensor | None = None,
    place: Place | None = None,
) -> Tensor:
    """Logits (B, C), or maps of them (B, C, h, w); an error that says what came instead.

    batch, maps: None where it need not, or cannot yet, be known. made: what the layer that makes logits gave, which
    goes before others that would fit. place: where they were in an output of the same kind.
    """
    fitting = fitting_in(output, batch, classes)
    name = next((name for name, each in fitting.items() if each is made), None)
    if name is None:
        known = place is not None and place.name in fitting and place.known(output)
        name = place.name if place is not None and known else next(iter(fitting))
    logits = fitting[name]
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


def listed(every: Mapping[str, Tensor]) -> str:
    """Names and shapes of the first few tensors."""
    few = [f"{name} {tuple(each.shape)}" for name, each in every.items()][:6]
    return ", ".join([*few, "…"][: len(few) + (len(every) > len(few))])


def named_in(output: Any, name: str) -> Tensor | None:
    """The tensor a dict or an object holds under that name."""
    if isinstance(output, Tensor):
        return None
    found = parts(output).get(name)
    return found if isinstance(found, Tensor) and found.is_floating_point() else None
