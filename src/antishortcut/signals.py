"""Ctrl-C and SIGTERM, heard and not obeyed at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Asked:
    """Which signal came, 0 for none."""

    number = 0


@contextmanager
def asked() -> Iterator[Asked]:
    """Ctrl-C and SIGTERM ask the loop to stop after the step at hand; asked twice, it stops at once."""
    heard = Asked()

    def note(number: int, frame: object) -> None:
        if heard.number:
            raise KeyboardInterrupt
        heard.number = number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
