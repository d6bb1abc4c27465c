"""Words from outside as Markdown and as the YAML before it, where they start no markup."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MARKUP = re.compile(r"[\\`*\[\]~$<]|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word is none


def plain(text: str) -> str:
    """Names from outside stay in their cell and start no markup."""
    marked = MARKUP.sub(lambda found: f"&#{ord(found[0])};", printable(text).replace("&", "&amp;"))
    return marked.replace("|", "\\|").replace("://", ":&#47;/")


def printable(text: str) -> str:
    """In a line, without what steers a screen: control characters, turns of the direction of writing."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, line by line."""
    every = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in every]


def front(facts: Mapping[str, Any]) -> list[str]:
    """The lines between `---`: each value is JSON, which YAML can read."""
    lines = [f"{key}: {json.dumps(_clean(value), ensure_ascii=False)}" for key, value in facts.items()]
    return ["---", *lines, "---"]


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: _clean(held) for key, held in value.items()}
    return [_clean(held) for held in value] if isinstance(value, list) else value
