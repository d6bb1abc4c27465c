"""How a process ends that worked together with others."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def own_code() -> Iterator[None]:
    """The process ends with the code it has after this, whatever torch's threads do meanwhile.

    A thread of gloo that still holds a tensor asks for Python while that is taken apart, and the process, its work
    done, is aborted (pytorch issue 190489). So one that was joined with others ends before that, when all that is due
    at the end has been done: this comes first, so what it registers comes last.
    """
    last = _Last()
    atexit.register(last)
    try:
        yield
        last.code = 0
    except SystemExit as end:
        last.code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


class _Last:
    code = 1  # a traceback's

    def __call__(self) -> None:
        joined = sys.modules.get("torch.distributed")  # not imported for this
        if joined is not None and joined.is_available() and joined.is_initialized():
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):  # nobody reads it any more
                    stream.flush()
            os._exit(self.code)
