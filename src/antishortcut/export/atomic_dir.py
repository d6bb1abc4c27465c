"""A folder that is written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from antishortcut.errors import UserError


@contextmanager
def placing(path: Path) -> Iterator[Path]:
    """A new folder that takes the place of `path` when the block ends; after an error `path` is as it was.

    It is written beside `path` as `.name.new`. A folder that is replaced is `.name.old` between two renames.
    """
    path = path.absolute()
    new, old = _beside(path)
    first = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clean_up(path)
        new.mkdir()
        yield new
        if path.exists():
            os.replace(path, old)
        os.replace(new, path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error}); name another folder as --out") from error
    finally:
        clean_up(path)
        if first:
            with suppress(OSError):  # not empty
                path.parent.rmdir()


def clean_up(path: Path) -> None:
    """Undo what a killed process left: a replaced folder comes back, an unfinished new one goes."""
    new, old = _beside(path)
    if old.is_dir() and not path.exists():
        os.replace(old, path)
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
