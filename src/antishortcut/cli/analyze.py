"""asd audit, try, targets: what trained networks reveal, before any student is trained and after."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from antishortcut import api
from antishortcut.cli import options
from antishortcut.cli.options import (
    DeviceOption,
    JsonOption,
    RootOption,
    ThreadsOption,
    print_json,
    table,
    tell,
    tell_prose,
)
from antishortcut.errors import UserError
from antishortcut.progress import console
from antishortcut.run_dir import RunDir

# Columns of the tables: key → heading
ENERGY = {
    "state": "state", "accuracy": "accuracy", "shortcut": "displaced", "abandoned": "abandoned",
    "robust": "principal directions",
}  # fmt: skip
CANDIDATE = {
    "state": "state", "early": "early", "final": "final", "lost": "lost", "explained": "movement explained",
    "degrees": "degrees between halves",
}  # fmt: skip
INDENT = "    "
CANDIDATES = (
    "early, final: share of the energy of T_early and T_final in them; lost: 1 − final / early, negative where it "
    "grew; movement explained: share of the movement to T_final; degrees between halves: how far they depend on the "
    "images."
)
TARGET = {
    "state": "T_early", "early_accuracy": "accuracy", "agreement": "agree", "strength": "λ", "moved": "moved",
    "entropy": "entropy", "target_accuracy": "targets", "hard_accuracy": "hard",
}  # fmt: skip


def audit(
    final: Annotated[Path | None, Option(help="Weights of the trained model: .safetensors, .pt, .pth.")] = None,
    early: Annotated[list[str] | None, Option(help="Early weights, FILE or NAME=FILE; repeated, in order.")] = None,
    model: options.ModelOption = None,
    data: options.DatasetOption = None,
    teacher: Annotated[Path | None, Option(help="Instead: runs/teachers/<hash>; --early is one of its states.")] = None,
    student: Annotated[Path | None, Option(help="A student's weights, or its run folder.")] = None,
    student_model: options.ModelOption = None,
    out: Annotated[Path, Option(help="Folder for audit.html, audit.json, pictures/ and figures/.")] = Path("audit"),
    data_root: RootOption = None,
    embedding: Annotated[str | None, Option(help="Module whose output is the embedding [default: found].")] = None,
    classes: Annotated[int | None, Option(min=1, help="Outputs of the model [default: the data's classes].")] = None,
    image_size: Annotated[int | None, Option(min=8, help="Side of the images [default: as asd check says].")] = None,
    mean: Annotated[str | None, Option(help="Of the model's normalisation, like 0.485,0.456,0.406.")] = None,
    std: Annotated[str | None, Option(help="The same, like 0.229,0.224,0.225.")] = None,
    set_: options.SetOption = None,
    set_name: options.TestSetOption = None,
    limit: Annotated[int, Option(min=1, help="At most so many images of the test and of the training set.")] = 5000,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Audit your own model: from two checkpoints and images, which directions training abandoned, and how sure."""
    choice: dict[str, Any] = {"embedding": embedding, "classes": classes, "image_size": image_size}
    choice |= {
        "mean": mean,
        "std": std,
        "set": set_ or (),
        "set_name": set_name,
        "limit": limit,
        "device": device,
        "threads": threads,
    }
    networks: dict[str, Any] = {"final": final, "early": early, "model": model, "teacher": teacher}
    networks |= {"student": student, "student_model": student_model}
    result = api.audit(data=data, data_root=data_root, out=out, **networks, **choice).result
    if as_json:
        print_json({"out": str(out), "page": str(out / api.PAGE)} | result)
    else:
        _show_audit(result)
        tell_prose(["", *result["sentences"]])
        tell(out / api.PAGE)


