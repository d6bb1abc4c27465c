"""asd demo, init, teach, rewind, distill: what makes runs."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from antishortcut import api
from antishortcut.api.planning import is_planned, say_next, shown_scores
from antishortcut.cli import options
from antishortcut.cli.options import JsonOption, RootOption, RunsOption, SetOption, print_json, table, tell, tell_prose
from antishortcut.config.recipe import LEVELS, Run, load_recipe, rewind_length
from antishortcut.errors import UserError, suggest
from antishortcut.fileio import atomic_write
from antishortcut.progress import first_process
from antishortcut.report import make_report, summarise
from antishortcut.run_dir import RunDir

if TYPE_CHECKING:
    from antishortcut.training.pipeline import Session

DEMOS = {  # task → recipe, folder of the runs, evaluations of the students
    "classification": ("cues", "demo", ("clean", "mechanism", "maps")),
    "segmentation": ("cues-seg", "demo-segmentation", ("clean", "scenes")),
}
SETS = ("iid", "conflict", "uncorrelated")
INSIDE = {"cos_final": "cos final", "cos_early": "cos early", "projection": "projection"}
LEGEND = """iid: {score} on images like the training images
conflict: {score} when the texture is another class's: low means it relies on the texture
uncorrelated: {score} when the texture is random
shape bias: of the {things} in conflict predicted by shape or by texture, the share predicted by shape"""
LEGEND_INSIDE = """cos final, cos early: cosine of the student's embedding to the teacher's, final and early
projection: onto the shortcut eigenspace; a random direction has {random:.2f}
in brackets: the same after a linear map of the student's embedding onto the teacher's space"""
NO_LABELS = "--data are images without labels, in any layout; further ones: --set data.unlabelled=FOLDER."
FINAL = "Weights of a trained teacher, a folder of its states, or pretrained: those it comes with."
METHOD = "asd list methods [default: the recommended one, contrast+hint for images with one label each]."
VIA = "A network between teacher and student (TAKD), repeated."
EARLY = "Its early weights; weak: a small network trained in their place [default with --final alone]; or rewind."
BUDGET = "Of contrast+hint: accuracy on ordinary images you would give, like 0.01 [default: 0, nothing measurable]."


def demo(
    task: Annotated[str, Option(help="classification or segmentation.")] = "classification",
    runs: options.RunsOption = Path("runs"),
    seed: options.SeedOption = 1,
    set_: options.SetOption = None,
    threads: options.ThreadsOption = 0,
    as_json: options.JsonOption = False,
) -> None:
    """The whole story on synthetic images: teacher, four students, table and report."""
    from antishortcut.training.pipeline import distill, teach

    if task not in DEMOS:
        raise UserError(f"--task {task!r}{suggest(task, DEMOS)}")
    name, suite, on = DEMOS[task]
    cached = task == "classification"  # the teacher's outputs are vectors, not maps
    session = options.open_session(runs, None, False, device="cpu", threads=threads, cache_teachers=cached)
    recipe = load_recipe(name, set_ or ())
    teacher, early = teach(recipe, session), recipe.teacher.early_state
    rows = [_demo_row("teacher", teacher, session, ["clean"])]
    scored = [each for each in on if (each, early) != ("mechanism", "weak")]  # which compares features of T_early
    if early not in ("rewind", "weak") and "/" not in early:  # a state of this teacher
        rows.append(_demo_row("early teacher", teacher, session, ["clean"], early))
    ours: dict[str, Any] = {"contrast+hint": LEVELS["medium"]} if task == "classification" else {"contrast+tc": {}}
    for method, settings in ({"ce": {}, "kd": {}, "asd": {}} | ours).items():
        run = distill(recipe, session, method=method, seed=seed, suite=suite, options=settings)
        rows.append(_demo_row(method, run, session, scored))
    report = make_report(runs / suite)
    if as_json:
        print_json({"rows": rows, "out": str(runs / suite), "report": report["page"]})
    else:
        guessed = {name: 1 / len(session.sets(recipe.data).classes) for name in SETS if rows[0]["score"] == "accuracy"}
        _show_demo(rows, guessed)
        tell_prose(["", *report["sentences"], ""])
        tell(f"runs: {runs / suite}\npage: {report['page']}")


def _demo_row(method: str, run: Run, session: Session, on: Sequence[str], state: str = "final") -> dict[str, Any]:
    from antishortcut.evaluation import evaluate
    from antishortcut.evaluation.context import EvalContext

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


def _show_demo(rows: list[dict[str, Any]], guessed: dict[str, float]) -> None:
    headings = {"method": ""} | {name: name for name in SETS} | {"shape_bias": "shape bias"}
    chance = [{"method": "chance", "shape_bias": None} | guessed] if guessed else []
    table("What the students lean on", headings, [*rows, *chance], bars=True)
    inside = [row for row in rows if "projection" in row]
    if inside:
        cells = [[row["method"], *(f"{row[k]:.2f} ({row[f'{k}_aligned']:.2f})" for k in INSIDE)] for row in inside]
        table("Where their features lie", ("", *INSIDE.values()), cells)
    score, things = {"accuracy": ("accuracy", "images"), "miou": ("mIoU", "pixels")}[rows[0]["score"]]
    tell(LEGEND.format(score=score, things=things))
    if inside:
        tell(LEGEND_INSIDE.format(random=inside[0]["projection_random"]))


def init(path: Annotated[Path, Argument(help="The file to write.")] = Path("recipe.toml")) -> None:
    """Write a commented recipe for your own data."""
    from antishortcut.config.recipe import recipe_template

    if path.exists():
        raise UserError(f"{path} exists; name another file or remove it")
    with atomic_write(path) as file:
        file.write(recipe_template().encode())
    tell(f"wrote {path}; next: edit it, then asd teach {path} && asd distill {path} --method contrast+tc")


@options.with_execution(*options.STUDENT_ONLY)
def teach(
    recipe: options.RecipeArg,
    set_: SetOption = None,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    download: options.DownloadOption = False,
    as_json: JsonOption = False,
    *,
    execution: options.Flags,
) -> None:
    """Train a recipe's teacher and save checkpoints on the way."""
    from antishortcut.training.pipeline import teach as teach_recipe

    settings = load_recipe(recipe, [text for text in set_ or () if not text.startswith("method.")])  # as for distill
    session = options.open_session(runs, data_root, download, **execution)
    before = {path.parent for path in runs.glob("teachers/*/result.json")}
    run = teach_recipe(settings, session)
    if run.folder(runs) in before:
        session.say(f"{run.folder(runs)}: already finished")
    _show_trajectory(RunDir(run.folder(runs)), as_json)


