"""asd evaluate, report, export: what reads finished runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from antishortcut.cli import options
from antishortcut.cli.options import MEASURED, JsonOption, RootOption, print_json, table, tell
from antishortcut.config.recipe import Run
from antishortcut.errors import UserError, one_line, plural
from antishortcut.report import build
from antishortcut.run_dir import RunDir

if TYPE_CHECKING:
    from antishortcut.training.pipeline import Session
    from antishortcut.types import DataSplits

FORMATS = ("onnx", "safetensors", "torch", "timm", "hub-folder")  # as in antishortcut.export, which would import torch
ON = f"What to measure, comma-separated: {', '.join(MEASURED)}."


def evaluate(
    folders: Annotated[list[Path], Argument(help="Run folders.", metavar="RUN...")],
    on: Annotated[str, Option(help=ON, autocompletion=options.last_of(lambda: MEASURED))] = "clean",
    at: options.AtOption = None,
    reference: Annotated[Path | None, Option(help="A run whose corruption error the others are relative to.")] = None,
    runs: Annotated[Path | None, Option(help="Parent of teachers/ [default: two levels above each run].")] = None,
    data_root: RootOption = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Score finished runs; scores are written to their folders."""
    from antishortcut.evaluation.corruption_scores import relate
    from antishortcut.training.pipeline import Session

    device = options.use_hardware(device, threads)
    session, names = Session(runs or Path("runs"), data_root), options.split_names(on)
    if not names:
        raise UserError(f"--on names nothing to measure; choose from {', '.join(MEASURED)}")
    images = options.image_folders(at or ())
    if reference is not None:
        if "corruptions" not in names:
            raise UserError("--reference is for --on corruptions")
        score_run(reference, runs, session, ["corruptions"], images, device)
    results: list[dict[str, Any]] = []
    for path in folders:
        if len(folders) > 1 and not RunDir(path).finished:  # a shell's * brings figures and unfinished runs along
            tell(f"{path}: no finished run, left out", file=sys.stderr)
            continue
        scores = score_run(path, runs, session, names, images, device)
        if reference is not None:
            relate(RunDir(path), RunDir(reference))
            scores = RunDir(path).scores()
        results.append({"run": str(path), "scores": scores})
    if as_json:
        print_json({"runs": results})
        return
    columns = [_flat(result["scores"]) for result in results]
    keys = dict.fromkeys(key for column in columns for key in column)
    heads = ["set", "score", *(one_line(Path(result["run"]).name) for result in results)]
    table("scores", heads, [(*key, *(column.get(key) for column in columns)) for key in keys])


