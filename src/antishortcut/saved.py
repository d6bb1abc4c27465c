"""Files that torch.save wrote, read as tensors and plain values: nothing in them runs, and a refusal is quick."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import _weights_only_unpickler

from antishortcut.files import stored

UNPICKLER: Any = _weights_only_unpickler.Unpickler  # with which torch.load reads, of either form
LONGEST = 500  # characters of what the unpickler refuses; names of modules and classes are shorter


def load(file: Path | IO[bytes]) -> Any:
    """Its content on the CPU. What is no such file raises anything."""
    stored(file)
    if not isinstance(file, Path):
        file.seek(0)
    with _brief():
        return torch.load(file, map_location="cpu", weights_only=True)


@contextmanager
def _brief() -> Iterator[None]:
    """Have refusals cut short before torch.load looks for words in them, by patterns that take the square of a length.

    A file may make them as long as it is: eight thousand letters take a second, a million hours.
    """
    whole = UNPICKLER.load

    def load(self: Any) -> Any:
        try:
            return whole(self)
        except pickle.UnpicklingError as error:
            raise pickle.UnpicklingError(str(error)[:LONGEST]) from None

    UNPICKLER.load = load
    try:
        yield
    finally:
        UNPICKLER.load = whole
