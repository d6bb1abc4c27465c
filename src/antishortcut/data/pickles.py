"""Pickles of arrays, read without trusting them: nothing can be built but plain containers and numpy arrays."""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..errors import UserError, first_line
from ..files import content as content_of

LARGEST = 4 * 2**30  # bytes of a file


def _latin1(text: str, encoding: str) -> bytes:
    """Stands in for _codecs.encode, with which Python 3 writes bytes into the old protocol 2."""
    if encoding not in ("latin1", "latin-1", b"latin1", b"latin-1"):
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


def _from_buffer(data: bytes, kind: Any, shape: tuple[int, ...], order: str) -> Any:
    """Stands in for numpy's _frombuffer."""
    if not isinstance(data, bytes | bytearray) or not isinstance(kind, np.dtype):
        raise pickle.UnpicklingError("an array without bytes or type")
    return np.frombuffer(data, dtype=kind).reshape(shape, order="F" if order == "F" else "C")


def _no_bytes(*given: object) -> bytes:
    """Stands in for bytes, which protocol 2 calls for an empty one; of a number it would make as many zeros."""
    if given:
        raise pickle.UnpicklingError("bytes of something are not allowed")
    return b""


_ALLOWED: dict[tuple[str, str], Callable[..., Any] | str] = {  # numpy 2 moved its core; files of both ages exist
    ("numpy", "ndarray"): "ndarray",  # named, never called: numpy.ndarray turns bytes into pointers when told to
    ("numpy", "dtype"): _number,
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _latin1,
    ("__builtin__", "bytes"): _no_bytes,
}
# instructions that data never need: classes called in other ways than REDUCE, objects from outside the file, sets
_REFUSED = {
    "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER",
    "READONLY_BUFFER", "EMPTY_SET", "ADDITEMS", "FROZENSET",
}  # fmt: skip


class _ArraysOnly(pickle._Unpickler):
    """The unpickler that is written in Python, so that each instruction can be looked at before it is carried out."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(
        pickle._Unpickler.dispatch
    )  # the other is the library's

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it wants to load {module}.{name}, which image data never need") from None

    def _reduce(self) -> None:
        """Call what is allowed, and nothing that merely lies on the stack."""
        arguments, function = self.stack.pop(), self.stack[-1]  # type: ignore[attr-defined]
        if not callable(function) or not any(function is each for each in _ALLOWED.values()):
            raise pickle.UnpicklingError("it wants to call what is no function of numpy's")
        self.stack[-1] = function(*arguments)  # type: ignore[attr-defined]

    def _build(self) -> None:
        """Fill an array; of a type that numpy shares there is nothing to fill."""
        state, made = self.stack.pop(), self.stack[-1]  # type: ignore[attr-defined]
        if isinstance(made, np.ndarray) and isinstance(state, tuple) and isinstance(state[2], np.dtype):
            made.__setstate__(state)
        elif not isinstance(made, np.dtype):
            raise pickle.UnpicklingError("it wants to alter what is no array")

    def _bytes(self) -> None:
        """As many bytes as there are; the library would make room for as many as are said."""
        (size,) = struct.unpack("<Q", self.read(8))  # type: ignore[attr-defined]
        data = self.read(size)  # type: ignore[attr-defined]
        if len(data) != size:
            raise pickle.UnpicklingError("cut short")
        self.append(bytearray(data))  # type: ignore[attr-defined]

    def _item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        dict.update(self.stack[-1], _pairs([key, value]))  # type: ignore[attr-defined]

    def _items(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        dict.update(self.stack[-1], _pairs(items))  # type: ignore[attr-defined]

    def _dict(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self.append(_pairs(items))  # type: ignore[attr-defined]


for _name, _way in {
    "REDUCE": _ArraysOnly._reduce,
    "BUILD": _ArraysOnly._build,
    "BYTEARRAY8": _ArraysOnly._bytes,
    "SETITEM": _ArraysOnly._item,
    "SETITEMS": _ArraysOnly._items,
    "DICT": _ArraysOnly._dict,
}.items():
    _ArraysOnly.dispatch[getattr(pickle, _name)[0]] = _way
for _each in pickletools.opcodes:
    if _each.name in _REFUSED:
        _ArraysOnly.dispatch.pop(ord(_each.code), None)


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return {_key(items[at]): items[at + 1] for at in range(0, len(items) - 1, 2)}


def _key(key: Any) -> Any:
    """A name. To hash tuples of tuples, each of them twice the same one, would take for ever."""
    if not isinstance(key, str | bytes | int):
        raise pickle.UnpicklingError("a key that is no name")
    return key


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
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in loaded.items()}
    except Exception as error:  # a damaged pickle can raise anything
        reason = f"no instruction {error}" if isinstance(error, KeyError) else first_line(error)
        raise UserError(f"{path} is damaged or not what it says ({reason}); remove it, then {hint}") from None
