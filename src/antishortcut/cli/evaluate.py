"""asd evaluate, report, export: what reads finished runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from antishortcut.cli import options
from antishortcut.cli.options import MEASURED, JsonOption, RootOption, print_json, table, tell
from antishortcut.config.recipe import Run
from antishortcut.config.schema import DataSettings
from antishortcut.errors import UserError, one_line
from antishortcut.report import build
from antishortcut.run_dir import RunDir

if TYPE_CHECKING:
    from antishortcut.evaluation.context import EvalContext
    from antishortcut.training.pipeline import Session
    from antishortcut.types import DataSplits

FORMATS = ("onnx", "safetensors", "torch", "timm")  # as in antishortcut.export, which would import torch
ON = f"What to measure, comma-separated, may be repeated: {', '.join(MEASURED)} [default: clean]."


def evaluate(
    folders: Annotated[list[Path], Argument(help="Run folders.", metavar="RUN...")],
    on: Annotated[list[str] | None, Option(help=ON, autocompletion=options.last_of(lambda: MEASURED))] = None,
    at: options.AtOption = None,
    reference: Annotated[Path | None, Option(help="A run whose corruption error the others are relative to.")] = None,
    runs: Annotated[Path | None, Option(help="Parent of teachers/ [default: two levels above each run].")] = None,
    data_root: RootOption = None,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Score finished runs; scores are written to their folders. NAME=PATH is any folder of class folders."""
    from antishortcut.evaluation.corruption_scores import relate
    from antishortcut.training.pipeline import Session

    names, own = options.measured(on or ["clean"])
    if not names and not own:
        raise UserError(f"--on names nothing to measure; choose from {', '.join(MEASURED)}")
    device = options.use_hardware(device, threads)
    session = Session(runs or Path("runs"), data_root)
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
        scores = score_run(path, runs, session, names, images, device, own)
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
    path: Path,
    runs: Path | None,
    session: Session,
    names: list[str],
    images: dict[str, Path],
    device: str,
    own: dict[str, Path] | None = None,
) -> dict[str, dict[str, Any]]:
    """`images` are folders of the named evaluations, `own` any folders of class folders."""
    from antishortcut.evaluation import FOLDER
    from antishortcut.evaluation import evaluate as evaluate_run

    folder, parent = RunDir(path), runs or path.resolve().parent.parent
    context = eval_context(session, folder.read()[0].data, parent, own or {}, images)
    return evaluate_run(folder, context, [*names, *([FOLDER] if own else [])], device=device)


def eval_context(
    session: Session, data: DataSettings, runs: Path, own: dict[str, Path], images: dict[str, Path] | None = None
) -> EvalContext:
    """With the folders opened and their notes printed; one that cannot be scored is an error here."""
    from antishortcut.evaluation.context import EvalContext

    root: dict[str, Any] = {"root": session.root} if session.root else {}
    context = EvalContext(session.sets(data), runs, at=images or {}, quiet=False, **root).with_folders(own)
    for shift in context.folders.values():
        session.say_once(shift.note)
    return context


def score_also(run: Run, session: Session, own: dict[str, Path], device: str) -> list[dict[str, Any]]:
    """--also: a student on folders of class folders; and its teacher, final and early, if it learned from one."""
    from antishortcut.evaluation import score_folders
    from antishortcut.teachers.trajectory import find_trajectory

    context = eval_context(session, run.data, session.runs, own)
    networks = {"student": (RunDir(run.folder(session.runs)), "final")}
    if run.roles and run.teacher is not None:
        for title, state in (("teacher", "final"), ("early teacher", run.early)):
            trajectory, name = find_trajectory(session.runs, run.teacher, state)
            networks[title] = (trajectory.folder, name)
    rows = []
    for network, (folder, state) in networks.items():
        for name, score in score_folders(folder, context, state, device).items():
            values = {key: score["values"][key] for key in ("accuracy", "accuracy_overlap")}
            size = {"images": score["count"], "classes": score["facts"]["overlap_count"]}
            rows.append({"folder": name, "network": network, **values, **size})
    return sorted(rows, key=lambda row: list(own).index(row["folder"]))


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

    options.use_hardware("cpu", threads)
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
