"""The one exception that is meant for the person at the keyboard."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Bad input: what was wrong, where, and what to do, in one line. The command prints it and exits with 2."""


def near(word: str, known: Iterable[str]) -> str:
    """A hint that names the known words nearest to a mistyped one, or all of them when none is near."""
    words = list(known)
    close = get_close_matches(word, words, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(w) for w in close) + "?"
    return "; known: " + ", ".join(words)
