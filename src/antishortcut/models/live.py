"""A network given as a Python object, called `live:CLASS-DIGEST` in recipes and run folders; copies of it are built."""

import copy
import hashlib
import inspect
import sys
from contextlib import suppress
from types import CodeType

import torch
from torch import nn

from antishortcut.errors import UserError, first_line
from antishortcut.models.user_models import LIBRARIES, PACKAGE, check_state

KIND = "live"
_objects: dict[str, nn.Module] = {}  # name → the object as it was given


def register(module: nn.Module, weights: bool = True, name: str | None = None) -> str:
    """Keep a copy of the object for this session; returns its name, in which its weights count if they are used."""
    name = name or f"{KIND}:{type(module).__name__}-{_digest(module, weights)[:10]}"
    check_state(module, name)
    try:
        _objects[name] = copy.deepcopy(module).cpu()
    except Exception as error:  # whatever its attributes raise
        raise UserError(
            f"{type(module).__name__} cannot be copied ({first_line(error)}); name it package.module:factory"
        ) from error
    return name


def live_copy(name: str) -> nn.Module:
    """A new copy of the object of that name."""
    if name not in _objects:
        raise UserError(
            f"{name} was a Python object, which is not here: give it again, by antishortcut.distill as before or by "
            "antishortcut.Student(RUN, student=…, teacher=…)"
        )
    return copy.deepcopy(_objects[name])


def _digest(module: nn.Module, weights: bool) -> str:
    """Of the layers and their plain attributes, of the code that is no library's, and of the weights."""
    digest = hashlib.sha256(repr(module).encode(errors="replace"))
    for name, part in module.named_modules():
        for key in sorted(vars(part).keys() - vars(nn.Module()).keys()):
            digest.update(f"\n{name}.{key} {_described(vars(part)[key])}".encode(errors="replace"))
    kinds = {kind for part in module.modules() for kind in type(part).__mro__}
    for kind in sorted(kinds, key=lambda kind: (kind.__module__, kind.__qualname__)):
        digest.update(f"\n{kind.__module__}.{kind.__qualname__}\n".encode() + _code(kind))
    for key, value in module.state_dict().items():
        digest.update(f"\n{key} {getattr(value, 'shape', '')} {getattr(value, 'dtype', '')}\n".encode())
        if weights and isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _described(value: object) -> str:
    """The same in every session, which the repr of an object need not be."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_described, value))}]"
    if isinstance(value, dict):
        return _described(list(value.items()))
    if isinstance(value, bool | int | float | str | torch.dtype | None):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))  # of a function, its name


def _code(kind: type) -> bytes:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    if file.startswith((PACKAGE, *LIBRARIES)):
        return b""
    with suppress(OSError, TypeError):  # typed into a notebook it has no source
        return inspect.getsource(kind).encode(errors="replace")
    codes = [inspect.unwrap(value).__code__ for value in vars(kind).values() if inspect.isfunction(value)]
    return b"".join(map(_bytecode, codes))


def _bytecode(code: CodeType) -> bytes:
    """Of a function and those in it, with its names and constants; the same in every session."""
    parts = [code.co_code, repr(code.co_names).encode(errors="replace")]
    for value in code.co_consts:
        known = sorted(value, key=repr) if isinstance(value, frozenset) else value  # sets have no lasting order
        parts.append(_bytecode(value) if isinstance(value, CodeType) else repr(known).encode(errors="replace"))
    return b"\n".join(parts)
