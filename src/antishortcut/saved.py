"""Files that torch.save wrote, read as tensors and plain values: nothing in them runs, and a refusal is quick.

A pickle may hold one thing many times over by fetching it from its memo: forty tuples, each of the one before twice,
are a kilobyte, and a trillion to whoever takes their hash or writes them into a message. So what a file fetches is
weighed as if it were written out.
"""

from __future__ import annotations

import codecs
import pickle
import pickletools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

import torch
from torch import _weights_only_unpickler

from antishortcut.files import stored

UNPICKLER: Any = _weights_only_unpickler.Unpickler  # with which torch.load reads, of either form
WHOLE = UNPICKLER.load
LONGEST = 500  # characters of what the unpickler refuses; names of modules and classes are shorter
MOST = 2**20  # values that a file may fetch, those within others and every LETTERS of a text counted
LETTERS = 64
DEEPEST = 50  # tuples in tuples; Python takes the hash of deeper ones until its stack ends the process
TEXTS = ("latin1", "latin-1", "ascii", "utf-8")  # as what bytes are written; hex and others make twice as much of them
# What messages would hold of tensors and storages, all their numbers, and stays out of them meanwhile
LENGTHY: list[tuple[Any, str, Any]] = [
    (owner, name, getattr(owner, name))
    for owner, name in (
        (torch.Tensor, "__repr__"),
        (torch.storage._StorageBase, "__repr__"),
        (torch.TypedStorage, "__repr__"),
        (torch.TypedStorage, "__str__"),
    )
]


def load(file: Path | IO[bytes]) -> Any:
    """Its content on the CPU. What is no such file raises anything."""
    stored(file)
    if not isinstance(file, Path):
        file.seek(0)
    with _brief():
        return torch.load(file, map_location="cpu", weights_only=True)


@contextmanager
def _brief() -> Iterator[None]:
    """Have files guarded, and refusals cut short before torch.load looks for words in them.

    It does by patterns that take the square of a length, and a file may make refusals as long as it is: eight thousand
    letters take a second, a million hours.
    """

    def load(self: Any) -> Any:
        self.memo = _Memo()
        self.read = _guarded(self)
        try:
            return WHOLE(self)
        except pickle.UnpicklingError as error:
            raise pickle.UnpicklingError(str(error)[:LONGEST]) from None

    UNPICKLER.load = load
    for owner, name, _ in LENGTHY:
        setattr(owner, name, object.__repr__)
    try:
        yield
    finally:
        UNPICKLER.load = WHOLE
        for owner, name, own in LENGTHY:
            setattr(owner, name, own)


class _Memo(dict[int, Any]):
    """What a file may fetch, as long as all it fetches is not too much when written out.

    There is no other way to hold a thing twice, so this bounds all that can be made of it: keys of dicts and parts of
    persistent ids, which are hashed, arguments of whatever is called, and what is written into messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left = MOST
        self.fetched: dict[int, Any] = {}  # by id; kept, so that no other gets theirs

    def __getitem__(self, key: int) -> Any:
        value = super().__getitem__(key)
        if callable(value) or (type(value) is str and len(value) < LETTERS):
            return value
        self.left -= _weight(value, self.left)
        if self.left < 0:
            _refuse(f"holds more than {MOST} values more than once")
        self.fetched[id(value)] = value
        return value


def _weight(value: Any, most: int) -> int:
    """How many values are in one, each as often as it is there; some more than `most` where it is more."""
    found, due = 0, [value]
    while due and found <= most:
        value = due.pop()
        if value is None or type(value) in (int, bool, float):
            continue
        if isinstance(value, str | bytes | bytearray):
            found += len(value) // LETTERS
            continue
        inside: list[Any] = []
        if isinstance(value, dict):
            inside = [*value.keys(), *value.values()]
        elif isinstance(value, tuple | list | set):
            inside = [*value]
        elif isinstance(held := getattr(value, "__dict__", None), dict):  # a namespace writes these out
            inside = [*held.values()]
        found += len(inside)
        due += inside
    return found


def _guarded(unpickler: Any) -> Callable[[int], bytes]:
    """The unpickler's `read`, that looks at what an instruction is about to be done with.

    Where a loop reads otherwise than this expects, it sees other instructions, or none.
    """
    source, known, unknown, left = unpickler.read, INSTRUCTIONS, (0, None), 0

    def read(size: int) -> bytes:
        nonlocal left
        data: bytes = source(size)
        if left:
            left -= 1
        else:
            left, check = known.get(data, unknown)
            if check is not None:
                check(unpickler)
        return data

    return read


def _nest(parts: list[Any]) -> None:
    """A tuple is about to be made of these."""
    for part in parts:
        if type(part) is tuple and _depth(part) >= DEEPEST:
            _refuse(f"holds tuples in tuples, more than {DEEPEST}")


def _depth(parts: tuple[Any, ...]) -> int:
    deepest = 0
    for part in parts:
        if type(part) is tuple:
            deepest = max(deepest, _depth(part))
    return deepest + 1


def _call(function: Any, arguments: Any) -> None:
    """Refuse what torch would write into its message, and the few functions that make much out of little."""
    if not callable(function):
        _refuse(f"calls a {type(function).__name__}")
    if not isinstance(arguments, tuple):
        return
    if function is torch._tensor._rebuild_from_type_v2 and len(arguments) > 2:
        _call(arguments[0], arguments[2])
    if function is codecs.encode and arguments[1:2] and arguments[1] not in TEXTS:
        _refuse("holds bytes of an unknown kind")
    if function is bytearray and arguments and isinstance(arguments[0], int):
        _refuse("wants memory for nothing")


def _grow(unpickler: Any, value: Any) -> None:
    """What was weighed does not become more."""
    if id(value) in getattr(unpickler.memo, "fetched", ()):
        _refuse(f"holds a {type(value).__name__} that grows after it was used")


def _refuse(why: str) -> NoReturn:
    raise pickle.UnpicklingError(f"the file {why}, which no checkpoint of torch does")


CHECKS: dict[bytes, Callable[[Any], None]] = {
    pickle.TUPLE: lambda at: _nest(at.stack),
    pickle.TUPLE1: lambda at: _nest(at.stack[-1:]),
    pickle.TUPLE2: lambda at: _nest(at.stack[-2:]),
    pickle.TUPLE3: lambda at: _nest(at.stack[-3:]),
    pickle.REDUCE: lambda at: _call(*at.stack[-2:]),
    pickle.NEWOBJ: lambda at: _call(*at.stack[-2:]),
    pickle.APPEND: lambda at: _grow(at, at.stack[-2]),
    pickle.SETITEM: lambda at: _grow(at, at.stack[-3]),
    pickle.APPENDS: lambda at: _grow(at, at.metastack[-1][-1]),
    pickle.SETITEMS: lambda at: _grow(at, at.metastack[-1][-1]),
    pickle.BUILD: lambda at: _grow(at, at.stack[-2]),
}
# by its code: how often the loop reads for what follows, a line apart, and what is to be looked at before it is done
INSTRUCTIONS = {
    code: (0 if each.arg is None or each.arg.n == -1 else 1 if each.arg.n >= 0 else 2, CHECKS.get(code))
    for each in pickletools.opcodes
    for code in [each.code.encode("latin1")]
}