def _show_audit(result: dict[str, Any]) -> None:
    for note in result["notes"]:
        tell_prose([f"Note: {note}"], sys.stderr)
    images = f"{result['count']:,} images of {result['set']}"
    table(f"{result['model']} on {result['data']}: {images}, share of energy in", ENERGY, result["energy"])
    candidates = [row["displaced"] | {"state": row["state"]} for row in result["candidates"]]
    if len(candidates) > 1:
        title = "candidates for T_early: displaced directions of one half of the images, energy on the other half"
        table(title, CANDIDATE, [row | {"degrees": row["agreement"]["mean"]} for row in candidates])
        tell_prose([CANDIDATES])
    width = max(40, min(120, shutil.get_terminal_size().columns))
    for line in result["findings"]:
        beside = f" ({line['beside']})" if line["beside"] else ""
        tell(f"{line['name']}: {line['value']}{beside}")
        tell(
            textwrap.fill(line["means"], width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
        )


# --- asd try ---


def try_(
    folders: Annotated[
        list[Path] | None, Argument(help="Run folders, students or a teacher.", metavar="[RUN]...")
    ] = None,
    final: Annotated[Path | None, Option(help="Instead of runs: weights of the trained model.")] = None,
    early: Annotated[list[str] | None, Option(help="Early weights, FILE or NAME=FILE; may be repeated.")] = None,
    model: options.ModelOption = None,
    data: options.DatasetOption = None,
    classes: Annotated[int | None, Option(min=1, help="Outputs of the model [default: the data's classes].")] = None,
    image_size: Annotated[int | None, Option(min=8, help="Side of the images [default: as asd check says].")] = None,
    set_: options.SetOption = None,
    on: Annotated[list[str] | None, Option(help="Leaf through a folder too: NAME=PATH, may be repeated.")] = None,
    runs: Annotated[Path | None, Option(help="Parent of teachers/ [default: two levels above RUN].")] = None,
    port: Annotated[
        int | None, Option(min=1, max=65535, help="Of the page [default: the first free from 7860].")
    ] = None,
    data_root: RootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
) -> None:
    """Try networks on a page: drop an image, change it, see what teacher and students answer and where they look."""
    files = (final, early, model, data, classes, image_size, set_)
    if folders and any(value is not None for value in files):
        raise UserError("runs bring their own model and data; leave out --final, --early and what belongs to them")
    own = options.class_folders(on or (), "--on")
    device = options.use_hardware(device, threads)

    try:
        from antishortcut.api import trial
        from antishortcut.api.trial_page import serve
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise UserError("asd try needs gradio: pip install 'antishortcut[app]'") from None
    if folders:
        opened = trial.open_runs(folders, own, runs, data_root, device)
    else:
        words = [*(set_ or ()), *([] if image_size is None else [f"data.image_size={image_size}"])]
        opened = trial.open_files(final, early or (), model, data, own, data_root, device, classes, words)
    serve(opened, port, tell)


# --- asd targets ---

LEGEND = (
    "accuracy: of T_early; agree: share of images where T_early and T_final predict the same class; moved: share whose "
    "target has another top class than T_final's; entropy: of the targets at τ = 4, in nats; targets, hard: accuracy "
    "of the targets, on all images and on those that T_early gets wrong."
)


def targets(
    teacher: Annotated[Path, Argument(help="A teacher's folder, runs/teachers/<hash>.")],
    states: Annotated[str, Option(help="Early states, comma-separated [default: all it kept].")] = "",
    strengths: Annotated[str, Option(help="Values of λ, comma-separated.")] = "0,0.25,0.5,1,2",
    data_root: RootOption = None,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Choose λ and T_early of contrast targets without any test image, before a student is trained."""
    from antishortcut.experiments.dial import measure
    from antishortcut.teachers.selection import LOST
    from antishortcut.training.pipeline import Session

    try:
        values = [float(word) for word in options.split_names(strengths)]
    except ValueError:
        values = []
    if not values or not all(0 <= value < math.inf for value in values):
        raise UserError(f"--strengths {strengths!r}: write numbers from 0 up, like 0.25,0.5,1")
    options.use_hardware("cpu", threads)
    folder, screen = RunDir(teacher), console()
    sets = Session(Path("runs"), data_root).sets(folder.read()[0].data)
    names = options.split_names(states)
    result = measure(folder, sets, names, values, lambda text: screen.print(text, markup=False))
    if as_json:
        print_json(result)
        return
    rows, once = result["rows"], ("state", "early_accuracy", "agreement")  # what is the same for every λ
    same = [at > 0 and row["state"] == rows[at - 1]["state"] for at, row in enumerate(rows)]
    rows = [row | dict.fromkeys(once, "") if again else row for row, again in zip(rows, same, strict=True)]
    final = f"T_final is right in {result['rows'][0]['final_accuracy']:.1%}"
    table(f"contrast targets on {result['count']:,} {result['set']} images; {final}", TARGET, rows)
    by_strength: dict[float | None, list[str]] = {}
    for name, strength in result["largest"].items():
        by_strength.setdefault(strength, []).append(name)
    largest = "; ".join(f"{'none' if x is None else f'{x:g}'} for {', '.join(own)}" for x, own in by_strength.items())
    tell_prose(
        [LEGEND, f"Largest λ whose targets lose at most {LOST:.0%} of T_final's accuracy, by T_early: {largest}."]
    )
    tell("next: asd distill RECIPE --method contrast --set teacher.early=T_EARLY --set method.strength=λ", sys.stderr)
