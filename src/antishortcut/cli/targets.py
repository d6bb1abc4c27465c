"""asd targets: what contrast targets would say, to choose λ and T_early by."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from antishortcut.cli.options import JsonOption, RootOption, print_json, table, tell
from antishortcut.errors import UserError

COLUMNS = {
    "state": "T_early",
    "strength": "λ",
    "agreement": "agree",
    "moved": "moved",
    "entropy": "entropy",
    "early_accuracy": "early",
    "final_accuracy": "final",
    "target_accuracy": "target",
    "hard_accuracy": "hard",
}
WORDS = (
    "agree: share of images that T_early and T_final call the same; moved: share whose target is led by another class "
    "than T_final's; entropy of the targets at τ = 4, in nats; then accuracies: of T_early, T_final and the "
    "targets, and of the targets on the images that T_early gets wrong."
)


def targets(
    teacher: Annotated[Path, typer.Argument(help="A teacher's folder, runs/teachers/<hash>.")],
    states: Annotated[str, typer.Option(help="Early states, comma-separated [default: all it kept].")] = "",
    strengths: Annotated[str, typer.Option(help="Values of λ, comma-separated.")] = "0,0.25,0.5,1,2",
    data_root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Signs to choose λ and T_early of contrast targets by, without any test image and before a student is trained."""
    from antishortcut.analysis.contrast_targets import LOST, measure
    from antishortcut.progress import console
    from antishortcut.run_dir import Folder
    from antishortcut.training.pipeline import Workshop

    try:
        values = [float(word) for word in strengths.split(",") if word.strip()]
    except ValueError:
        values = []
    if not values or not all(0 <= value < math.inf for value in values):
        raise UserError(f"--strengths {strengths!r}: write numbers from 0 up, like 0.25,0.5,1")
    folder = Folder(teacher)
    run, _ = folder.read()
    wanted = [word.strip() for word in states.split(",") if word.strip()]
    sets = Workshop(Path("runs"), data_root).sets(run.data)
    screen = console()
    found = measure(folder, sets, wanted, values, lambda text: screen.print(text, markup=False))
    if as_json:
        print_json(found)
        return
    rows = [tuple(row[key] for key in COLUMNS) for row in found["rows"]]
    table(f"contrast targets on {found['count']:,} {found['set']} images", list(COLUMNS.values()), rows)
    print(WORDS)
    told = ", ".join(
        f"{state} {'none' if value is None else f'{value:g}'}" for state, value in found["largest"].items()
    )
    tell(f"Largest λ whose targets lose at most {LOST:.0%} of T_final's accuracy, by T_early: {told}")
