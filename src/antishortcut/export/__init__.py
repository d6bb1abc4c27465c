"""A finished run's network for others: written beside its place, checked against the original, then put there."""

from __future__ import annotations

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
from antishortcut.export.whole import names_in, placing, swept
from antishortcut.files import expanded
from antishortcut.folder import Folder, read_json, write_json
from antishortcut.models import probe
from antishortcut.types import Sets

__all__ = ["FORMATS", "Export", "destination", "export"]

WORD = "export"  # in the names of folders that are being written
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
    with placing(place, WORD) as work:
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
    place = expanded(out or folder.path / "export" / (form if state == "final" else f"{form}@{state}"))
    if place.suffix in FILES:
        raise UserError(
            f"--out {place}: name a folder, {place.with_suffix('')}; the model, its record and card go there"
        )
    place = place.resolve() if place.is_dir() else place  # a link leads to where the files go
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UserError(f"{place} is a file or a link to nothing; name a new folder as --out")
    swept(place, WORD)
    if place.is_dir() and names_in(place, WORD):
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
    return names_in(place, WORD) <= made
