"""Your own network, `package.module:factory` or a Python object; errors in its code become one line that says where."""
# B batch, C classes, H × W pixels

import copy
import hashlib
import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError, first_line, suggest
from antishortcut.fileio import sha256
from antishortcut.models.feature_extractor import silent
from antishortcut.models.wrapper import Network
from antishortcut.types import DataSplits, Features

PACKAGE = str(Path(__file__).resolve().parent.parent)
LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))

_built: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # networks that factories have returned
_code: dict[str, tuple[object, str]] = {}  # module → its spec, which a new import replaces, and its file's sha256 then


def from_own(place: str, classes: int) -> nn.Module:
    """Call `package.module:factory`, searching the current folder too.

    The factory takes num_classes, or classes, or nothing; a network in place of a factory is copied.
    """
    where, _, name = place.partition(":")
    if not where or not name or ":" in name:
        raise UserError(f"{place} names no function; write package.module:factory")
    factory = _import(where, place)
    for part in name.split("."):  # a class's own method may be the factory
        owner, factory = factory, getattr(factory, part, None)
        if factory is None:
            public = [word for word, value in vars(owner).items() if not word.startswith("_") and callable(value)]
            raise UserError(f"{where!r} has no function {name!r}{suggest(part, public)}")
    module = copy.deepcopy(factory) if isinstance(factory, nn.Module) else _call(factory, place, classes)
    if not isinstance(module, nn.Module):
        raise UserError(f"{place} returned {type(module).__name__}; expected a torch.nn.Module")
    if module in _built:
        raise UserError(f"{place} returned the same network as before; let it make a new one every time")
    _built.add(module)
    own_code(place)  # now: the files may be edited while this process runs
    check_state(module, place)
    return module


def check_state(module: nn.Module, place: str) -> None:
    """Raise for weights that cannot be trained and saved."""
    for key, value in module.state_dict().items():
        if not isinstance(value, Tensor) or value.is_quantized:
            kind = "quantised" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{place}: {key} in its state_dict is {kind}; only plain tensors can be trained and saved")


def own_code(place: str) -> dict[str, str]:
    """Module → sha256 of its file when it was imported: of the factory's, and of those in and beside its package.

    Of an installed package it is the factory's module alone.
    """
    where, digests = place.partition(":")[0], dict[str, str]()
    file = getattr(_import(where, place), "__file__", None) or os.devnull
    package = [*getattr(sys.modules[where.partition(".")[0]], "__path__", ()), file][0]
    folder = os.path.join(os.path.dirname(package), "")
    for name, module in list(sys.modules.items()):
        file, spec = (getattr(module, key, None) for key in ("__file__", "__spec__"))
        if spec is None or not isinstance(file, str) or not file.startswith(folder):
            continue  # spec: a script, which has none, makes no networks
        if (name == where or not file.startswith((PACKAGE, *LIBRARIES))) and os.path.isfile(file):
            if name not in _code or _code[name][0] is not spec:
                _code[name] = spec, sha256(Path(file))
            digests[name] = _code[name][1]
    return digests


def _import(where: str, place: str) -> Any:
    """Import a module, also from the current folder, which is searched last."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()  # the file may be new
    try:
        with torch.random.fork_rng(devices=[]):  # random numbers drawn by the first import must not matter
            torch.default_generator.manual_seed(0)
            return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (where == missing or where.startswith(f"{missing}.")):
            problem = f"cannot import {where!r} for {place}: there is no {missing!r} in {os.getcwd()} or installed"
            raise UserError(f"{problem}; write timm:NAME, torchvision:NAME or package.module:factory") from None
        raise UserError(f"{place} cannot be imported: {error_line(error)}") from error


def _call(factory: Callable[..., object], place: str, classes: int) -> object:
    """Call the factory with num_classes, classes, or nothing, as its signature allows."""
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


def try_out(network: Network, name: str, image_size: int, own: bool = False) -> None:
    """Run the network once in evaluation mode, which finds embedding and stages, and once in training mode.

    A network that cannot work fails here, before training. own: a user's code, which gets further checks.
    """
    weight = next(network.parameters(), torch.empty(0))
    image = torch.rand(2, 3, image_size, image_size, generator=torch.Generator().manual_seed(0)).to(weight.device)
    with silent(network):
        evaluated = _features(network, image, name, "")
    if weight.is_meta:
        return
    with training_mode(network):
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
    total = evaluated.logits.sum(dim=1)
    if (evaluated.logits >= 0).all() and torch.allclose(total, torch.ones_like(total), atol=1e-3):
        warnings.warn(f"{name} returns probabilities, and losses expect logits; remove its last softmax", stacklevel=3)
    with silent(network), torch.random.fork_rng(devices=[]):
        again: Features = network(image)
    if not torch.allclose(evaluated.logits, again.logits, rtol=1e-3, atol=1e-4, equal_nan=True):
        advice = "use self.training, as in F.dropout(x, p, self.training)"
        warnings.warn(f"{name} is random in evaluation mode; {advice}", stacklevel=3)


def _features(network: Network, image: Tensor, name: str, mode: str) -> Features:
    """The network's features; an error in its code becomes one line with what to do."""
    try:
        return network(image)  # type: ignore[no-any-return]
    except UserError as error:
        raise UserError(f"{name}{mode}: {error}") from error
    except Exception as error:
        line = error_line(error)
        text = f"{name} failed{mode}: {line}; forward must take images (B, 3, H, W) and nothing else"
        if channels := re.search(r"to have (\d+) channels, but got 3 channels", str(error)):
            text = f"{name} takes {channels[1]} channels; images have 3, grey ones three equal ones"
        elif isinstance(error, RuntimeError | AssertionError | ValueError) and type(error) is not NotImplementedError:
            advice = "use larger ones (data.image_size), or those it is made for (size = … beside its name)"
            text = f"{name} cannot read images of {network.size or image.shape[-1]} pixels{mode}: {line}; {advice}"
        raise UserError(text) from error


@contextmanager
def training_mode(network: nn.Module) -> Iterator[None]:
    """Training mode without gradients that leaves no trace in modes, buffers, or random numbers."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in network.buffers()]
    with silent(network), torch.random.fork_rng(devices=[]):
        network.train()
        try:
            yield
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)


def check_single_image(network: Network, name: str, sets: DataSplits) -> None:
    """Raise if the network cannot train on a batch of one image: batch norm of a 1 × 1 map needs two values."""
    image = torch.full((1, 3, sets.image_size, sets.image_size), 0.5, device=network.mean.device)
    try:
        with training_mode(network):
            network(image)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            f"{name} cannot train on a single image (batch norm of 1 × 1 maps), and some steps have only one; "
            "use another optim.batch, fewer processes or micro-batches, or larger images"
        ) from None


# --- A network given as a Python object, `live:CLASS-DIGEST` in recipes and run folders; copies of it are built ---

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
        digest.update(f"\n{kind.__module__}.{kind.__qualname__}\n".encode() + _source_code(kind))
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


def _source_code(kind: type) -> bytes:
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
