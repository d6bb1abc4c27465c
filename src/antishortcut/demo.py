"""The demo: one teacher and three students on images whose shortcut is known, ending in a table and a page."""

from __future__ import annotations

from typing import Any

from antishortcut.evaluate import evaluate
from antishortcut.folder import Folder
from antishortcut.run import Recipe, Run
from antishortcut.teachers import Trajectory
from antishortcut.workflow import Workshop, distill, teach

METHODS_SHOWN = ("ce", "kd", "asd")


def run_demo(recipe: Recipe, shop: Workshop, seed: int) -> dict[str, Any]:
    """Carry the story out and collect its rows; finished parts of an earlier demo are kept."""
    sets = shop.sets(recipe.data)
    teacher = teach(recipe, shop)
    rows = [_row("teacher", teacher, shop, ["clean"])]
    for method in METHODS_SHOWN:
        run = distill(recipe, shop, method=method, seed=seed, suite="demo")
        rows.append(_row(method, run, shop, ["clean", "mechanism"]))
    early = Trajectory(Folder(teacher.folder(shop.runs))).entry(recipe.teacher.early)
    out = shop.runs / "demo"
    from antishortcut.report import make_report

    page = make_report(out)["page"]
    return {"rows": rows, "early": early["accuracy"], "count": len(sets.train), "out": str(out), "report": page}


def _row(method: str, run: Run, shop: Workshop, on: list[str]) -> dict[str, Any]:
    folder = Folder(run.folder(shop.runs))
    scores = evaluate(folder, shop.runs, shop.sets(run.data), on)
    row: dict[str, Any] = {"method": method, "run": str(folder.path)}
    row |= {name: scores[name]["values"]["accuracy"] for name in ("iid", "conflict", "uncorrelated")}
    row["shape_bias"] = scores["conflict"]["values"].get("shape_bias")
    for view, values in scores.get("mechanism", {"values": {}})["values"].items():
        row |= {(key if view == "raw" else f"{key}_aligned"): value for key, value in values.items()}
    return row


def show_demo(story: dict[str, Any]) -> None:
    """The table for a person, with what its columns mean."""
    from rich.console import Console
    from rich.table import Table

    columns = {"iid": "iid", "conflict": "conflict", "uncorrelated": "uncorrelated", "shape_bias": "shape bias"}
    both = {"cos_final": "cos to final", "cos_early": "cos to early", "projection": "projection"}
    table = Table(title="What the students lean on", title_justify="left")
    table.add_column("")
    for title in (*columns.values(), *both.values()):
        table.add_column(title, justify="right")
    for row in story["rows"]:
        cells = [_number(row.get(key)) for key in columns]
        cells += [
            f"{_number(row.get(key))} ({_number(row.get(f'{key}_aligned'))})" if key in row else "–" for key in both
        ]
        table.add_row(row["method"], *cells)
    console = Console()
    console.print(table)
    random = next(row["projection_random"] for row in story["rows"] if "projection_random" in row)
    console.print(
        "Accuracy on images like the training ones (iid), with the texture of another class (conflict), of any class\n"
        "(uncorrelated). Shape bias: of the conflict images decided by shape or texture, the share decided by shape.\n"
        "Cosines to the teacher's final and early embedding, and projection on the shortcut eigenspace\n"
        f"(a random direction: {random:.2f}); in brackets after a linear map onto the teacher's space.",
        highlight=False,
    )
    console.print(f"runs: {story['out']}\npage: {story['report']}", highlight=False, markup=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
