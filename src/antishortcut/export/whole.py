"""Folders that are made whole: written aside, then put in their place, whatever ends the process that does it.

What is being written lies in `.<name>.<word>-????????`, inside a place that is there and beside one that is not. Its
writer holds a lock on it. One that nobody holds was left by a killed process: the next one makes good and removes it.

new/    what was made
old/    what lay in the place, while it is being moved there: it goes back
gone/   the same when all of it was moved: new/ goes on to the place
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from antishortcut.errors import UserError
from antishortcut.folder import UMASK, alone


def names_in(place: Path, word: str) -> set[str]:
    """What lies in a folder, save what an unfinished writer has there."""
    left = {path.name for path in _left(place, place.name, word)}
    return {path.name for path in place.iterdir()} - left


def swept(place: Path, word: str) -> None:
    """Make good and remove what killed processes have left; what is being written is locked."""
    if place.is_dir():
        with suppress(OSError), alone(place):
            _clear(place, place, word)
    _clear(place.parent, place, word)


@contextmanager
def placing(place: Path, word: str, parts: Collection[str] | None = None) -> Iterator[Path]:
    """A folder whose content comes to `place` when all is made; after an error nothing has changed.

    It takes the place of all that lies there, or of these `parts`, which are moved in their order.
    """
    place = place.absolute()
    new = [parent for parent in place.parents if not parent.exists()]
    there = place.is_dir()  # it may be another disk, or where the shell stands: then it stays, and its files change
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(place, word) if there else nullcontext(), _aside(place, word, there) as aside:
            work = aside / "new"
            work.mkdir()
            yield work
            for path in work.iterdir():
                if path.is_file():
                    path.chmod(0o666 & ~UMASK)  # some writers make them private
            if there:
                old = [place / name for name in (names_in(place, word) if parts is None else reversed([*parts]))]
                _exchange(aside, place, [path for path in old if path.exists()], parts)
            else:
                os.replace(work, place)
    except OSError as error:
        raise UserError(f"cannot write {place} ({error.strerror or error}); name another folder as --out") from error
    finally:
        with suppress(OSError):  # not empty: it is needed
            for parent in new:
                parent.rmdir()


def _left(home: Path, name: str, word: str) -> list[Path]:
    return list(home.glob(f"{glob.escape(_prefix(name, word))}????????"))


def _prefix(name: str, word: str) -> str:
    return f".{name}.{word}-"


def _clear(home: Path, place: Path, word: str) -> None:
    for left in _left(home, place.name, word):
        with suppress(OSError), alone(left):
            _settled(left, place)


@contextmanager
def _only_one(place: Path, word: str) -> Iterator[None]:
    with ExitStack() as held:
        try:
            held.enter_context(alone(place))
        except BlockingIOError:
            raise UserError(f"{place}: another {word} is being written there; wait for it to end") from None
        except OSError:  # no locks here
            pass
        yield


@contextmanager
def _aside(place: Path, word: str, inside: bool) -> Iterator[Path]:
    """A folder that this process holds; what is left in it at the end, by whatever error, is settled."""
    home = place if inside else place.parent
    while True:
        aside = Path(tempfile.mkdtemp(dir=home, prefix=_prefix(place.name, word)))
        with ExitStack() as held:
            try:
                held.enter_context(alone(aside))
            except (BlockingIOError, FileNotFoundError):
                continue  # swept before it was locked
            except OSError:  # where there are no locks, nothing is swept either
                pass
            if not aside.is_dir():
                continue
            try:
                yield aside
            finally:
                with suppress(OSError):  # the next one tries again
                    _settled(aside, place)
            return


def _exchange(aside: Path, place: Path, there: list[Path], parts: Collection[str] | None) -> None:
    """What was made in the place of what is there, which comes back if that fails."""
    old, work = aside / "old", aside / "new"
    old.mkdir()
    made = list(work.iterdir()) if parts is None else [path for name in parts if (path := work / name).exists()]
    moves = [(path, old / path.name) for path in there]
    moves += [(old, aside / "gone")]  # killed before this, the old comes back; after it, the new is there
    moves += [(path, place / path.name) for path in made]
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            os.replace(source, target)
            done.append((source, target))
    except OSError:
        for source, target in reversed(done):
            os.replace(target, source)
        raise


def _settled(aside: Path, place: Path) -> None:
    """Nothing is left of an exchange that was cut off: the old is back, or the new all there."""
    rest = aside / ("new" if (aside / "gone").is_dir() else "old")
    if rest.is_dir():
        for path in rest.iterdir():
            os.replace(path, place / path.name)
    shutil.rmtree(aside)
