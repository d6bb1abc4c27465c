"""Valid files made wrong: bytes flipped, values of another type, depth, length, numbers beyond all bounds."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

LONG = "A" * 4_000
TOKENS = (
    "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "null", "true", "-1", "0", "1e-400", "9" * 400, "9" * 5_000,
    "0x10", "1_000", '"\\ud800"', '"\\u0000"', '"\\u202e"', "\x1b[2J", "\x9b31m", "\u202e", "\u2028", "\r\n", "\n",
    "\0", "\t", "\ufeff", "../../../etc/passwd", "/etc/passwd", "..", "", "<script>alert(1)</script>", "[" * 1_500,
    '{"a":' * 1_500, "[" * 150 + "]" * 150, f'"{LONG}"', "{}", "[]", '""', ",", "=", "[[x]]", "'''", '"""',
    "import:os:system", "=cmd|' /C calc'!A0", "inf", "1979-05-27T07:32:00Z",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 10**400, 1.5, 1e308, float("inf"), float("nan"), "", "x", "\0",
    "\ud800", "\x1b[31m", "\u202e", "../..", "/etc/passwd", LONG, [], {}, [[]], [None], [1, "a"], {"": 1},
    {"a": {"a": {}}}, [1] * 300, "<img src=x onerror=alert(1)>", "import:os:system",
)  # fmt: skip
_WORD = re.compile(rb"[A-Za-z0-9_.+-]+|\S")


def mutated(data: bytes, seed: int, rounds: int = 1) -> bytes:
    """One of the many wrong files that are near this one, always the same for a seed."""
    chance = random.Random(seed)
    for _ in range(rounds):
        data = chance.choice(WAYS)(data, chance)
    return data


def _flip(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return bytes([chance.randrange(256)])
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        out[chance.randrange(len(out))] = chance.randrange(256)
    return bytes(out)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _drop(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.randint(1, 64) :]


def _again(data: bytes, chance: random.Random) -> bytes:
    """A piece of it stands there twice: duplicate keys, lines and chunks."""
    at = chance.randrange(len(data) + 1)
    piece = data[at : at + chance.randint(1, 200)]
    to = chance.randrange(len(data) + 1)
    return data[:to] + piece + data[to:]


def _put(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(TOKENS).encode("utf-8", "surrogatepass") + data[at:]


def _word(data: bytes, chance: random.Random) -> bytes:
    """One word of it becomes another thing."""
    found = _WORD.search(data, chance.randrange(len(data) + 1)) or _WORD.search(data)
    if found is None:
        return _put(data, chance)
    token = chance.choice(TOKENS).encode("utf-8", "surrogatepass")
    return data[: found.start()] + token + data[found.end() :]


def _value(data: bytes, chance: random.Random) -> bytes:
    """Of JSON: a value of another type, a key less, a key more."""
    try:
        lines = data.splitlines() if data.count(b"\n{") else [data]  # metrics.jsonl has an object a line
        at = chance.randrange(len(lines)) if lines else 0
        tree = json.loads(lines[at])
    except (ValueError, RecursionError, IndexError):
        return _word(data, chance)
    changed = _changed(tree, chance, chance.randint(0, 5))
    try:
        lines[at] = json.dumps(changed, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return data
    return b"\n".join(lines)


def _changed(tree: Any, chance: random.Random, depth: int) -> Any:
    if depth == 0 or not isinstance(tree, dict | list) or not tree:
        return chance.choice(VALUES)
    if isinstance(tree, list):
        at = chance.randrange(len(tree))
        if chance.random() < 0.15:
            return tree[:at] + tree[at + 1 :]
        return [*tree[:at], _changed(tree[at], chance, depth - 1), *tree[at + 1 :]]
    key = chance.choice(list(tree))
    if chance.random() < 0.15:
        return {name: value for name, value in tree.items() if name != key}
    if chance.random() < 0.1:
        return tree | {chance.choice(("", "x", "\x1b[31m", "__class__", LONG)): chance.choice(VALUES)}
    return tree | {key: _changed(tree[key], chance, depth - 1)}


WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _cut, _drop, _again, _put, _word, _word, _value, _value, _value,
)  # fmt: skip
