"""The demo: a teacher and four students on synthetic images whose shortcut is known, a table and a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from antishortcut.cli.options import table, tell
from antishortcut.config.recipe import Recipe, Run
from antishortcut.evaluation import EvalContext, evaluate
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill, teach


class Demo(NamedTuple):
    recipe: str
    suite: str
    on: tuple[str, ...]  # evaluations of the students
    cached: bool  # whether the teacher's outputs are cached: vectors, not maps


DEMOS = {
    "classification": Demo("cues", "demo", ("clean", "mechanism"), True),
    "segmentation": Demo("cues-seg", "demo-segmentation", ("clean", "scenes"), False),
}
SETS = ("iid", "conflict", "uncorrelated")
INSIDE = {"cos_final": "cos final", "cos_early": "cos early", "projection": "projection"}


def run_demo(recipe: Recipe, demo: Demo, session: Session, seed: int) -> dict[str, Any]:
    """Train, score and report; finished runs of an earlier demo are reused."""
    from antishortcut.report import make_report

    teacher = teach(recipe, session)
    early = recipe.teacher.early_state
    rows = [_row("teacher", teacher, session, ["clean"])]
    if early != "rewind" and "/" not in early:  # a state of this teacher
        rows.append(_row("early teacher", teacher, session, ["clean"], early))
    for method in ("ce", "kd", "asd", "contrast+tc"):
        run = distill(recipe, session, method=method, seed=seed, suite=demo.suite)
        rows.append(_row(method, run, session, demo.on))
    out = session.runs / demo.suite
    return {"rows": rows, "out": str(out), "report": make_report(out)["page"]}


def _row(method: str, run: Run, session: Session, on: Sequence[str], state: str = "final") -> dict[str, Any]:
    folder = RunDir(run.folder(session.runs))
    scores = evaluate(folder, EvalContext(session.sets(run.data), session.runs), on, state)
    mark = "" if state == "final" else f"@{state}"
    metric, _ = folder.primary_metric()
    row: dict[str, Any] = {"method": method, "run": str(folder.path), "score": metric}
    row |= {name: scores[name + mark]["values"][metric] for name in SETS}
    row["shape_bias"] = scores[f"conflict{mark}"]["values"].get("shape_bias")
    for space, values in (scores["mechanism"]["values"] if "mechanism" in on else {}).items():
        row |= {(key if space == "raw" else f"{key}_aligned"): value for key, value in values.items()}
    return row


def show_demo(result: dict[str, Any]) -> None:
    rows = result["rows"]
    score, things = {"accuracy": ("accuracy", "images"), "miou": ("mIoU", "pixels")}[rows[0]["score"]]
    cells = [(row["method"], *(row[name] for name in SETS), row["shape_bias"]) for row in rows]
    table("What the students lean on", ("", *SETS, "shape bias"), cells)
    inside = [row for row in rows if "projection" in row]
    if inside:
        cells = [
            (row["method"], *(f"{row[key]:.2f} ({row[f'{key}_aligned']:.2f})" for key in INSIDE)) for row in inside
        ]
        table("Where their features lie", ("", *INSIDE.values()), cells)
    tell(f"iid: {score} on images like the training images")
    tell(f"conflict: {score} when the texture is another class's: low means it relies on the texture")
    tell(f"uncorrelated: {score} when the texture is random")
    tell(f"shape bias: of the {things} in conflict predicted by shape or by texture, the share predicted by shape")
    if inside:
        tell("cos final, cos early: cosine of the student's embedding to the teacher's, final and early")
        tell(f"projection: onto the shortcut eigenspace; a random direction has {inside[0]['projection_random']:.2f}")
        tell("in brackets: the same after a linear map of the student's embedding onto the teacher's space")
    tell(f"\nruns: {result['out']}\npage: {result['report']}")