@options.with_execution(*options.STUDENT_ONLY)
def rewind(
    teacher: Annotated[Path, Argument(help="A teacher's folder, runs/teachers/<hash>, or its hash.")],
    epochs: Annotated[
        int | None, Option(min=1, help="Or iterations, as the teacher's [default: a 24th of them].")
    ] = None,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    as_json: JsonOption = False,
    *,
    execution: options.Flags,
) -> None:
    """Make an early-like reference when only the final checkpoint is left."""
    from antishortcut.training.pipeline import rewind as rewind_teacher

    folder = options.find_run(teacher, runs)
    run, _ = folder.read()
    if run.kind not in ("teach", "imported") or not folder.finished:
        raise UserError(f"{teacher} is not a finished teacher (asd teach makes one)")
    epochs = rewind_length(run.epochs or run.iterations) if epochs is None else epochs
    rate = 0.05 if run.optim.name == "sgd" else run.optim.lr  # the paper's is SGD's
    runs = folder.path.resolve().parent.parent
    session = options.open_session(runs, data_root, False, **execution)
    new = rewind_teacher(run, epochs, rate, session)
    session.say(f"Use it with --set teacher.early={new.hash}/final")
    _show_trajectory(RunDir(new.folder(runs)), as_json)


@options.with_execution()
def distill(
    recipe: Annotated[str | None, Argument(help=options.RECIPE, autocompletion=options.recipes)] = None,
    data: Annotated[str | None, Option(help="Without a recipe: your images.", autocompletion=options.data)] = None,
    unlabelled: Annotated[bool, Option("--unlabelled", help=NO_LABELS)] = False,
    teacher: options.ModelOption = None,
    student: options.ModelOption = None,
    final: Annotated[str | None, Option(help=FINAL)] = None,
    early: Annotated[str | None, Option(help=EARLY)] = None,
    epochs: Annotated[int | None, Option(min=1, help="Length of training; with a recipe the student's alone.")] = None,
    pretrained: Annotated[bool | None, Option(help="Begin with published weights [default: if there are any].")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Without a recipe: show the plan and stop.")] = False,
    method: Annotated[str | None, Option(help=METHOD, autocompletion=options.methods)] = None,
    seed: options.SeedOption = 1,
    set_: SetOption = None,
    suite: Annotated[str | None, Option(help="Folder below --runs [default: the recipe's name].")] = None,
    name: Annotated[str | None, Option(help="Name of the run [default: the method's].")] = None,
    via: Annotated[list[str] | None, Option(help=VIA, autocompletion=options.models)] = None,
    generations: Annotated[int, Option(min=1, max=100, help="Born-Again: each student teaches the next.")] = 1,
    budget: Annotated[float | None, Option(help=BUDGET)] = None,
    frontier: Annotated[bool, Option("--frontier", help="Train every level of the dial.")] = False,
    also: options.AlsoOption = None,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    download: options.DownloadOption = False,
    as_json: JsonOption = False,
    *,
    execution: options.Flags,
) -> None:
    """Distil a student. Trains the teacher first if needed.

    Name a recipe, or --data, --teacher and --student. --set method.KEY=VALUE sets an option of the method.
    """
    pair: dict[str, Any] = {"data": data, "teacher": teacher, "student": student}
    pair |= {"final": final, "early": early, "epochs": epochs, "pretrained": pretrained, "unlabelled": unlabelled}
    where: dict[str, Any] = {"suite": suite, "runs": runs, "data_root": data_root, "download": download}
    if dry_run:
        _show_plan(api.plan(recipe, method=method, set=set_ or (), **pair, **where), as_json)
        return
    chain: dict[str, Any] = {"via": via or (), "generations": generations, "budget": budget, "frontier": frontier}
    chain["also"] = also or ()
    choice: dict[str, Any] = {"method": method, "seed": seed, "set": set_ or (), "name": name}
    result = api.distill(recipe, **pair, **choice, **chain, **where, **execution)
    run, folder = result.run, RunDir(result.path)
    head: dict[str, Any] = {"run": str(folder.path), "hash": run.hash} | ({"also": result.also} if result.also else {})
    _show_result(folder, f"{run.name} on {run.data.name}", head, as_json)
    if not as_json and first_process():
        tell_prose(summarise(folder.path.parent))
    if not as_json and (recipe is None or is_planned(Path(recipe), runs)):
        say_next(run, result.session)
    elif not as_json:
        on = ",".join(shown_scores(run, result.session))
        result.session.say(f"next: asd evaluate {shlex.quote(str(folder.path))} --on {on}   what the report shows")


def _show_plan(text: str, as_json: bool) -> None:
    if as_json:
        print_json(tomllib.loads(text))
    else:
        print(text, end="")


def _show_result(folder: RunDir, title: str, head: dict[str, Any], as_json: bool) -> None:
    """Scores on the set that was judged during training, the last and the best; its teacher’s; then those of --also."""
    result, (run, _) = folder.result(), folder.read()
    if as_json:
        print_json(head | result)
        return
    names = [name for name in result["last"] if name not in ("epoch", "images")]
    rows = [(kind, result[kind].get("epoch"), *(result[kind].get(name) for name in names)) for kind in ("last", "best")]
    teacher = RunDir(folder.path.resolve().parent.parent / "teachers" / (run.teacher or ""))
    if run.roles and teacher.finished and (of_teacher := teacher.result())["set"] == result["set"]:
        rows.append(("teacher", of_teacher["last"].get("epoch"), *(of_teacher["last"].get(name) for name in names)))
    if (classes := result.get("classes")) and "accuracy" in names:
        rows.append(("chance", None, *(1 / len(classes) if name == "accuracy" else None for name in names)))
    count = f", {result['last']['images']:,} images" if "images" in result["last"] else ""
    table(f"{title}, {result['set']} set{count}", ("", "epoch", *names), rows)
    if also := head.get("also"):
        table("also scored on", {key: key.replace("_", " ") for key in also[0]}, also)
    tell(folder.path)


def _show_trajectory(folder: RunDir, as_json: bool) -> None:
    from antishortcut.teachers.trajectory import Trajectory

    trajectory = Trajectory(folder)
    last, entries = trajectory.entry("final"), trajectory.entries  # an error if there are none
    if as_json:
        print_json({"teacher": str(folder.path), "hash": folder.path.name, "states": entries})
        return
    names = ["step", "epoch", *(name for name in ("accuracy", "miou") if name in last), "images"]
    rows = [(", ".join(entry["labels"]), *(entry[name] for name in names)) for entry in entries]
    table("checkpoints", ("checkpoint", *names[:-1], "on images"), rows)
    tell(folder.path)
