"""Pickles of arrays, read without trusting them: nothing can be built but plain containers and numpy arrays."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError


def _latin1(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, with which Python 3 writes bytes into the old protocol 2."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin1")


def _number(code: str | bytes, *_: object) -> Any:
    """Stands in for numpy.dtype: numbers only, and numpy's own shared types, which no later instruction can alter."""
    name = code.decode() if isinstance(code, bytes) else code
    if not re.fullmatch(r"[|<]?[biuf][1248]", name):
        raise pickle.UnpicklingError(f"arrays of type {name!r} are not allowed")
    return np.dtype(name)


def _empty(*_: object) -> Any:
    """Stands in for numpy's _reconstruct: the array that the next instruction fills with shape, type and bytes."""
    return np.empty(0, dtype=np.uint8)


_FROM_BUFFER: Any = np.zeros(1).__reduce_ex__(5)[0]
_ALLOWED: dict[tuple[str, str], object] = {  # numpy 2 moved its core; files of both ages exist
    ("numpy", "ndarray"): "ndarray",  # named, never called: numpy.ndarray turns bytes into pointers when told to
    ("numpy", "dtype"): _number,
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("numpy.core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("_codecs", "encode"): _latin1,
    ("__builtin__", "bytes"): bytes,  # how protocol 2 writes an empty one
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it wants to load {module}.{name}, which image data never need") from None


def read_pickle(path: Path, size: int, md5: str, hint: str) -> dict[str, Any]:
    """A pickled dictionary with its keys as text.

    A file of the official size must have the official md5 (else it is damaged); any other is somebody's own data.
    `hint` ends the error of a missing or damaged file with what to do.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); {hint}") from None
    if len(content) == size and hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise UserError(f"{path} is damaged (its md5 is not {md5}); remove it, then {hint}")
    try:
        # as bytes, because decoding 150 MB of Python 2 strings as text takes ten times as long
        loaded = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in loaded.items()}
    except Exception as error:  # a damaged pickle can raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} is damaged or not what it says ({reason}); remove it, then {hint}") from None
