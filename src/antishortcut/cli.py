"""The command `asd`. Sub-commands import what they need when they run, so that `asd --help` is instant."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from antishortcut.workflow import Workshop

from antishortcut.console import first_process
from antishortcut.errors import UserError, near

app = typer.Typer(
    name="asd",
    help="Distil a vision model without handing down its shortcuts.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RecipeArg = Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe (asd list recipes).")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override: key=value, may be repeated.")]
RunsOption = Annotated[Path, typer.Option(help="Where run folders lie.")]
RootOption = Annotated[Path | None, typer.Option(help="Where data sets lie [default: $ANTISHORTCUT_DATA or ./data].")]
DownloadOption = Annotated[bool, typer.Option("--download", help="Fetch the data set where torchvision can.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
DevicesOption = Annotated[int, typer.Option(help="How many devices share each batch.")]
PrecisionOption = Annotated[str, typer.Option(help="32-true, bf16-mixed or 16-mixed.")]
ThreadsOption = Annotated[int, typer.Option(help="CPU threads of each process, 0 for torch's choice.")]
WorkersOption = Annotated[int, typer.Option(help="Processes that decode images on disk.")]
SaveOption = Annotated[float, typer.Option(help="Seconds between resume states.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
SeedOption = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the student.")]


def _workshop(
    runs: Path,
    data_root: Path | None,
    download: bool,
    device: str,
    devices: int,
    precision: str,
    threads: int,
    workers: int,
    save_every: float,
) -> Workshop:
    from pydantic import ValidationError

    from antishortcut.run import Execution
    from antishortcut.workflow import Workshop

    try:
        execution = Execution.model_validate(
            {
                "accelerator": device,
                "devices": devices,
                "precision": precision,
                "threads": threads,
                "workers": workers,
                "save_every": save_every,
            }
        )
    except ValidationError as error:
        problem = error.errors()[0]
        flag = {"accelerator": "device"}.get(str(problem["loc"][0]), str(problem["loc"][0]).replace("_", "-"))
        raise UserError(f"--{flag}: {problem['msg']}") from None
    return Workshop(runs, data_root, download, execution)


@app.command()
def demo(
    runs: RunsOption = Path("runs"),
    seed: SeedOption = 1,
    set_: SetOption = None,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """The whole story on the embedded images: teacher, CE, KD and ASD students, table and report."""
    from antishortcut.demo import run_demo, show_demo
    from antishortcut.run import Execution, load_recipe
    from antishortcut.workflow import Workshop

    shop = Workshop(runs, execution=Execution(accelerator="cpu", threads=threads))
    story = run_demo(load_recipe("cues", set_ or ()), shop, seed)
    if as_json:
        _print_json(story)
    else:
        show_demo(story)


@app.command()
def init(path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("recipe.toml")) -> None:
    """Write a commented recipe for your own data."""
    from antishortcut.recipes import TEMPLATE

    if path.exists():
        raise UserError(f"{path} exists; name another file or remove it")
    path.write_text(TEMPLATE, encoding="utf-8")
    print(f"wrote {path}; next: edit it, then asd teach {path} && asd distill {path} --method asd")


@app.command()
def teach(
    recipe: RecipeArg,
    set_: SetOption = None,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    download: DownloadOption = False,
    device: DeviceOption = "auto",
    devices: DevicesOption = 1,
    precision: PrecisionOption = "32-true",
    threads: ThreadsOption = 0,
    workers: WorkersOption = 0,
    save_every: SaveOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Train a recipe's teacher and keep its trajectory."""
    from antishortcut.folder import Folder
    from antishortcut.run import load_recipe
    from antishortcut.workflow import teach as teach_it

    settings = load_recipe(recipe, [text for text in set_ or () if not text.startswith("method.")])  # as for distill
    shop = _workshop(runs, data_root, download, device, devices, precision, threads, workers, save_every)
    run = teach_it(settings, shop)
    _show_trajectory(Folder(run.folder(runs)), as_json)


