"""asd evaluate, predict, report, export: what reads finished runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Argument, Option

from antishortcut import api
from antishortcut.api.scoring import class_mapping, flat_guesses, flat_scores, score_run, teacher_scores
from antishortcut.cli import options
from antishortcut.cli.options import MEASURED, JsonOption, RootOption, print_json, table, tell, tell_prose
from antishortcut.errors import UserError, one_line, plural
from antishortcut.evaluation import folder_score
from antishortcut.report import build
from antishortcut.run_dir import RunDir

FORMATS = (
    "onnx",
    "safetensors",
    "torch",
    "timm",
    "hub-folder",
)  # as in antishortcut.deployment, which would import torch
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
    from antishortcut.evaluation.shift_scores import relate
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
    beside: dict[str, dict[str, Any]] = {}  # the scores of teachers by hash
    classes = 0
    for path in folders:
        if len(folders) > 1 and not RunDir(path).finished:  # a shell's * brings unfinished runs along, and our tables
            if not path.exists() or (path / "run.json").exists():
                tell(f"{path}: no finished run, left out", file=sys.stderr)
            continue
        scores = score_run(path, runs, session, names, images, device, own)
        if reference is not None:
            relate(RunDir(path), RunDir(reference))
            scores = RunDir(path).scores()
        results.append({"run": str(path), "scores": scores})
        run, _ = RunDir(path).read()
        classes = len(session.sets(run.data).classes)
        if known := teacher_scores(run, runs or path.resolve().parent.parent):
            beside[run.teacher or ""] = known
    if not results:
        raise UserError(f"no finished run in {', '.join(map(str, folders))}; asd distill trains one")
    if as_json:
        print_json({"runs": results, "teachers": beside})
        return
    _show_scores(results, beside, {*names, *(folder_score(name) for name in own)}, classes)


def _show_scores(
    results: list[dict[str, Any]], beside: dict[str, dict[str, Any]], requested: set[str], classes: int
) -> None:
    """A table for every set that was requested: runs, their teachers by hash, and guessing one of so many classes."""
    from antishortcut.report.table import words
    from antishortcut.report.text import folded

    scored = [(one_line(Path(result["run"]).name), flat_scores(result["scores"], requested)) for result in results]
    teachers = [
        (f"teacher {key}" if len(beside) > 1 else "teacher", flat_scores(beside[key], requested)) for key in beside
    ]
    guessed = [("chance", flat_guesses(results[0]["scores"], requested, classes))]
    for group in dict.fromkeys(group for _, each in scored for group, _ in each):
        keys = list(dict.fromkeys(key for _, each in scored for key in each if key[0] == group))
        below = [(name, each) for name, each in (*teachers, *guessed) if any(key in each for key in keys)]
        rows = [[run, *(options.cell(each.get(key)) for key in keys)] for run, each in (*scored, *below)]
        for head, lines in folded(["run", *(words(score) for _, score in keys)], rows, Console().width):
            table(group, head, lines)
    for line in dict.fromkeys(line for result in results for line in class_mapping(result["scores"], requested)):
        tell(line)


def predict(
    model: Annotated[str, Argument(help="A run folder, an export's folder, a model.onnx or hf://OWNER/NAME.")],
    images: Annotated[list[Path], Argument(help="Image files, and folders of them.", metavar="IMAGE...")],
    top: Annotated[int, Option(min=1, help="How many classes of each image.")] = 3,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Name what is on image files: the likeliest classes, with the network's confidence."""
    predictions = api.predict(model, images, top=top, device=device, threads=threads)
    if as_json:
        print_json({"model": model, "images": predictions})
        return
    for prediction in predictions:
        answers = ", ".join(f"{one_line(answer['class'])} {answer['confidence']:.1%}" for answer in prediction["top"])
        name = prediction["image"].replace("\n", r"\n")  # a line for each file, whatever its name
        tell(f"{name}: {answers}")


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
        tell_prose([*shown.below, ""])
    for swept, _ in report.drawn.sweep:
        table(f"by {swept.key}", swept.head(), swept.texts())
    for dotted, figure in report.drawn.scatter:
        table(figure.title, ["", "value", "over"], dotted.numbers())
    for entry in (*summary["unfinished"], *summary["skipped"]):
        tell(": ".join(entry.values()), file=sys.stderr)
    tell_prose(report.sentences)
    tell(summary["page"])


def export(
    folder: Annotated[Path, Argument(help="A run folder, or a teacher's or its hash.", metavar="RUN")],
    to: Annotated[str, Option(help=f"{', '.join(FORMATS)}.", autocompletion=options.last_of(lambda: FORMATS))],
    out: Annotated[Path | None, Option(help="The folder to write [default: RUN/export/<to>].")] = None,
    embedding: Annotated[bool, Option("--embedding", help="Output the embedding too: onnx and torch.")] = False,
    int8: Annotated[bool, Option("--int8", help="Of onnx: also model.int8.onnx, compared with the float one.")] = False,
    also: Annotated[list[str] | None, Option(help="Compare int8 on a folder too: NAME=PATH, may be repeated.")] = None,
    push: Annotated[str | None, Option(help="Upload the hub-folder to the Hugging Face Hub: OWNER/NAME.")] = None,
    state: Annotated[str, Option(help="Of a teacher: a state it kept, like 15%.")] = "final",
    force: Annotated[bool, Option("--force", help="Replace an earlier export.")] = False,
    runs: Annotated[Path | None, Option(help="Parent of teachers/ [default: two levels above RUN].")] = None,
    data_root: options.RootOption = None,
    threads: options.ThreadsOption = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Write the student alone, with its preprocessing and a model card, checked against the original."""
    from antishortcut.deployment.int8 import table_rows
    from antishortcut.deployment.model_card import megabytes

    choice: dict[str, Any] = {"state": state, "out": out, "embedding": embedding, "force": force, "runs": runs}
    choice |= {"int8": int8, "also": also or (), "push": push}
    result = api.export(folder, to, data_root=data_root, threads=threads, **choice)
    url = result.url
    source = options.find_run(folder, runs or Path("runs"))
    run, _ = source.read()
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
    tell_prose(
        [f"checked on {check['images']}: differs from the original by {check['largest']:.1e} of its largest value"]
    )
    if int8:
        table("float and int8", *table_rows(record["int8"]))
        tell(f"calibrated on {plural(record['int8']['calibration']['images'], 'training image')}")
        if record["int8"]["warning"]:
            tell(f"Note: {record['int8']['warning']}")
    if url:
        tell(f"{url} (a new repository is private; its settings on the Hub make it public)")
    tell(result.place)
    if record["names"] and record["format"] != "torch" and source.primary_metric()[0] == "accuracy":
        model = result.place / "model.onnx" if record["format"] == "onnx" else result.place
        tell(f"next: asd predict {shlex.quote(str(model))} IMAGE...", sys.stderr)
