"""asd evaluate, report: what reads finished runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from antishortcut.training.pipeline import Session

from antishortcut.cli import options as complete
from antishortcut.cli.options import (
    MEASURED,
    AtOption,
    DeviceOption,
    JsonOption,
    RootOption,
    ThreadsOption,
    places_of,
    print_json,
    table,
    tell,
    use_threads,
)
from antishortcut.errors import UserError, one_line


def evaluate(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN...")],
    on: Annotated[
        str,
        typer.Option(
            help=f"What to measure, comma-separated: {', '.join(MEASURED)}.",
            autocompletion=complete.listed(lambda: MEASURED),
        ),
    ] = "clean",
    at: AtOption = None,
    reference: Annotated[
        Path | None, typer.Option(help="A run whose corruption error the others are relative to.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Where teachers/ lies [default: two levels above each run folder].")
    ] = None,
    data_root: RootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Score finished runs; scores land in their folders."""
    from antishortcut.evaluation.corruption_scores import relate
    from antishortcut.run_dir import RunDir
    from antishortcut.training.pipeline import Session

    use_threads(threads)
    device = device_of(device)
    session = Session(runs or Path("runs"), data_root)
    names = [name.strip() for name in on.split(",") if name.strip()]
    if not names:
        raise UserError(f"--on names nothing to measure; choose from {', '.join(MEASURED)}")
    places = places_of(at or ())
    if reference is not None:
        if "corruptions" not in names:
            raise UserError("--reference is for --on corruptions")
        scores_of(reference, runs, session, ["corruptions"], places, device)
    result: list[dict[str, Any]] = []
    for path in folders:
        if len(folders) > 1 and not RunDir(path).finished:  # a shell's * brings figures and unfinished runs along
            tell(f"{path}: no finished run, left out", file=sys.stderr)
            continue
        scores = scores_of(path, runs, session, names, places, device)
        if reference is not None:
            relate(RunDir(path), RunDir(reference))
            scores = RunDir(path).scores()
        result.append({"run": str(path), "scores": scores})
    if as_json:
        print_json({"runs": result})
        return
    table("scores", *_beside(result))


def _beside(found: list[dict[str, Any]]) -> tuple[list[str], list[tuple[Any, ...]]]:
    """A score per line, a run per column."""
    columns = [{(name, key): value for name, key, value in _flat(entry["scores"])} for entry in found]
    keys = dict.fromkeys(key for column in columns for key in column)
    names = [one_line(Path(entry["run"]).name) for entry in found]
    return ["set", "score", *names], [(*key, *(column.get(key) for column in columns)) for key in keys]


def device_of(wanted: str) -> str:
    import torch

    device = "cpu" if wanted == "auto" and not torch.cuda.is_available() else wanted.replace("auto", "cuda")
    if device not in ("cpu", "cuda", "mps") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"--device {device}: not here; use cpu")
    return device


def scores_of(
    path: Path, runs: Path | None, session: Session, names: list[str], places: dict[str, Path], device: str
) -> dict[str, dict[str, Any]]:
    from antishortcut.evaluation import EvalContext
    from antishortcut.evaluation import evaluate as evaluate_it
    from antishortcut.run_dir import RunDir

    folder = RunDir(path)
    run, _ = folder.read()
    bench = EvalContext(session.sets(run.data), runs or path.resolve().parent.parent, at=places, quiet=False)
    if session.root is not None:
        bench = replace(bench, root=session.root)
    return evaluate_it(folder, bench, names, device=device)


def report(
    folder: Annotated[Path, typer.Argument(help="A folder of runs: runs/P2.")],
    columns: Annotated[
        str | None, typer.Option(help='Columns of the tables, not of the page: "last,conflict accuracy,mce".')
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(help='A setting scores may depend on: "strength", "data.options.rho"; sweep.md.')
    ] = None,
    scatter: Annotated[
        str | None, typer.Option(help='Two columns: does the first choose well by the second? "last,mce"; scatter.md.')
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tables and a page from run folders: report.html, table.md, table.tex, figures/."""
    from antishortcut.report import build

    report = build(folder, columns, sweep=sweep, scatter=scatter)
    built = report.summary(columns)
    if as_json:
        print_json(built)
        return
    for shown in report.tables(columns):
        table(*shown[:3])
        tell("\n".join(shown.below) + "\n")
    for swept, _ in report.drawn.sweep:
        table(f"by {swept.key} (more in sweep.md)", swept.head(), swept.brief())
    for dotted, figure in report.drawn.scatter:
        table(figure.title, ["", "value", "over"], dotted.numbers())
    for entry in (*built["unfinished"], *built["skipped"]):
        tell(": ".join(entry.values()), file=sys.stderr)
    tell(built["page"])


def _flat(scores: dict[str, Any]) -> list[tuple[str, str, Any]]:
    rows = []
    for name, score in scores.items():
        source = f" ({score['source']})" if "source" in score else ""
        for key, value in score["values"].items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            rows += [(name + source, f"{key} {sub}".strip(), number) for sub, number in inner]
    return rows