def _flat(scores: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """(set, score) → value."""
    flat = {}
    for name, score in scores.items():
        source = f" ({score['source']})" if "source" in score else ""
        for key, value in score["values"].items():
            for inner, number in value.items() if isinstance(value, dict) else [("", value)]:
                flat[name + source, f"{key} {inner}".strip()] = number
    return flat


def score_run(
    path: Path, runs: Path | None, session: Session, names: list[str], images: dict[str, Path], device: str
) -> dict[str, dict[str, Any]]:
    from antishortcut.evaluation import evaluate as evaluate_run
    from antishortcut.evaluation.context import EvalContext

    folder, parent = RunDir(path), runs or path.resolve().parent.parent
    root: dict[str, Any] = {"root": session.root} if session.root else {}
    context = EvalContext(session.sets(folder.read()[0].data), parent, at=images, quiet=False, **root)
    return evaluate_run(folder, context, names, device=device)


def report(
    folder: Annotated[Path, Argument(help="A folder of runs: runs/P2.")],
    columns: Annotated[str | None, Option(help='Columns of the tables: "last,conflict accuracy,mce".')] = None,
    sweep: Annotated[str | None, Option(help='A setting to plot scores against, "strength": sweep.md.')] = None,
    scatter: Annotated[str | None, Option(help='Does one column predict another? "last,mce": scatter.md.')] = None,
    as_json: JsonOption = False,
) -> None:
    """Tables and a page from run folders: report.html, table.md, table.tex, figures/."""
    report = build(folder, columns, sweep=sweep, scatter=scatter)
    summary = report.summary(columns)
    if as_json:
        print_json(summary)
        return
    for shown in report.tables(columns):
        table(*shown[:3])
        tell("\n".join(shown.below) + "\n")
    for swept, _ in report.drawn.sweep:
        table(f"by {swept.key}", swept.head(), swept.texts())
    for dotted, figure in report.drawn.scatter:
        table(figure.title, ["", "value", "over"], dotted.numbers())
    for entry in (*summary["unfinished"], *summary["skipped"]):
        tell(": ".join(entry.values()), file=sys.stderr)
    tell(summary["page"])


def export(
    folder: Annotated[Path, Argument(help="A run folder, or a teacher's or its hash.", metavar="RUN")],
    to: Annotated[str, Option(help=f"{', '.join(FORMATS)}.", autocompletion=options.last_of(lambda: FORMATS))],
    out: Annotated[Path | None, Option(help="The folder to write [default: RUN/export/<to>].")] = None,
    embedding: Annotated[bool, Option("--embedding", help="Output the embedding too: onnx and torch.")] = False,
    int8: Annotated[bool, Option("--int8", help="Of onnx: also model.int8.onnx, compared with the float one.")] = False,
    push: Annotated[str | None, Option(help="Upload the hub-folder to the Hugging Face Hub: OWNER/NAME.")] = None,
    state: Annotated[str, Option(help="Of a teacher: a state it kept, like 15%.")] = "final",
    force: Annotated[bool, Option("--force", help="Replace an earlier export.")] = False,
    runs: Annotated[Path | None, Option(help="Parent of teachers/ [default: two levels above RUN].")] = None,
    data_root: options.RootOption = None,
    threads: options.ThreadsOption = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Write the student alone, with its preprocessing and a model card, checked against the original."""
    from antishortcut import export as exports
    from antishortcut.export.int8 import table_rows
    from antishortcut.export.model_card import megabytes

    options.use_hardware("cpu", threads)
    source = options.find_run(folder, runs or Path("runs"))
    run, _ = source.read()
    exports.destination(source, to, state, out, force, int8)  # before its data are opened
    if push is not None:
        exports.check_push(push, to)
    choice: dict[str, Any] = {"state": state, "out": out, "embedding": embedding, "force": force, "runs": runs}
    result = exports.export(source, to, _sets(run, data_root), int8=int8, **choice)
    url = exports.push(result.place, push) if push is not None else None
    record, teacher, check = result.record, result.teacher, result.record["check"]
    if as_json:
        sizes = {"parameters": teacher.parameters, "bytes": teacher.size} if teacher else None
        print_json({"out": str(result.place), **record, "teacher": sizes} | ({"url": url} if url else {}))
        return
    files = ", ".join(f"{name} {megabytes(size)}" for name, size in record["files"].items())
    rows = [(run.model.name, record["parameters"], files)]
    if teacher:
        rows.append((f"its teacher {teacher.run.model.name}", teacher.parameters, f"weights {megabytes(teacher.size)}"))
    table(f"{record['format']} of {run.name}", ("network", "parameters", "files"), rows)
    tell(f"differs from the original by {check['largest']:.1e} of its largest value on {check['images']}")
    if int8:
        table("float and int8", *table_rows(record["int8"]))
        tell(f"calibrated on {plural(record['int8']['calibration']['images'], 'training image')}")
        if record["int8"]["warning"]:
            tell(f"Note: {record['int8']['warning']}")
    if url:
        tell(f"{url} (a new repository is private; its settings on the Hub make it public)")
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
    tell(f"Note: without its data ({reason}) it is checked on noise", file=sys.stderr)
    return None
