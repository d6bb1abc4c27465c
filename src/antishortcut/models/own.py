"""Your own network, named as `package.module:factory`; what fails in its code is said in a line that names where."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError, near

PACKAGE = Path(__file__).resolve().parent.parent
LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))

_given: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # networks that factories have returned


def from_own(place: str, classes: int) -> nn.Module:
    """The network that `package.module:factory` makes; the current folder is searched too.

    The factory takes num_classes, or classes, or nothing; a network in place of a factory is copied.
    """
    where, _, name = place.partition(":")
    if not where or not name or ":" in name:
        raise UserError(f"{place} names no function; write package.module:factory")
    with current_folder():
        found = imported(where, place)
        factory = found
        for part in name.split("."):  # a class's own method may be the factory
            inside, factory = factory, getattr(factory, part, None)
            if factory is None:
                public = [
                    word
                    for word, value in vars(inside).items()
                    if not word.startswith("_") and (callable(value) or isinstance(value, nn.Module))
                ]
                file = f" ({shown(file)})" if (file := getattr(found, "__file__", None)) else ""
                raise UserError(f"{where!r}{file} has no function {name!r}{near(part, public)}")
        if isinstance(factory, nn.Module):
            check_state(factory, place)
            return copy.deepcopy(factory)
        if not callable(factory):
            raise UserError(f"{place} is {type(factory).__name__}, not a function that makes a network")
        module = made(factory, place, classes)
    if not isinstance(module, nn.Module):
        raise UserError(f"{place} returned {type(module).__name__}; wanted a torch.nn.Module")
    if module in _given:
        raise UserError(f"{place} returned the same network as before; let it make a new one every time")
    _given.add(module)
    check_state(module, place)
    return module


def check_state(module: nn.Module, place: str) -> None:
    """Weights are trained and saved as tensors of plain numbers."""
    try:
        state = dict(module.state_dict())
    except Exception as error:
        raise UserError(f"{place}: its state_dict() failed, so it cannot be saved: {blame(error)}") from error
    for key, value in state.items():
        if value.is_quantized if isinstance(value, Tensor) else "_packed_params" in key:
            raise UserError(
                f"{place} has quantised weights ({key}), which can be neither trained nor saved: give the float model"
            )
        if not isinstance(value, Tensor):
            raise UserError(
                f"{place} keeps {key} of type {type(value).__name__} among its weights, and only tensors can be saved: "
                "let it be a tensor, or leave it out of state_dict() and get_extra_state()"
            )


@contextmanager
def current_folder() -> Iterator[None]:
    """Modules of the current folder can be imported, after all others."""
    here = os.getcwd()
    sys.path.append(here)
    importlib.invalidate_caches()  # a file may be younger than the last look at its folder
    try:
        yield
    finally:
        if here in sys.path:  # the last one, which is ours
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


def imported(where: str, place: str) -> Any:
    """The module of that name, or what keeps it from being imported."""
    try:
        with torch.random.fork_rng(devices=[]):  # it may be imported by now or not: what it draws must not matter
            torch.default_generator.manual_seed(0)  # and no GPU's, which is not put back
            return importlib.import_module(where)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if where == missing or where.startswith(f"{missing}."):  # itself, or a package it should be in
            raise UserError(
                f"cannot import {where!r} for {place}: there is no {missing!r} in {os.getcwd()} or installed; "
                "write timm:NAME, torchvision:NAME or package.module:factory"
            ) from None
        raise UserError(f"{place} needs {missing!r}, which is not installed: {blame(error)}") from error
    except SyntaxError as error:
        raise UserError(f"{place}: {shown(error.filename)} line {error.lineno} is no Python: {error.msg}") from error
    except SystemExit as error:
        raise UserError(
            f"{place}: importing {where!r} ends the program; put what it runs below if __name__ == '__main__':"
        ) from error
    except Exception as error:
        raise UserError(f"{place} cannot be imported, correct its code: {blame(error)}") from error


def made(factory: Callable[..., object], place: str, classes: int) -> object:
    """What the factory returns, given the number of classes under the name it has there."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # written in C: nobody knows
        options = {"num_classes": classes}
    else:
        options = asked(signature, place, classes)
    try:
        return factory(**options)
    except UserError:
        raise
    except SystemExit as error:
        raise UserError(
            f"{place} ends the program; let it return a network, without reading the command line"
        ) from error
    except Exception as error:
        given = ", ".join(f"{key}={value}" for key, value in options.items())
        raise UserError(f"{place}, called with ({given}), failed: {blame(error)}") from error


def asked(signature: inspect.Signature, place: str, classes: int) -> dict[str, int]:
    options: dict[str, int]
    reason: TypeError | None = None
    for options in ({"num_classes": classes}, {"classes": classes}, {}):
        try:
            signature.bind(**options)
        except TypeError as error:
            named = all(key in signature.parameters for key in options)
            reason = error if reason is None or (options and named) else reason
        else:
            return options
    raise UserError(f"{place} must be callable with num_classes alone, with classes alone or with nothing: {reason}")


def blame(error: BaseException) -> str:
    """`ValueError: words (nets.py line 12)`: the innermost line that is neither ours nor of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not known(frame.filename)]
    words = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    place = f" ({shown(theirs[-1].filename)} line {theirs[-1].lineno})" if theirs else ""
    return f"{type(error).__name__}{': ' * bool(words)}{words[:300]}{place}"


def known(file: str) -> bool:
    return file.startswith(("<", *LIBRARIES)) or Path(file).is_relative_to(PACKAGE)


def shown(file: str | None) -> str:
    """A path as short as it can be told."""
    path = Path(file or "?")
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
