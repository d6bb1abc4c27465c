"""Export a finished run's network: written to a temporary folder, checked against the original, then renamed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from antishortcut.deployment.formats import FORMATS, WrittenModel, channels, output_names, require
from antishortcut.deployment.hub import check_push, load, upload
from antishortcut.deployment.int8 import add_int8
from antishortcut.deployment.model_card import Teacher, find_teacher, model_card
from antishortcut.deployment.verify import RECORD, OpenedRun, check, open_run
from antishortcut.errors import UserError, suggest
from antishortcut.fileio import atomic_dir, expanded, recover_dir, refuse_links
from antishortcut.models import feature_shapes
from antishortcut.models.reused_classifier import reused
from antishortcut.run_dir import RunDir, read_json, write_json
from antishortcut.types import AnySet, DataSplits

__all__ = ["FORMATS", "Export", "check_push", "destination", "export", "load", "upload"]

CARD = "README.md"
SUFFIXES = (".onnx", ".pt2", ".pt", ".pth", ".safetensors", ".json", ".md")


@dataclass(frozen=True)
class Export:
    """A finished export."""

    place: Path
    record: dict[str, Any]  # the content of export.json
    teacher: Teacher | None
    url: str | None = None  # of the repository that it was pushed to


def export(
    folder: RunDir,
    form: str,
    sets: DataSplits | None,
    *,
    state: str = "final",
    out: Path | None = None,
    embedding: bool = False,
    force: bool = False,
    runs: Path | None = None,
    int8: bool = False,
    more: Mapping[str, AnySet] | None = None,
) -> Export:
    """Write a finished run's network into a folder of its own, with a record and a model card; whole or not at all.

    `sets`: the run's data. Without them (None) it is checked on noise.
    `int8`: of onnx, also a quantised copy, compared on the data's test sets and on `more` image sets.
    """
    place = destination(folder, form, state, out, force, int8)
    if int8 and sets is None:
        raise UserError("--int8 is calibrated on training images, which are not here; name their place as --data-root")
    opened = open_run(folder, sets, state)
    with atomic_dir(place) as work:
        written = FORMATS[form](opened, work, embedding)
        checked = check(opened, embedding, written.run)
        record = {"format": form, **_record(opened, written, embedding), "check": checked}
        if int8 and sets is not None:
            record["int8"] = add_int8(opened, work, sets, more)
        record["files"] = {path.name: path.stat().st_size for path in sorted(work.iterdir())}
        teacher = find_teacher(opened.folder, opened.run, runs)
        (work / CARD).write_text(model_card(opened, written, record, teacher), encoding="utf-8")
        write_json(work / RECORD, record)
    return Export(place, record, teacher)


def _record(opened: OpenedRun, written: WrittenModel, embedding: bool) -> dict[str, Any]:
    """Everything needed to use the files without this package."""
    run, network = opened.run, opened.network
    sides = ["height", "width"] if opened.maps else list(opened.images.shape[2:])
    widths = {"logits": opened.classes, "embedding": feature_shapes(network, opened.side).embedding}
    after = ["rows", "columns"] if opened.maps else []
    classifier = reused(network)
    return {
        "model": run.model.name,
        "options": run.model.build_options,
        "teachers_classifier": None if classifier is None else asdict(classifier),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "classes": opened.classes,
        "names": list(opened.names) or None,
        "image_size": opened.side,
        "shorter_side": None if opened.maps else opened.shorter_side,
        "resized_to": network.size,
        "mean": channels(network.mean),
        "std": channels(network.std),
        "preprocessing": written.preprocessing,
        "type": "float32",
        "input": {"image": ["batch", 3, *sides]},
        "output": {name: ["batch", widths[name], *after] for name in output_names(opened, embedding)},
        "load": list(written.load),
        "recipe": {"student": dict(written.recipe)} if written.recipe else None,
        "run": {"suite": run.suite, "name": run.name, "seed": run.seed, "hash": run.hash, "state": opened.state},
        "versions": {name: version(name) for name in ("antishortcut", "torch", "timm")},
    }


def destination(folder: RunDir, form: str, state: str, out: Path | None, force: bool, int8: bool = False) -> Path:
    """Where an export goes, checked before anything is opened. Only an earlier export is ever replaced."""
    if form not in FORMATS:
        raise UserError(f"--to {form!r}{suggest(form, FORMATS)}")
    if int8 and form != "onnx":
        raise UserError(f"--int8 is for --to onnx, not {form}")
    if not folder.finished:
        raise UserError(f"{folder.path} is not finished; run its command again to resume it")
    require(form)
    name = form if state == "final" else f"{form}@{state}"
    place = expanded(out or folder.path / "export" / name)
    if out is None:
        refuse_links(folder.path, "export", f"export/{name}")
    if place.suffix in SUFFIXES:
        raise UserError(f"--out {place}: name a folder, {place.with_suffix('')}; model, record and card go there")
    place = place.resolve()
    if place == Path.cwd() or (place.exists() and not place.is_dir()) or not _names(place) <= _export_files(place):
        raise UserError(f"{place} is no folder, the current one, or holds other things; name a new folder as --out")
    recover_dir(place)
    if _names(place) and not force:
        raise UserError(f"{place} exists; --force replaces it, --out names another folder")
    return place


def _names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} if place.is_dir() else set()


def _export_files(place: Path) -> set[str]:
    """The files of an earlier export."""
    try:
        return {*read_json(place / RECORD)["files"], RECORD, CARD}
    except (UserError, OSError, KeyError, TypeError):
        return set()
