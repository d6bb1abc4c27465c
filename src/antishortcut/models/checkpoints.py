"""Files of weights: safetensors, whole or in parts, and torch checkpoints that hold nothing but tensors."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from antishortcut.errors import UserError
from antishortcut.files import arrays, plain, programs, text
from antishortcut.saved import load

# where training scripts put the weights; those of an average only where there are no others
PLAIN = ("state_dict", "model_state_dict", "model", "net", "network", "params", "weights", "module")
AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "ema", "params_ema")
NESTED = 8  # dicts around the weights
HEADER = 100_000_000  # bytes that safetensors may name its tensors in
INDEX = ".index.json"
KINDS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
NUMPY = "torch.save({key: torch.from_numpy(value) for key, value in numpy.load(FILE).items()}, OTHER)"
ALONE = "save its state_dict alone, torch.save(model.state_dict(), FILE), or as safetensors"


def read(path: Path) -> dict[str, Tensor]:
    """The tensors in a file by name, out of whatever they are packed in."""
    if not os.path.exists(path):  # of a name that is no name, False as well
        raise UserError(f"no weights at {path}")
    try:
        plain(path)
        with path.open("rb") as file:
            start = file.read(64)
    except IsADirectoryError:
        names = os.listdir(path) if os.access(path, os.R_OK) else []
        files = sorted(filter(lambda name: name.endswith((INDEX, *KINDS)), names), key=lambda name: INDEX not in name)
        inside = f": name a file in it ({', '.join(files[:3])}{', …' if len(files) > 3 else ''})" if files else ""
        raise UserError(f"{path} is a folder, not a file of weights{inside}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if path.name.endswith(INDEX):
        return sharded(path)
    fits(path, path)
    tensors = start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= HEADER
    if start.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} is only a pointer of Git LFS; fetch the weights themselves: git lfs pull")
    if not tensors and start.lstrip()[:1] in (b"", b"<"):
        what = "is a web page" if start.strip() else "is empty"
        raise UserError(f"{path} {what}, it holds no plain tensors; fetch the weights again")
    if start.startswith(b"\x93NUMPY") or (start.startswith(b"PK") and arrays(path)):
        raise UserError(f"{path} is numpy's; save it for torch: {NUMPY}")
    if len(start) > 16 and start.isascii() and not tensors and start.decode().replace("\n", "").isprintable():
        raise UserError(f"{path} is text, it holds no plain tensors; name a file of weights")
    if tensors or path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError, RuntimeError, MemoryError) as error:
            room_for(path, error)
            raise UserError(
                f"{path} holds no plain tensors: it is cut short or damaged, fetch it again: {line(error)}"
            ) from error
    return unpacked(loaded(path), path)


def loaded(path: Path) -> Any:
    """The content of a torch file, old or new, as long as it runs no code."""
    if programs(path):
        raise UserError(f"{path} is a TorchScript program, not weights; {ALONE}")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():  # it holds settings
            warnings.simplefilter("ignore")
            return load(path)
    except pickle.UnpicklingError as error:
        if found := re.search(r"GLOBAL ([\w.]+)|[Uu]nsupported (?:global|class) ([\w.]+)", str(error)):
            raise UserError(
                f"{path} holds no plain tensors but a {found[1] or found[2]}, which could run any code; {ALONE}"
            ) from error
        raise UserError(f"{path} holds no plain tensors: it is damaged, or no checkpoint of torch; {ALONE}") from error
    except Exception as error:  # half a pickle may raise anything
        room_for(path, error)
        raise UserError(
            f"{path} holds no plain tensors: it is cut short or damaged; fetch it again, or {ALONE}: {line(error)}"
        ) from error


def unpacked(content: Any, path: Path) -> dict[str, Tensor]:
    """The weights among what a training script saved."""
    for _ in range(NESTED):
        inside = [key for key in (*PLAIN, *AVERAGED) if isinstance(content, Mapping) and _holds(content, key)]
        if not inside:
            break
        averaged = [key for key in inside if key in AVERAGED]
        if averaged and inside[0] not in AVERAGED:
            both = f"{inside[0]!r} and {averaged[0]!r}"
            warnings.warn(f"{path} holds {both}: the first is used; save the other alone to use it", stacklevel=2)
        content = content[inside[0]]
    else:
        raise UserError(f"{path} holds no state_dict but dicts in dicts, more than {NESTED} of them; {ALONE}")
    if isinstance(content, Mapping):
        named = {key: value for key, value in content.items() if isinstance(key, str)}
        tensors = {key: value for key, value in named.items() if isinstance(value, Tensor)}
        if strange := next((key for key, value in tensors.items() if not _in_the_file(value)), None):
            raise UserError(f"{path} holds no plain tensors: {strange!r} is sparse, quantised or a mere shape; {ALONE}")
        if tensors:
            return tensors
    if isinstance(content, Mapping) and {"state", "param_groups"} <= content.keys():
        raise UserError(f"{path} holds the state of an optimiser, not of a network; {ALONE}")
    holds = ", ".join(map(str, list(content)[:6])) if isinstance(content, Mapping) else type(content).__name__
    raise UserError(
        f"{path} holds no state_dict but {holds or 'nothing'}; wanted a dict of tensors, alone or under one of "
        f"{', '.join(PLAIN[:3])}"
    )


def _holds(content: Mapping[Any, Any], key: str) -> bool:
    return isinstance(content.get(key), Mapping)


def _in_the_file(value: Tensor) -> bool:
    """Whether a tensor's numbers are all there, as plain as networks have them."""
    return value.layout is torch.strided and value.device.type == "cpu" and not (value.is_quantized or value.is_nested)


def sharded(path: Path) -> dict[str, Tensor]:
    """Weights in several files, as `model.safetensors.index.json` lists them."""
    try:
        places: dict[str, str] = json.loads(text(path))["weight_map"]
        files = sorted({Path(file).name for file in places.values()})  # beside it, wherever they say
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is no index of weights; wanted a 'weight_map' from names to files") from None
    if other := next((file for file in files if file.endswith(INDEX)), None):
        raise UserError(f"{path} names another index, {other}, where files of weights are wanted; fetch it again")
    fits(path, *(path.parent / file for file in files))
    state: dict[str, Tensor] = {}
    for file in files:
        state |= read(path.parent / file)
    if lost := [key for key in places if key not in state]:
        raise UserError(f"{path} promises {lost[0]!r} in {places[lost[0]]}, which has none; fetch the files again")
    return state


def fits(path: Path, *files: Path) -> None:
    """Refuse files that all memory of the machine could not hold, before it is tried."""
    size = sum(file.stat().st_size for file in files if os.path.isfile(file))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise UserError(
            f"{path} holds {size / 1e9:,.0f} GB, and this machine has {memory / 1e9:,.0f} GB of memory; "
            "take the weights of a smaller network"
        )


def room_for(path: Path, error: Exception) -> None:
    """Say so where it was memory that a file did not get."""
    if isinstance(error, MemoryError) or re.search("allocate memory|not enough memory", str(error)):
        raise UserError(f"{path} does not fit into the memory that is left; end other programs") from error


def line(error: BaseException) -> str:
    return next((text.strip()[:200] for text in str(error).splitlines() if text.strip()), type(error).__name__)
