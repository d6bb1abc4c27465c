"""The methods, by name. Each is X(sizes, *, hyper-parameters with defaults); see `antishortcut.types.Method`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from antishortcut.errors import UserError, near
from antishortcut.methods.asd import ASD
from antishortcut.methods.ce import CE
from antishortcut.methods.kd import KD

METHODS: dict[str, Callable[..., nn.Module]] = {
    "ce": CE,
    "kd": KD,
    "asd": ASD,
}


def options_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a method: the given ones, and the defaults of the rest. A wrong name or type is an error."""
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}{near(name, METHODS)}")
    parameters = inspect.signature(METHODS[name]).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    for key, value in given.items():
        if key not in defaults:
            raise UserError(f"method {name!r} has no setting {key!r}{near(key, defaults)}")
        kind = type(defaults[key])
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise UserError(
                f"method {name!r}: {key} is {value!r}; it must be a {kind.__name__}, like {defaults[key]!r}"
            )
        defaults[key] = value
    return defaults
