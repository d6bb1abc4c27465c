"""Files of weights: safetensors, whole or in parts, and torch checkpoints that hold nothing but tensors."""

from __future__ import annotations

import argparse
import codecs
import json
import os
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from antishortcut.errors import UserError
from antishortcut.files import arrays, plain, programs, text

# where training scripts put the weights; those of an average only where there are no others
PLAIN = ("state_dict", "model_state_dict", "model", "net", "network", "params", "weights", "module")
AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "ema", "params_ema")
NESTED = 8  # dicts around the weights
HEADER = 100_000_000  # bytes that safetensors may name its tensors in
INDEX = ".index.json"
TORCH = (b"PK\x03\x04", b"\x80")  # an archive, a pickle: what torch.save writes, new and old
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
    if not tensors:
        refuse_others(path, start)
    if tensors or (path.suffix == ".safetensors" and not start.startswith(TORCH)):
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError, RuntimeError, MemoryError) as error:
            room_for(path, error)
            raise UserError(
                f"{path} holds no plain tensors: it is cut short or damaged, fetch it again{because(error)}"
            ) from error
    return unpacked(loaded(path), path)


def refuse_others(path: Path, start: bytes) -> None:
    """Say of a file that holds no tensors what it is, by its first bytes, and what to do."""
    words = start.removeprefix(codecs.BOM_UTF8).strip()
    if words.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} is only a pointer of Git LFS; fetch the weights themselves: git lfs pull")
    if not words:
        raise UserError(f"{path} is empty, it holds no plain tensors; fetch the weights again")
    if words.startswith(b"<"):
        raise UserError(f"{path} is a web page, it holds no plain tensors; fetch the file itself, not its page")
    if words.startswith(b"\x93NUMPY") or (words.startswith(b"PK") and arrays(path)):
        raise UserError(f"{path} is numpy's; save it for torch: {NUMPY}")
    if _legible(words):
        raise UserError(f"{path} holds no plain tensors: it is text; name a file of weights")


def _legible(start: bytes) -> bool:
    """Whether it is text, its last letter perhaps cut; one or two bytes may be the beginning of anything."""
    try:
        letters = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return len(letters) > 2 and "".join(letters.split()).isprintable()


class NumpyNumber:
    """A number or array of numpy's beside the weights: its place is kept, and nothing of numpy is called.

    What numpy makes of a pickle is numpy's to say, and of objects it may be anything; nobody needs it here.
    """

    def __new__(cls, *_: object) -> Self:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Its numbers are not kept."""


class NumpyArray(NumpyNumber):
    pass


class NumpyType(NumpyNumber):
    """The type of such numbers, which must not be object: those may hold a pickle of their own."""

    def __new__(cls, *parts: object) -> Self:
        if not (parts and isinstance(parts[0], str) and re.fullmatch(r"[biufcmMSUV]\d*", parts[0])):
            raise pickle.UnpicklingError("Unsupported class numpy.object_")
        return super().__new__(cls)


INERT: list[Any] = [  # what torch.save writes for numpy's numbers, and what stands for it as it is read
    (NumpyType, "numpy.dtype"),
    (NumpyArray, "numpy.ndarray"),
    *((NumpyNumber, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),  # numpy 1 and 2
    *((NumpyArray, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
]


def loaded(path: Path) -> Any:
    """The content of a torch file, old or new, as long as it runs no code."""
    if programs(path):
        raise UserError(f"{path} is a TorchScript program, not weights; {ALONE}")
    try:
        safe = torch.serialization.safe_globals([argparse.Namespace, *INERT])  # they hold settings
        with path.open("rb") as file, safe, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # as a file: torch would take a path's ending for what is in it
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if found := re.search(r"GLOBAL ([\w.]+)|[Uu]nsupported (?:global|class) ([\w.]+)", str(error)):
            raise UserError(
                f"{path} holds no plain tensors but a {found[1] or found[2]}, which could run any code; {ALONE}"
            ) from error
        raise UserError(f"{path} holds no plain tensors: it is damaged, or no checkpoint of torch; {ALONE}") from error
    except Exception as error:  # half a pickle may raise anything
        room_for(path, error)
        raise UserError(
            f"{path} holds no plain tensors: it is cut short or damaged; fetch it again, or {ALONE}{because(error)}"
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
    values = content.values() if isinstance(content, Mapping) else (content,)
    if any(isinstance(value, NumpyArray) for value in values):
        raise UserError(f"{path} holds arrays of numpy's, not tensors; save it with torch.from_numpy(value) for each")
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


def because(error: BaseException) -> str:
    """What a library said, where it said it in words: half a pickle may end in a mere number."""
    said = next((text.strip()[:200] for text in str(error).splitlines() if text.strip()), "")
    return f": {said}" if " " in said else ""
