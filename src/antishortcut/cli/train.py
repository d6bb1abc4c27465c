"""asd demo, init, teach, rewind, distill: what makes runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antishortcut.cli import options as complete
from antishortcut.cli.options import (
    TEACHING,
    DownloadOption,
    Flags,
    JsonOption,
    RecipeArg,
    RootOption,
    RunsOption,
    SeedOption,
    SetOption,
    ThreadsOption,
    check_threads,
    print_json,
    table,
    tell,
    with_execution,
    workshop,
)
from antishortcut.errors import UserError, suggest

if TYPE_CHECKING:
    from antishortcut.run_dir import RunDir


def demo(
    task: Annotated[str, typer.Option(help="classification or segmentation.")] = "classification",
    runs: RunsOption = Path("runs"),
    seed: SeedOption = 1,
    set_: SetOption = None,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """The whole story on the embedded images: teacher, four students, table and report."""
    from antishortcut.cli.demo import STORIES, run_demo, show_demo
    from antishortcut.config.recipe import Execution, load_recipe
    from antishortcut.training.pipeline import Session

    if task not in STORIES:
        raise UserError(f"--task {task!r}{suggest(task, STORIES)}")
    check_threads(threads)
    session = Session(
        runs, execution=Execution(accelerator="cpu", threads=threads, cache_teachers=STORIES[task].cached)
    )
    story = run_demo(load_recipe(STORIES[task].recipe, set_ or ()), STORIES[task], session, seed)
    if as_json:
        print_json(story)
    else:
        show_demo(story)


def init(path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("recipe.toml")) -> None:
    """Write a commented recipe for your own data."""
    from antishortcut.config.recipe import recipe_template
    from antishortcut.fileio import atomic_write

    if path.exists():
        raise UserError(f"{path} exists; name another file or remove it")
    with atomic_write(path) as file:  # on a full disk there is none, not an empty one
        file.write(recipe_template().encode())
    tell(f"wrote {path}; next: edit it, then asd teach {path} && asd distill {path} --method contrast+tc")


@with_execution(*TEACHING)
def teach(
    recipe: RecipeArg,
    set_: SetOption = None,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
    *,
    execution: Flags,
) -> None:
    """Train a recipe's teacher and keep its trajectory."""
    from antishortcut.config.recipe import load_recipe
    from antishortcut.run_dir import RunDir
    from antishortcut.training.pipeline import teach as teach_it

    settings = load_recipe(recipe, [text for text in set_ or () if not text.startswith("method.")])  # as for distill
    run = teach_it(settings, workshop(runs, data_root, download, **execution))
    _show_trajectory(RunDir(run.folder(runs)), as_json)


@with_execution(*TEACHING)
def rewind(
    teacher: Annotated[Path, typer.Argument(help="A teacher's folder, runs/teachers/<hash>, or its hash.")],
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of fine-tuning, 10 unless said; or iterations, as the teacher counts.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="The constant learning rate; unless said, 0.05, or what AdamW began with.")
    ] = None,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    as_json: JsonOption = False,
    *,
    execution: Flags,
) -> None:
    """Make an early-like reference when only the final checkpoint is left."""
    from antishortcut.config.recipe import rewind_length
    from antishortcut.run_dir import RunDir
    from antishortcut.training.pipeline import rewind as rewind_it

    by_hash = runs / "teachers" / teacher
    folder = RunDir(by_hash if by_hash.is_dir() and not teacher.is_dir() else teacher)
    run, _ = folder.read()
    if run.kind not in ("teach", "imported") or not folder.finished:
        raise UserError(f"{teacher} is not a finished teacher (asd teach makes one)")
    epochs = rewind_length(run.iterations) if epochs is None else epochs
    if rate is None:  # the paper's is SGD's
        rate = 0.05 if run.optim.name == "sgd" else run.optim.lr
    if epochs < 1 or rate <= 0:
        raise UserError("--epochs must be at least 1 and --rate positive")
    runs = folder.path.resolve().parent.parent
    session = workshop(runs, data_root, False, **execution)
    new = rewind_it(run, epochs, rate, session)
    session.say(f"Use it with --set teacher.early={new.hash}/final")
    _show_trajectory(RunDir(new.folder(runs)), as_json)


