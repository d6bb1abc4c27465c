"""asd export: a finished run's network for deployment."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from antishortcut.cli import options
from antishortcut.cli.options import print_json, table, tell
from antishortcut.errors import UserError

if TYPE_CHECKING:
    from antishortcut.config.recipe import Run
    from antishortcut.types import DataSplits

FORMATS = ("onnx", "safetensors", "torch", "timm")  # as in antishortcut.export, which would import torch


def export(
    folder: Annotated[Path, Argument(help="A run folder, or a teacher's or its hash.", metavar="RUN")],
    to: Annotated[str, Option(help=f"{', '.join(FORMATS)}.", autocompletion=options.last_of(lambda: FORMATS))],
    out: Annotated[Path | None, Option(help="The folder to write [default: RUN/export/<to>].")] = None,
    embedding: Annotated[bool, Option("--embedding", help="Output the embedding too: onnx and torch.")] = False,
    state: Annotated[str, Option(help="Of a teacher: a state it kept, like 15%.")] = "final",
    force: Annotated[bool, Option("--force", help="Replace an earlier export.")] = False,
    runs: Annotated[Path | None, Option(help="Parent of teachers/ [default: two levels above RUN].")] = None,
    data_root: options.RootOption = None,
    threads: options.ThreadsOption = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Write the student alone, with its preprocessing and a model card, checked against the original."""
    from antishortcut.export import destination
    from antishortcut.export import export as write
    from antishortcut.export.model_card import megabytes

    options.use_threads(threads)
    source = options.find_run(folder, runs or Path("runs"))
    run, _ = source.read()
    destination(source, to, state, out, force)  # before its data are opened
    choice: dict[str, Any] = {"state": state, "out": out, "embedding": embedding, "force": force, "runs": runs}
    result = write(source, to, _sets(run, data_root), **choice)
    record, teacher, check = result.record, result.teacher, result.record["check"]
    if as_json:
        sizes = {"parameters": teacher.parameters, "bytes": teacher.size} if teacher else None
        print_json({"out": str(result.place), **record, "teacher": sizes})
        return
    files = ", ".join(f"{name} {megabytes(size)}" for name, size in record["files"].items())
    rows = [(run.model.name, record["parameters"], files)]
    if teacher:
        rows.append((f"its teacher {teacher.run.model.name}", teacher.parameters, f"weights {megabytes(teacher.size)}"))
    table(f"{record['format']} of {run.name}", ("network", "parameters", "files"), rows)
    tell(f"differs from the original by {check['largest']:.1e} of its largest value on {check['images']}")
    tell(result.place)


def _sets(run: Run, data_root: Path | None) -> DataSplits | None:
    """The run's own data, if they are available."""
    from antishortcut.training.pipeline import Session

    try:
        sets = Session(Path("runs"), data_root).sets(run.data)
        if sets.fingerprint == run.fingerprint:
            return sets
        reason = "those here are not the ones it was trained on"
    except UserError as error:
        reason = str(error)
    tell(f"Note: without its data ({reason}) it is checked on noise, and its classes have no names", file=sys.stderr)
    return None
