"""Only for report.reading as it was: goes with it."""

from __future__ import annotations

from pathlib import Path

from antishortcut.files import content


def thinned(path: Path, many: int, kept: int, always: bytes, most: int) -> list[bytes]:
    """Lines of a log; of more than `many` only some `kept`, evenly spread to the last, and those with `always`."""
    lines = content(path, most).splitlines(keepends=True)
    every, last = 1 if len(lines) <= many else -(-len(lines) // kept), len(lines) - 1
    return [line for at, line in enumerate(lines) if (last - at) % every == 0 or always in line]
