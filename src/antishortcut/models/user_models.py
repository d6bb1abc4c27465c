"""Your own network, named as `package.module:factory`; errors in its code become one line that says where."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError, first_line, near

PACKAGE = str(Path(__file__).resolve().parent.parent)
LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))

_built: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # networks that factories have returned


def from_own(place: str, classes: int) -> nn.Module:
    """The network that `package.module:factory` makes; the current folder is searched too.

    The factory takes num_classes, or classes, or nothing; a network in place of a factory is copied.
    """
    where, _, name = place.partition(":")
    if not where or not name or ":" in name:
        raise UserError(f"{place} names no function; write package.module:factory")
    with _current_folder():
        factory = _import(where, place)
        for part in name.split("."):  # a class's own method may be the factory
            owner, factory = factory, getattr(factory, part, None)
            if factory is None:
                public = [word for word, value in vars(owner).items() if not word.startswith("_") and callable(value)]
                raise UserError(f"{where!r} has no function {name!r}{near(part, public)}")
        if isinstance(factory, nn.Module):
            module: Any = copy.deepcopy(factory)
        elif callable(factory):
            module = _call(factory, place, classes)
        else:
            raise UserError(f"{place} is {type(factory).__name__}, not a function that makes a network")
    if not isinstance(module, nn.Module):
        raise UserError(f"{place} returned {type(module).__name__}; expected a torch.nn.Module")
    if module in _built:
        raise UserError(f"{place} returned the same network as before; let it make a new one every time")
    _built.add(module)
    for key, value in module.state_dict().items():
        if not isinstance(value, Tensor) or value.is_quantized:
            kind = "quantised" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{place}: {key} in its state_dict is {kind}; only plain tensors can be trained and saved")
    return module


@contextmanager
def _current_folder() -> Any:
    """Modules of the current folder can be imported, after all others."""
    here = os.getcwd()
    sys.path.append(here)
    importlib.invalidate_caches()  # a file may be younger than the last look at its folder
    try:
        yield
    finally:
        if here in sys.path:  # the last one, which is ours
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


def _import(where: str, place: str) -> Any:
    try:
        with torch.random.fork_rng(devices=[]):  # it may be imported already: what it draws must not matter
            torch.default_generator.manual_seed(0)
            return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (where == missing or where.startswith(f"{missing}.")):
            raise UserError(
                f"cannot import {where!r} for {place}: there is no {missing!r} in {os.getcwd()} or installed; "
                "write timm:NAME, torchvision:NAME or package.module:factory"
            ) from None
        raise UserError(f"{place} cannot be imported: {error_line(error)}") from error


def _call(factory: Callable[..., object], place: str, classes: int) -> object:
    """What the factory returns, given the number of classes under the name it has there."""
    reason: Exception | None = None
    for options in ({"num_classes": classes}, {"classes": classes}, {}):
        try:
            inspect.signature(factory).bind(**options)
        except (TypeError, ValueError) as error:
            reason = reason or error
            continue
        try:
            return factory(**options)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(f"{place} failed with {options or 'no arguments'}: {error_line(error)}") from error
    raise UserError(f"{place} must be callable with num_classes, with classes or without arguments: {reason}")


def error_line(error: BaseException) -> str:
    """`ValueError: words (nets.py line 12)`: the innermost line that is neither ours nor of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith(("<", PACKAGE, *LIBRARIES))]
    place = f" ({os.path.relpath(users[-1].filename)} line {users[-1].lineno})" if users else ""
    return f"{type(error).__name__}: {first_line(error)[:300]}{place}"
