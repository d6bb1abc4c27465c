"""CIFAR's pickles, read without trusting them: nothing can be built but plain containers and arrays of numbers."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from antishortcut.errors import UserError, first_line
from antishortcut.fileio import content as content_of

LARGEST = 4 * 2**30  # bytes of a file


class _Dtype:
    """Stands in for numpy.dtype: numbers only."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        name = code.decode() if isinstance(code, bytes) else code
        if not re.fullmatch(r"[|<]?[biuf][1248]", name):
            raise pickle.UnpicklingError(f"arrays of type {name!r} are not allowed")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in (">", b">"):
            raise pickle.UnpicklingError("big-endian arrays are not allowed")


class _Array:
    """Stands in for numpy.ndarray, which could be told to read any memory."""

    value: Any = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        self.value = _from_buffer(data, kind, shape, "F" if fortran else "C").value


def _from_buffer(data: bytes, kind: _Dtype, shape: tuple[int, ...], order: Any) -> _Array:
    """Stands in for numpy's _frombuffer."""
    array = _Array()
    array.value = np.frombuffer(data, kind.dtype).reshape(shape, order=order)
    return array


def _latin1(text: str, encoding: str | bytes) -> bytes:
    """Stands in for _codecs.encode, with which Python 3 writes bytes into the old protocol 2."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {  # numpy 2 moved its core; files of both ages exist
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _latin1,
    ("__builtin__", "bytes"): bytes,  # protocol 2 calls it for an empty one
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
        content = content_of(path, LARGEST)
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); {hint}") from None
    if len(content) == size and hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise UserError(f"{path} is damaged (its md5 is not {md5}); remove it, then {hint}")
    try:
        # as bytes, because decoding 150 MB of Python 2 strings as text takes ten times as long
        loaded = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(loaded, dict):
            raise pickle.UnpicklingError("no dictionary")
        return {
            key.decode() if isinstance(key, bytes) else str(key): value.value if isinstance(value, _Array) else value
            for key, value in loaded.items()
        }
    except Exception as error:  # a damaged pickle can raise anything
        reason = first_line(error)
        raise UserError(f"{path} is damaged or not what it says ({reason}); remove it, then {hint}") from None