@with_execution()
def distill(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A TOML file, or the name of a shipped recipe; or none, with --data, --teacher and --student.",
            autocompletion=complete.recipes,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Without a recipe: a folder of images, or asd list datasets.", autocompletion=complete.data),
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="Without a recipe: a network, like timm:resnet50.", autocompletion=complete.models),
    ] = None,
    student: Annotated[
        str | None, typer.Option(help="Without a recipe: a smaller network.", autocompletion=complete.models)
    ] = None,
    final: Annotated[
        str | None, typer.Option(help="The teacher is already trained: its weights, or a folder of its states.")
    ] = None,
    early: Annotated[
        str | None, typer.Option(help="And those of its early state; or rewind, which makes one from --final.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Without a recipe: how long, if not as planned.")] = None,
    pretrained: Annotated[
        bool | None,
        typer.Option(help="Without a recipe: begin with published weights [default: where they can be had]."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Without a recipe: show the plan and stop.")] = False,
    method: Annotated[str, typer.Option(help="asd list methods.", autocompletion=complete.methods)] = "asd",
    seed: SeedOption = 1,
    set_: SetOption = None,
    suite: Annotated[str | None, typer.Option(help="Folder below --runs [default: the recipe's name].")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run [default: the method's].")] = None,
    via: Annotated[
        list[str] | None,
        typer.Option(help="A network between teacher and student (TAKD), repeated.", autocompletion=complete.models),
    ] = None,
    generations: Annotated[
        int, typer.Option(min=1, help="Born-Again: students that teach the next of their kind.")
    ] = 1,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
    *,
    execution: Flags,
) -> None:
    """Distil a student, by a recipe, or from your data and two networks. Trains the teacher first when it is not there.

    --set method.KEY=VALUE reaches the method.
    """
    from antishortcut.cli import auto as own
    from antishortcut.config.recipe import load_recipe
    from antishortcut.run_dir import RunDir
    from antishortcut.training.pipeline import distill as distill_it

    chosen = [f"methods.{method}.{text[7:]}" if text.startswith("method.") else text for text in set_ or ()]
    pieces = execution.pop("micro_batches") or ("auto" if recipe is None else "1")
    session = workshop(runs, data_root, download, micro_batches=pieces, **execution)
    words = (data, teacher, student, final, early, epochs, pretrained)
    planned, name = recipe is None, _slug(name)  # before a plan is written
    if recipe is None:
        required = own.asked(*words)
        suite = _slug(suite or required.name)
        lasting = [text for text in chosen if not text.startswith("methods.")]
        recipe = str(own.planned(required, session, suite, lasting, method, not dry_run, as_json))
        if dry_run:
            return
    elif dry_run or any(word is not None for word in words):
        raise UserError("--data, --teacher, --student and what belongs to them stand for a recipe; with one, use --set")
    settings = load_recipe(recipe, chosen)
    place = {"suite": _slug(suite or own.suite_of(Path(recipe), runs)), "name": name}
    if planned:
        own.estimate(settings, runs, place["suite"], method, seed, session.execution)
    run = distill_it(settings, session, method=method, seed=seed, via=via or (), generations=generations, **place)
    if planned:
        own.measure(run, runs, data_root, execution["device"])
    folder = RunDir(run.folder(runs))
    result = folder.result()
    where, heads, rows = _ends(folder, result)
    if as_json:
        print_json({"run": str(folder.path), "hash": run.hash} | result)
        return
    table(f"{run.name} on {run.data.name}, {where} set", heads, rows)
    tell(folder.path)
    if planned:
        own.following(run, runs, data_root, Path(recipe))


def _ends(folder: RunDir, result: dict[str, Any]) -> tuple[str, tuple[str, ...], list[tuple[Any, ...]]]:
    """The set that judged a run, and its last and best scores there as head and rows."""
    folder.primary_metric()  # says what is damaged, if it is
    try:
        named = [name for name in result["last"] if name not in ("epoch", "images")]
        rows = [(kind, result[kind]["epoch"], *(result[kind][name] for name in named)) for kind in ("last", "best")]
        return str(result["set"]), ("", "epoch", *named), rows
    except (KeyError, TypeError) as error:
        what = f"no {error.args[0]}" if isinstance(error, KeyError) else "not what a run writes"
        path = folder.path / "result.json"
        raise UserError(f"{path}: damaged ({what}); restore it or remove its folder") from None


def _show_trajectory(folder: Any, as_json: bool) -> None:
    from antishortcut.teachers.trajectory import Trajectory

    trajectory = Trajectory(folder)
    if as_json:
        print_json({"teacher": str(folder.path), "hash": folder.path.name, "states": trajectory.entries})
        return
    named = [name for name in ("accuracy", "miou") if name in trajectory.entries[-1]]
    rows = [
        (", ".join(e["labels"]), e["step"], e["epoch"], *(e[name] for name in named), e["images"])
        for e in trajectory.entries
    ]
    table("trajectory", ("state", "step", "epoch", *named, "on images"), rows)
    tell(folder.path)


def _slug(name: Any) -> Any:
    """A run's name is a folder's name: no separators, nothing hidden."""
    if name == "teachers":
        raise UserError("'teachers' is the folder of the teachers; choose another --suite or --name")
    if name is not None and (not name or "/" in name or "\\" in name or name.startswith(".") or "\0" in name):
        raise UserError(f"{name!r} cannot name a folder")
    try:
        str(name).encode()
    except UnicodeEncodeError:  # could be trained, but no file that names the run could be read
        raise UserError(f"{name!r} cannot name a folder: it is not UTF-8") from None
    return name
