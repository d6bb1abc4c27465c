"""asd evaluate, report: what reads finished runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from antishortcut.cli.options import DeviceOption, JsonOption, RootOption, ThreadsOption, print_json, table
from antishortcut.errors import UserError


def evaluate(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN...")],
    on: Annotated[str, typer.Option(help="What to measure, comma-separated: clean, mechanism.")] = "clean",
    data_root: RootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Score finished runs; scores land in their folders."""
    import torch

    from antishortcut.evaluate import evaluate as evaluate_it
    from antishortcut.folder import Folder
    from antishortcut.workflow import Workshop

    if threads:
        torch.set_num_threads(threads)
    device = "cpu" if device == "auto" and not torch.cuda.is_available() else device.replace("auto", "cuda")
    if device not in ("cpu", "cuda", "mps") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"--device {device}: not here; use cpu")
    shop = Workshop(Path("runs"), data_root)
    names = [name.strip() for name in on.split(",") if name.strip()]
    found: list[dict[str, Any]] = []
    for path in folders:
        folder = Folder(path)
        if len(folders) > 1 and not folder.finished:  # a shell's * brings figures and unfinished runs along
            print(f"{path}: no finished run, left out", file=sys.stderr)
            continue
        run, _ = folder.read()
        runs = path.resolve().parent.parent
        scores = evaluate_it(folder, runs, shop.sets(run.data), names, device=device)
        found.append({"run": str(path), "scores": scores})
    if as_json:
        print_json({"runs": found})
        return
    rows = [(entry["run"], name, key, value) for entry in found for name, key, value in _flat(entry["scores"])]
    table("scores", ("run", "set", "score", "value"), rows)


def report(
    folder: Annotated[Path, typer.Argument(help="A folder of runs: runs/P2.")],
    as_json: JsonOption = False,
) -> None:
    """Tables and a page from run folders: report.html, table.md, figures/."""
    from antishortcut.report import across, make_report

    made = make_report(folder)
    if as_json:
        print_json(made)
        return
    table(str(folder), *across(made["rows"]))
    for entry in made["unfinished"]:
        print(f"{entry['run']}: {entry['state']}", file=sys.stderr)
    print(made["page"])


def _flat(scores: dict[str, Any]) -> list[tuple[str, str, Any]]:
    rows = []
    for name, score in scores.items():
        for key, value in score["values"].items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            rows += [(name, f"{key} {sub}".strip(), number) for sub, number in inner]
    return rows