@app.command()
def rewind(
    teacher: Annotated[Path, typer.Argument(help="A teacher's folder, runs/teachers/<hash>, or its hash.")],
    epochs: Annotated[int, typer.Option(help="Epochs of fine-tuning.")] = 10,
    rate: Annotated[float, typer.Option(help="The constant learning rate.")] = 0.05,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    device: DeviceOption = "auto",
    devices: DevicesOption = 1,
    precision: PrecisionOption = "32-true",
    threads: ThreadsOption = 0,
    workers: WorkersOption = 0,
    save_every: SaveOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Make an early-like reference when only the final checkpoint is left."""
    from antishortcut.folder import Folder
    from antishortcut.workflow import rewind as rewind_it

    by_hash = runs / "teachers" / teacher
    folder = Folder(by_hash if by_hash.is_dir() and not teacher.is_dir() else teacher)
    run, _ = folder.read()
    if run.kind != "teach" or not folder.finished:
        raise UserError(f"{teacher} is not a finished teacher (asd teach makes one)")
    if epochs < 1 or rate <= 0:
        raise UserError("--epochs must be at least 1 and --rate positive")
    runs = folder.path.resolve().parent.parent
    shop = _workshop(runs, data_root, False, device, devices, precision, threads, workers, save_every)
    new = rewind_it(run, epochs, rate, shop)
    shop.say("The paper found a rewound reference no better than plain KD (80.18 against 80.22 on P1).")
    shop.say(f"Use it with --set teacher.early={new.hash}/final")
    _show_trajectory(Folder(new.folder(runs)), as_json)


@app.command()
def distill(
    recipe: RecipeArg,
    method: Annotated[str, typer.Option(help="asd list methods.")] = "asd",
    seed: SeedOption = 1,
    set_: SetOption = None,
    suite: Annotated[str | None, typer.Option(help="Folder below --runs [default: the recipe's name].")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run [default: the method's].")] = None,
    via: Annotated[
        list[str] | None, typer.Option(help="A network between teacher and student (TAKD), repeated.")
    ] = None,
    generations: Annotated[
        int, typer.Option(min=1, help="Born-Again: students that teach the next of their kind.")
    ] = 1,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    download: DownloadOption = False,
    device: DeviceOption = "auto",
    devices: DevicesOption = 1,
    precision: PrecisionOption = "32-true",
    threads: ThreadsOption = 0,
    workers: WorkersOption = 0,
    save_every: SaveOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Distil a student. Trains the teacher first when it is not there. --set method.KEY=VALUE reaches the method."""
    from antishortcut.folder import Folder
    from antishortcut.run import load_recipe
    from antishortcut.workflow import distill as distill_it

    chosen = [f"methods.{method}.{text[7:]}" if text.startswith("method.") else text for text in set_ or ()]
    settings = load_recipe(recipe, chosen)
    shop = _workshop(runs, data_root, download, device, devices, precision, threads, workers, save_every)
    place = {"suite": _slug(suite or Path(recipe).stem), "name": _slug(name)}
    run = distill_it(settings, shop, method=method, seed=seed, via=via or (), generations=generations, **place)
    folder = Folder(run.folder(runs))
    result = folder.result()
    if as_json:
        _print_json({"run": str(folder.path), "hash": run.hash} | result)
        return
    rows = [(kind, result[kind]["epoch"], result[kind]["accuracy"]) for kind in ("last", "best")]
    _table(f"{run.name} on {run.data.name}, {result['set']} set", ("", "epoch", "accuracy"), rows)
    print(folder.path)


@app.command()
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
        _print_json({"runs": found})
        return
    rows = [(entry["run"], name, key, value) for entry in found for name, key, value in _flat(entry["scores"])]
    _table("scores", ("run", "set", "score", "value"), rows)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder of runs: runs/P2.")],
    as_json: JsonOption = False,
) -> None:
    """Tables and a page from run folders: report.html, table.md, figures/."""
    from antishortcut.report import across, make_report

    made = make_report(folder)
    if as_json:
        _print_json(made)
        return
    _table(str(folder), *across(made["rows"]))
    for entry in made["unfinished"]:
        print(f"{entry['run']}: {entry['state']}", file=sys.stderr)
    print(made["page"])


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, models, datasets or recipes.")],
    as_json: JsonOption = False,
) -> None:
    """What there is."""
    kinds = {"methods": _methods, "models": _models, "datasets": _datasets, "recipes": _recipes}
    if what not in kinds:
        raise UserError(f"asd list knows no {what!r}{near(what, kinds)}")
    rows = kinds[what]()
    if as_json:
        _print_json(rows)
        return
    _table(what, list(rows[0]), [tuple(row.values()) for row in rows])


