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
from antishortcut.export.formats import FORMATS, Written, colour, outputs
from antishortcut.export.opened import Opened, open_run
from antishortcut.folder import Folder, read_json, write_json
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
        checked = check(opened, embedding, written.again)
        record = {"format": form, **facts(opened, written, embedding), "check": asdict(checked)}
        record["files"] = {path.name: path.stat().st_size for path in sorted(work.iterdir())}
        family = family_of(opened.folder, opened.run, runs)
        (work / CARD).write_text(card(opened, written, record, family), encoding="utf-8")
        write_json(work / RECORD, record)
    return Export(place, record, family)


def facts(opened: Opened, written: Written, embedding: bool) -> dict[str, Any]:
    """What somebody must know who has the files alone."""
    run, network = opened.run, opened.network
    sides = ["height", "width"] if opened.maps else [opened.side, opened.side]
    widths = {"logits": opened.classes, "embedding": probe(network, opened.side).embedding}
    after = ["rows", "columns"] if opened.maps else []
    return {
        "model": run.model.name,
        "stem": run.model.stem,
        "embedding": run.model.embedding,
        "parameters": opened.parameters,
        "classes": opened.classes,
        "names": list(opened.names) or None,
        "image_size": opened.side,
        "resized_to": network.size,
        "mean": colour(network.mean),
        "std": colour(network.std),
        "preprocessing": written.inside,
        "input": {"image": ["batch", 3, *sides]},
        "output": {name: ["batch", widths[name], *after] for name in outputs(embedding)},
        "load": list(written.load),
        "run": {"suite": run.suite, "name": run.name, "seed": run.seed, "hash": run.hash, "state": opened.state},
        "versions": {name: version(name) for name in ("antishortcut", "torch", "timm")},
    }


def destination(folder: Folder, form: str, state: str, out: Path | None, force: bool) -> Path:
    """Where an export goes. What is in its way is said before anything is opened; only our own is ever replaced."""
    if form not in FORMATS:
        raise UserError(f"--to {form!r}{near(form, FORMATS)}")
    if not folder.finished:
        raise UserError(f"{folder.path} is not finished; run its command again to go on with it")
    place = out or folder.path / "export" / (form if state == "final" else f"{form}@{state}")
    if place.suffix in FILES:
        raise UserError(
            f"--out {place}: name a folder, {place.with_suffix('')}; the model, its record and card go there"
        )
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UserError(f"{place} is a file or a link; name a new folder as --out")
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
    """A folder beside `place` that takes its place when all is made; after an error nothing has changed."""
    place = place.absolute()
    new = [parent for parent in place.parents if not parent.exists()]
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(
            dir=place.parent, prefix=f".{place.name}.", ignore_cleanup_errors=True
        ) as name:
            work = Path(name) / place.name
            work.mkdir()
            yield work
            old = Path(name) / "old"
            if place.exists():
                os.replace(place, old)
            try:
                os.replace(work, place)
            except OSError:
                if old.exists():
                    os.replace(old, place)
                raise
    finally:
        with suppress(OSError):  # not empty: it is needed
            for parent in new:
                parent.rmdir()
