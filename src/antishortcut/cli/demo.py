"""The demo: one teacher and four students on images whose shortcut is known, ending in a table and a page.

One story for classification, the usual one, and one for segmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from antishortcut.config.recipe import Recipe, Run
from antishortcut.evaluation import EvalContext, evaluate
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill, teach

METHODS_SHOWN = ("ce", "kd", "asd", "contrast+tc")


class Story(NamedTuple):
    recipe: str
    suite: str
    on: tuple[str, ...]  # what students are scored on
    cached: bool  # whether students share what the teacher said: vectors, not maps


STORIES = {
    "classification": Story("cues", "demo", ("clean", "mechanism"), True),
    "segmentation": Story("cues-seg", "demo-segmentation", ("clean", "scenes"), False),
}


def run_demo(recipe: Recipe, story: Story, session: Session, seed: int) -> dict[str, Any]:
    """Carry a story out and collect its rows; finished parts of an earlier demo are kept."""
    from antishortcut.report import make_report

    teacher = teach(recipe, session)
    early = recipe.teacher.early_state
    rows = [_row("teacher", teacher, session, ["clean"])]
    if early != "rewind" and "/" not in early:  # a state of this teacher
        rows.append(_row("early teacher", teacher, session, ["clean"], early))
    for method in METHODS_SHOWN:
        run = distill(recipe, session, method=method, seed=seed, suite=story.suite)
        rows.append(_row(method, run, session, story.on))
    out = session.runs / story.suite
    return {"rows": rows, "out": str(out), "report": make_report(out)["page"]}


def _row(method: str, run: Run, session: Session, on: Sequence[str], state: str = "final") -> dict[str, Any]:
    folder = RunDir(run.folder(session.runs))
    scores = evaluate(folder, EvalContext(session.sets(run.data), session.runs), on, state)
    mark = "" if state == "final" else f"@{state}"
    primary_metric, _ = folder.primary_metric()
    row: dict[str, Any] = {"method": method, "run": str(folder.path), "score": primary_metric}
    row |= {name: scores[name + mark]["values"][primary_metric] for name in ("iid", "conflict", "uncorrelated")}
    row["shape_bias"] = scores[f"conflict{mark}"]["values"].get("shape_bias")
    for view, values in (scores["mechanism"]["values"] if "mechanism" in on else {}).items():
        row |= {(key if view == "raw" else f"{key}_aligned"): value for key, value in values.items()}
    return row


WORDS = {
    "iid": "{score} on images like the training ones",
    "conflict": "{score} when the texture is another class's: low means it went by the texture",
    "uncorrelated": "{score} when the texture says nothing",
    "shape bias": "of the {things} in conflict decided by shape or by texture, the share decided by shape",
}
INSIDE = {
    "cos final, cos early": "cosine of the student's embedding to the teacher's, final and early",
    "projection": "of the embedding on the shortcut eigenspace; a random direction has {random:.2f}",
    "in brackets": "the same after a linear map of the student's embedding onto the teacher's space",
}


NAMED = {"accuracy": ("accuracy", "images"), "miou": ("mIoU", "pixels")}


def show_demo(story: dict[str, Any]) -> None:
    """The table for a person, with what its columns mean."""
    from rich.console import Console
    from rich.table import Table

    plain = {"iid": "iid", "conflict": "conflict", "uncorrelated": "uncorrelated", "shape_bias": "shape bias"}
    mapped = {"cos_final": "cos final", "cos_early": "cos early", "projection": "projection"}
    leans = Table(title="What the students lean on", title_justify="left")
    lies = Table(title="Where their features lie", title_justify="left")
    for table, columns in ((leans, plain), (lies, mapped)):
        table.add_column("", no_wrap=True)
        for title in columns.values():
            table.add_column(title, justify="right", no_wrap=True)
    for row in story["rows"]:
        leans.add_row(row["method"], *(_number(row.get(key)) for key in plain))
        if "projection" in row:
            lies.add_row(row["method"], *(f"{_number(row[key])} ({_number(row[f'{key}_aligned'])})" for key in mapped))
    console = Console(highlight=False)
    console.print(leans)
    if lies.row_count:
        console.print(lies)
    score, things = NAMED[story["rows"][0]["score"]]
    random = next((row["projection_random"] for row in story["rows"] if "projection_random" in row), 0.0)
    for word, meaning in (WORDS | (INSIDE if lies.row_count else {})).items():
        console.print(f"{word}: {meaning.format(random=random, score=score, things=things)}", markup=False)
    console.print(f"\nruns: {story['out']}\npage: {story['report']}", markup=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
