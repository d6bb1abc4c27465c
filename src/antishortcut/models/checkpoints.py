"""Files of weights: safetensors, and torch checkpoints that hold nothing but tensors and settings."""

from __future__ import annotations

import argparse
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

from antishortcut.errors import UserError, first_line

# where training scripts put the weights; those of an average only where there are no others
PLAIN = ("state_dict", "model_state_dict", "model", "net", "network", "params", "weights", "module")
AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "ema", "params_ema")
NESTED = 8  # dicts around the weights
REMEDY = "save its state_dict alone, torch.save(model.state_dict(), FILE), or as safetensors"


def read(path: Path) -> dict[str, Tensor]:
    """The tensors in a file by name, out of whatever they are packed in."""
    if not os.path.exists(path):  # False as well for a name that is none
        raise UserError(f"no weights at {path}")
    if not path.is_file():
        raise UserError(f"{path} is no file; name a file of weights")
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if start[8:9] == b"{":  # safetensors: the length of a header, then the header
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError, RuntimeError, MemoryError) as error:
            raise UserError(
                f"{path} holds no plain tensors: damaged or incomplete, download it again: {first_line(error)}"
            ) from error
    if not start.startswith((b"PK\x03\x04", b"\x80")):  # an archive, a pickle: what torch.save writes, new and old
        raise UserError(
            f"{path} holds no plain tensors: it begins with {start[:24]!r}; "
            "download the file itself (Git LFS: git lfs pull)"
        )
    return unpacked(loaded(path), path)


class NumpyNumber:
    """Stands for a number or array of numpy's beside the weights: numpy's own constructors may run code."""

    def __new__(cls, *_: object) -> Self:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Its value is not kept."""


class NumpyType(NumpyNumber):
    """The type of such numbers, which must not be object: those may hold a pickle of their own."""

    def __new__(cls, *args: object) -> Self:
        if not (args and isinstance(args[0], str) and re.fullmatch(r"[biufcmMSUV]\d*", args[0])):
            raise pickle.UnpicklingError("Unsupported class numpy.object_")
        return super().__new__(cls)


SAFE: list[Any] = [
    argparse.Namespace,
    (NumpyType, "numpy.dtype"),
    (NumpyNumber, "numpy.ndarray"),
    *((NumpyNumber, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),  # numpy 1 and 2
    *((NumpyNumber, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
]


def loaded(path: Path) -> Any:
    """The content of a torch file, old or new, as long as it runs no code."""
    try:
        with path.open("rb") as file, torch.serialization.safe_globals(SAFE), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL ([\w.]+)|[Uu]nsupported (?:global|class) ([\w.]+)", str(error)[:2000])
        what = f"a {name[1] or name[2]}, which could run any code" if name else "what torch cannot read safely"
        raise UserError(f"{path} holds no plain tensors but {what}; {REMEDY}") from error
    except Exception as error:  # half a pickle may raise anything
        raise UserError(
            f"{path} holds no plain tensors: damaged, incomplete or no state_dict; download it again, or {REMEDY}: "
            f"{first_line(error)[:200]}"
        ) from error


def unpacked(content: Any, path: Path) -> dict[str, Tensor]:
    """The weights among what a training script saved."""
    for _ in range(NESTED):
        inside = [
            key for key in (*PLAIN, *AVERAGED) if isinstance(content, Mapping) and isinstance(content.get(key), Mapping)
        ]
        if not inside:
            break
        averaged = [key for key in inside if key in AVERAGED]
        if averaged and inside[0] not in AVERAGED:
            both = f"{inside[0]!r} and {averaged[0]!r}"
            warnings.warn(f"{path} holds {both}: the first is used; save the other alone to use it", stacklevel=2)
        content = content[inside[0]]
    tensors = {}
    if isinstance(content, Mapping):
        tensors = {key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, Tensor)}
    for key, value in tensors.items():
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_nested:
            raise UserError(f"{path} holds no plain tensors: {key!r} is sparse, quantised or a mere shape; {REMEDY}")
    if not tensors:
        holds = ", ".join(map(str, list(content)[:6])) if isinstance(content, Mapping) else type(content).__name__
        raise UserError(f"{path} holds no state_dict but {holds or 'nothing'}; {REMEDY}")
    return tensors