def _methods() -> list[dict[str, Any]]:
    from antishortcut.methods import METHODS, options_of, roles_of

    rows = []
    for name, method in METHODS.items():
        module = getattr(method, "func", method).__module__  # named variants are partials of their class
        told = (sys.modules[module].__doc__ or "").strip().splitlines()[0]
        rows.append(
            {"name": name, "what": told, "teacher states": ", ".join(roles_of(name, options_of(name, {}))) or "–"}
        )
    return rows


def _models() -> list[dict[str, Any]]:
    from antishortcut.models import describe

    return describe()


def _datasets() -> list[dict[str, Any]]:
    from antishortcut.data import SOURCES

    return [{"name": name, "what": source.description} for name, source in SOURCES.items()]


def _recipes() -> list[dict[str, Any]]:
    from antishortcut.run import load_recipe, shipped_recipes

    rows = []
    for name in shipped_recipes():
        recipe = load_recipe(name)
        pair = f"{recipe.teacher.name} → {recipe.student.name}"
        rows.append(
            {"name": name, "pair": pair, "data": recipe.data.name, "epochs": recipe.epochs, "what": recipe.title}
        )
    return rows


def _show_trajectory(folder: Any, as_json: bool) -> None:
    from antishortcut.teachers import Trajectory

    trajectory = Trajectory(folder)
    if as_json:
        _print_json({"teacher": str(folder.path), "hash": folder.path.name, "states": trajectory.entries})
        return
    rows = [(", ".join(e["labels"]), e["step"], e["epoch"], e["accuracy"], e["images"]) for e in trajectory.entries]
    _table("trajectory", ("state", "step", "epoch", "accuracy", "on images"), rows)
    print(folder.path)


def _slug(name: Any) -> Any:
    """A run's name is a folder's name: no separators, nothing hidden."""
    if name == "teachers":
        raise UserError("'teachers' is the folder of the teachers; choose another --suite or --name")
    if name is not None and (not name or "/" in name or "\\" in name or name.startswith(".") or "\0" in name):
        raise UserError(f"{name!r} cannot name a folder")
    return name


def _flat(scores: dict[str, Any]) -> list[tuple[str, str, Any]]:
    rows = []
    for name, score in scores.items():
        for key, value in score["values"].items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            rows += [(name, f"{key} {sub}".strip(), number) for sub, number in inner]
    return rows


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for number, column in enumerate(columns):
        numeric = any(isinstance(row[number], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=1))


def main() -> None:
    """Run the command; what is wrong with the input is one line and exit code 2."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # threads that wait soon sleep: spinning ruins a shared machine
    try:
        with nullcontext() if first_process() else redirect_stdout(StringIO()):  # results are told once
            app()
    except (UserError, OSError) as error:  # a full disk, a folder that may not be written, a file in its place
        print(f"asd: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if type(error).__name__ != "Stopped":  # by name: importing the trainer here would cost every command seconds
            raise
        print(f"asd: {error}", file=sys.stderr)
        sys.exit(getattr(error, "code", 1))
