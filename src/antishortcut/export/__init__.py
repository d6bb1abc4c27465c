"""A finished run's network for others: written beside its place, checked against the original, then put there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from antishortcut.errors import UserError, near
from antishortcut.export.card import card
from antishortcut.export.check import check
from antishortcut.export.family import Family, family_of
from antishortcut.export.formats import FORMATS, Written, colour, outputs, require
from antishortcut.export.opened import Opened, open_run
from antishortcut.folder import UMASK, Folder, read_json, write_json
from antishortcut.models import probe
from antishortcut.types import Sets

__all__ = ["FORMATS", "Export", "destination", "export"]

RECORD = "export.json"  # a folder that has it was made here
CARD = "README.md"
FILES = (".onnx", ".pt2", ".pt", ".pth", ".safetensors", ".json", ".md")


@dataclass(frozen=True)
class Export:
    """What was made."""

    place: Path
    record: dict[str, Any]  # what export.json says
    family: Family


def export(
    folder: Folder,
    form: str,
    sets: Sets | None,
    *,
    state: str = "final",
    out: Path | None = None,
    embedding: bool = False,
    force: bool = False,
    runs: Path | None = None,
) -> Export:
    """Write a finished run's network into a folder of its own, with a record and a model card; whole or not at all.

    `sets` are the run's data, None where they are not here: then it is checked on noise, and classes have no names.
    """
    place = destination(folder, form, state, out, force)
    opened = open_run(folder, sets, state)
    with placing(place) as work:
        written = FORMATS[form](opened, work, embedding)
        checked = check(opened, embedding, written.again, opened.maps and not written.note)
        record = {"format": form, **facts(opened, written, embedding), "check": asdict(checked)}
        record["files"] = {path.name: path.stat().st_size for path in sorted(work.iterdir())}
        family = family_of(opened.folder, opened.run, runs)
        (work / CARD).write_text(card(opened, written, record, family), encoding="utf-8")
        write_json(work / RECORD, record)
    return Export(place, record, family)


def facts(opened: Opened, written: Written, embedding: bool) -> dict[str, Any]:
    """What somebody must know who has the files alone."""
    run, network = opened.run, opened.network
    sides = ["height", "width"] if opened.maps and not written.note else list(opened.traced().shape[2:])
    widths = {"logits": opened.classes, "embedding": probe(network, opened.side).embedding}
    after = ["rows", "columns"] if opened.maps else []
    return {
        "model": run.model.name,
        "options": run.model.given,
        "parameters": opened.parameters,
        "classes": opened.classes,
        "names": list(opened.names) or None,
        "image_size": opened.side,
        "shorter_side": None if opened.maps else round(opened.margin * opened.side),  # of a file, before its centre
        "resized_to": network.size,
        "mean": colour(network.mean),
        "std": colour(network.std),
        "preprocessing": written.inside,
        "type": "float32",
        "input": {"image": ["batch", 3, *sides]},
        "output": {name: ["batch", widths[name], *after] for name in outputs(embedding)},
        "note": written.note or None,
        "load": list(written.load),
        "recipe": {"student": dict(written.recipe)} if written.recipe else None,
        "run": {"suite": run.suite, "name": run.name, "seed": run.seed, "hash": run.hash, "state": opened.state},
        "versions": {name: version(name) for name in ("antishortcut", "torch", "timm")},
    }


def destination(folder: Folder, form: str, state: str, out: Path | None, force: bool) -> Path:
    """Where an export goes. What is in its way is said before anything is opened; only our own is ever replaced."""
    if form not in FORMATS:
        raise UserError(f"--to {form!r}{near(form, FORMATS)}")
    if not folder.finished:
        raise UserError(f"{folder.path} is not finished; run its command again to go on with it")
    require(form)
    place = (out or folder.path / "export" / (form if state == "final" else f"{form}@{state}")).expanduser()
    if place.suffix in FILES:
        raise UserError(
            f"--out {place}: name a folder, {place.with_suffix('')}; the model, its record and card go there"
        )
    place = place.resolve() if place.is_dir() else place  # a link leads to where the files go
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UserError(f"{place} is a file or a link to nothing; name a new folder as --out")
    if place.is_dir() and any(place.iterdir()):
        if not _ours(place):
            raise UserError(f"{place} holds other things; name a new folder as --out")
        if not force:
            raise UserError(f"{place} is there already; --force replaces it, --out names another folder")
    return place


def _ours(place: Path) -> bool:
    """Whether it is an export, and nothing else lies in it."""
    if not (place / RECORD).is_file():
        return False
    try:
        made = {*read_json(place / RECORD)["files"], RECORD, CARD}
    except (UserError, KeyError, TypeError):
        return False
    return {path.name for path in place.iterdir()} <= made


@contextmanager
def placing(place: Path) -> Iterator[Path]:
    """A folder whose files come to `place` when all are made; after an error nothing has changed."""
    place = place.absolute()
    new = [parent for parent in place.parents if not parent.exists()]
    there = place.is_dir()  # it may be another disk, or where the shell stands: then it stays, and its files change
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place if there else place.parent
        with tempfile.TemporaryDirectory(dir=beside, prefix=f".{place.name}.", ignore_cleanup_errors=True) as name:
            work = Path(name) / "new"
            work.mkdir()
            yield work
            for path in work.iterdir():
                path.chmod(0o666 & ~UMASK)  # some writers make them private
            if there:
                _exchange(work, place, Path(name))
            else:
                os.replace(work, place)
    except OSError as error:
        raise UserError(f"cannot write {place} ({error.strerror or error}); name another folder as --out") from error
    finally:
        with suppress(OSError):  # not empty: it is needed
            for parent in new:
                parent.rmdir()


def _exchange(work: Path, place: Path, aside: Path) -> None:
    """The files of `work` in the place of those there, which come back if that fails."""
    old = aside / "old"
    old.mkdir()
    moves = [(path, old / path.name) for path in place.iterdir() if path != aside]
    moves += [(path, place / path.name) for path in work.iterdir()]
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            os.replace(source, target)
            done.append((source, target))
    except OSError:
        for source, target in reversed(done):
            os.replace(target, source)
        raise
