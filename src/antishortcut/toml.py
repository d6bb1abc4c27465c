"""TOML that somebody brought. Python's own parser keeps every beginning of a dotted key, which takes their square."""

from __future__ import annotations

import re
import tomllib
from typing import Any

LARGEST = 2**20  # bytes of a file that people write by hand
DOTS = 50  # of one key
PARTED = 20_000  # dots of all keys and numbers together: each part of a key takes a kilobyte
# a string or a comment; one that is not closed goes on to the end, where the parser will complain of it
_QUOTED = re.compile(
    r'"""(?:\\(?:.|\Z)|[^\\])*?(?:"{3,5}|\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:\\(?:.|\Z)|[^"\\\n])*"?'
    r"|'[^'\n]*'?"
    r"|\#[^\n]*",
    re.DOTALL,
)
_BETWEEN = re.compile(r"[=,{}\[\]\n]")  # what no key reaches over


def toml(text: str) -> dict[str, Any]:
    """The table that a text describes; a ValueError or a RecursionError where it is none."""
    bare = _QUOTED.sub("", text)
    if bare.count(".") > DOTS:
        if max(piece.count(".") for piece in _BETWEEN.split(bare)) > DOTS:
            raise ValueError(f"a key of more than {DOTS} parts; nothing lies so deep")
        if bare.count(".") > PARTED:
            raise ValueError(f"more than {PARTED:,} dots in keys and numbers; nothing is so long")
    return tomllib.loads(text)
