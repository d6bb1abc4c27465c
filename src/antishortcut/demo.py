"""The demo: one teacher and four students on images whose shortcut is known, ending in a table and a page."""

from __future__ import annotations

from typing import Any

from antishortcut.evaluate import Bench, evaluate
from antishortcut.folder import Folder
from antishortcut.run import Recipe, Run
from antishortcut.workflow import Workshop, distill, teach

METHODS_SHOWN = ("ce", "kd", "asd", "contrast+tc")


def run_demo(recipe: Recipe, shop: Workshop, seed: int) -> dict[str, Any]:
    """Carry the story out and collect its rows; finished parts of an earlier demo are kept."""
    from antishortcut.report import make_report

    teacher = teach(recipe, shop)
    early = recipe.teacher.early
    rows = [_row("teacher", teacher, shop, ["clean"])]
    if early != "rewind" and "/" not in early:  # a state of this teacher
        rows.append(_row("early teacher", teacher, shop, ["clean"], early))
    for method in METHODS_SHOWN:
        run = distill(recipe, shop, method=method, seed=seed, suite="demo")
        rows.append(_row(method, run, shop, ["clean", "mechanism"]))
    out = shop.runs / "demo"
    return {"rows": rows, "out": str(out), "report": make_report(out)["page"]}


def _row(method: str, run: Run, shop: Workshop, on: list[str], state: str = "final") -> dict[str, Any]:
    folder = Folder(run.folder(shop.runs))
    scores = evaluate(folder, Bench(shop.sets(run.data), shop.runs), on, state)
    mark = "" if state == "final" else f"@{state}"
    row: dict[str, Any] = {"method": method, "run": str(folder.path)}
    row |= {name: scores[name + mark]["values"]["accuracy"] for name in ("iid", "conflict", "uncorrelated")}
    row["shape_bias"] = scores[f"conflict{mark}"]["values"].get("shape_bias")
    for view, values in (scores["mechanism"]["values"] if "mechanism" in on else {}).items():
        row |= {(key if view == "raw" else f"{key}_aligned"): value for key, value in values.items()}
    return row


WORDS = {
    "iid": "accuracy on images like the training ones",
    "conflict": "accuracy when the texture is another class's: low means it went by the texture",
    "uncorrelated": "accuracy when the texture says nothing",
    "shape bias": "of the conflict images decided by shape or by texture, the share decided by shape",
    "cos final, cos early": "cosine of the student's embedding to the teacher's, final and early",
    "projection": "of the embedding on the shortcut eigenspace; a random direction has {random:.2f}",
    "in brackets": "the same after a linear map of the student's embedding onto the teacher's space",
}


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
    console.print(lies)
    random = next((row["projection_random"] for row in story["rows"] if "projection_random" in row), 0.0)
    for word, meaning in WORDS.items():
        console.print(f"{word}: {meaning.format(random=random)}", markup=False)
    console.print(f"\nruns: {story['out']}\npage: {story['report']}", markup=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
