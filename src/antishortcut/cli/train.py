"""asd demo, init, teach, rewind, distill: what makes runs."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from antishortcut.cli import options
from antishortcut.cli.evaluate import score_run
from antishortcut.cli.options import JsonOption, RootOption, RunsOption, SetOption, print_json, table, tell
from antishortcut.config.recipe import (
    DIALS,
    Recipe,
    Run,
    load_recipe,
    recipe_from,
    rewind_length,
    setting,
    weak_run,
    with_settings,
)
from antishortcut.errors import UserError, plural, suggest
from antishortcut.experiments.jobs import Job
from antishortcut.fileio import atomic_write, expanded
from antishortcut.progress import first_process
from antishortcut.report import make_report
from antishortcut.run_dir import RunDir, difference

if TYPE_CHECKING:
    from antishortcut.training.auto_recipe import PairRequest
    from antishortcut.training.pipeline import Session

DEMOS = {  # task → recipe, folder of the runs, evaluations of the students
    "classification": ("cues", "demo", ("clean", "mechanism")),
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
EVALUATED = ("clean", "hard", "mechanism", "cost")  # what the report shows
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
    for method in ("ce", "kd", "asd", "contrast+tc"):
        run = distill(recipe, session, method=method, seed=seed, suite=suite)
        rows.append(_demo_row(method, run, session, scored))
    page = make_report(runs / suite)["page"]
    if as_json:
        print_json({"rows": rows, "out": str(runs / suite), "report": page})
    else:
        _show_demo(rows)
        tell(f"\nruns: {runs / suite}\npage: {page}")


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


def _show_demo(rows: list[dict[str, Any]]) -> None:
    headings = {"method": ""} | {name: name for name in SETS} | {"shape_bias": "shape bias"}
    table("What the students lean on", headings, rows)
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
    """Train a recipe's teacher and keep its trajectory."""
    from antishortcut.training.pipeline import teach as teach_recipe

    settings = load_recipe(recipe, [text for text in set_ or () if not text.startswith("method.")])  # as for distill
    run = teach_recipe(settings, options.open_session(runs, data_root, download, **execution))
    _show_trajectory(RunDir(run.folder(runs)), as_json)


@options.with_execution(*options.STUDENT_ONLY)
def rewind(
    teacher: Annotated[Path, Argument(help="A teacher's folder, runs/teachers/<hash>, or its hash.")],
    epochs: Annotated[int | None, Option(min=1, help="Or iterations, as the teacher's [default: 10 epochs].")] = None,
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
    epochs = rewind_length(run.iterations) if epochs is None else epochs
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
    teacher: options.ModelOption = None,
    student: options.ModelOption = None,
    final: Annotated[str | None, Option(help="Weights of a trained teacher, or a folder of its states.")] = None,
    early: Annotated[str | None, Option(help=EARLY)] = None,
    epochs: Annotated[int | None, Option(min=1, help="Without a recipe: length of training.")] = None,
    pretrained: Annotated[bool | None, Option(help="Begin with published weights [default: if there are any].")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Without a recipe: show the plan and stop.")] = False,
    method: Annotated[str, Option(help="asd list methods.", autocompletion=options.methods)] = "asd",
    seed: options.SeedOption = 1,
    set_: SetOption = None,
    suite: Annotated[str | None, Option(help="Folder below --runs [default: the recipe's name].")] = None,
    name: Annotated[str | None, Option(help="Name of the run [default: the method's].")] = None,
    via: Annotated[list[str] | None, Option(help=VIA, autocompletion=options.models)] = None,
    generations: Annotated[int, Option(min=1, max=100, help="Born-Again: each student teaches the next.")] = 1,
    budget: Annotated[float | None, Option(help=BUDGET)] = None,
    frontier: Annotated[bool, Option("--frontier", help="Train every level of the dial.")] = False,
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
    from antishortcut.training.pipeline import distill as distill_recipe

    overrides = [f"methods.{method}.{text[7:]}" if text.startswith("method.") else text for text in set_ or ()]
    planned = recipe is None
    execution["micro_batches"] = execution["micro_batches"] or ("auto" if planned else "1")
    session = options.open_session(runs, data_root, download, **execution)
    name = _folder_name(name)
    pair: dict[str, Any] = {"data": data, "teacher": teacher, "student": student}
    pair |= {"final": final, "early": early, "epochs": epochs, "pretrained": pretrained}
    if recipe is None:
        request = _pair_request(**pair)
        suite = _folder_name(suite or request.name)
        lasting = [text for text in overrides if not text.startswith("methods.")]
        recipe = str(_plan(request, session, suite, lasting, method, not dry_run, as_json))
        if dry_run:
            return
    elif dry_run or any(value is not None for value in pair.values()):
        raise UserError("--data, --teacher, --student and what belongs to them stand for a recipe; with one, use --set")
    settings = load_recipe(recipe, overrides)
    suite = _folder_name(suite or _suite_of(Path(recipe), runs))
    if planned:
        _estimate(settings, session, suite, method, seed)
    chain: dict[str, Any] = {"via": via or (), "generations": generations}
    names: dict[str, Any] = {"method": method, "seed": seed, "suite": suite, "name": name}
    path = Path(recipe) if planned else None
    settings = _dialled(settings, session, budget, frontier, via is not None or generations > 1, path, **names)
    run = distill_recipe(settings, session, **names, **chain)
    if planned:
        _score(run, session, execution["device"])
    folder = RunDir(run.folder(runs))
    _show_result(folder, f"{run.name} on {run.data.name}", {"run": str(folder.path), "hash": run.hash}, as_json)
    if planned and not as_json:
        _say_next(run, session, Path(recipe))


def _dialled(
    recipe: Recipe,
    session: Session,
    budget: float | None,
    frontier: bool,
    chained: bool,
    planned: Path | None,
    *,
    method: str,
    seed: int,
    suite: str,
    name: str | None,
) -> Recipe:
    """The recipe with the settings that the dial chose, unless it has its own; a planned one gets them in writing."""
    from antishortcut.experiments import dial
    from antishortcut.training.pipeline import distill as distill_recipe

    requested = budget is not None or frontier
    if method not in DIALS or chained:
        if requested:
            why = "leave --via and --generations out" if chained else f"{method} has no dial"
            raise UserError(f"--budget and --frontier are of --method {dial.METHOD}: {why}")
        return recipe
    levels = {f"{method}-{level}": values for level, values in dial.LEVELS.items()} if frontier else {}
    for run in (name or method, *levels):
        RunDir(session.runs / suite / f"{run}-s{seed}").check_place()
    if dial.is_open(recipe, method):
        choice = dial.choose(recipe, session, seed=seed, suite=suite, budget=budget or 0.0)
        session.say(choice.why)
        if planned is not None and first_process():
            session.say(dial.record(planned, choice))
        recipe = dial.applied(recipe, choice)
    elif requested:
        dial.check_recorded(recipe, planned, budget)
    session.reuse = session.reuse or frontier  # the chosen level is one of these
    for run, values in levels.items():
        distill_recipe(recipe, session, method=method, seed=seed, suite=suite, name=run, options=values)
    return recipe


def _show_result(folder: RunDir, title: str, head: dict[str, str], as_json: bool) -> None:
    """The last and the best scores on the set that was evaluated during training."""
    folder.primary_metric()  # raises if it is damaged
    result = folder.result()
    if as_json:
        print_json(head | result)
        return
    names = [name for name in result["last"] if name not in ("epoch", "images")]
    rows = [(kind, result[kind]["epoch"], *(result[kind][name] for name in names)) for kind in ("last", "best")]
    table(f"{title}, {result['set']} set", ("", "epoch", *names), rows)
    tell(folder.path)


def _show_trajectory(folder: RunDir, as_json: bool) -> None:
    from antishortcut.teachers.trajectory import Trajectory

    entries = Trajectory(folder).entries
    if as_json:
        print_json({"teacher": str(folder.path), "hash": folder.path.name, "states": entries})
        return
    names = ["step", "epoch", *(name for name in ("accuracy", "miou") if name in entries[-1]), "images"]
    rows = [(", ".join(entry["labels"]), *(entry[name] for name in names)) for entry in entries]
    table("trajectory", ("state", *names[:-1], "on images"), rows)
    tell(folder.path)


def _folder_name(name: Any) -> Any:
    """A run's name is a folder's name: no separators, nothing hidden, UTF-8."""
    if name == "teachers":
        raise UserError("'teachers' is the folder of the teachers; choose another --suite or --name")
    if name is not None and (not name.isprintable() or name[:1] in ("", ".") or "/" in name or "\\" in name):
        raise UserError(f"{name!r} cannot name a folder")
    return name


# --- asd distill without a recipe: plan one for your data and two networks ---


def _pair_request(data: str | None, teacher: str | None, student: str | None, **more: Any) -> PairRequest:
    from antishortcut.training.auto_recipe import PairRequest, data_name

    if data is None or teacher is None or student is None:
        raise UserError(
            "name a recipe (asd list recipes), or --data, --teacher and --student, like --data folder:photos "
            "--teacher timm:resnet50 --student timm:mobilenetv3_small_100"
        )
    early, final = more["early"], more["final"]
    if early is not None and final is None and early not in ("rewind", "weak") and not early.endswith("%"):
        raise UserError(f"--early {early} goes with --final, the weights of a teacher that is already trained")
    return PairRequest(data_name(data), teacher, student, **more)


def _plan(
    request: PairRequest, session: Session, suite: str, overrides: list[str], method: str, write: bool, as_json: bool
) -> Path:
    """The recipe of a folder of runs: the existing one if it agrees, or a new one. Nothing is written if it fails."""
    from antishortcut.training.auto_recipe import plan_recipe, to_toml
    from antishortcut.training.fabric import check_device
    from antishortcut.training.pipeline import feasible

    path = session.runs / suite / "recipe.toml"
    while write and not first_process() and not path.is_file():  # under torchrun the first process plans
        time.sleep(0.2)
    if exists := path.is_file():
        _require_agreement(path, request, overrides)
        text, counts = path.read_text(encoding="utf-8"), ""
    else:
        head = f"{request.teacher} → {request.student} on {request.data}, planned by asd distill; yours to edit.\n"
        head += f"{_again(path, session.runs, session.root)} --method kd    another student of the same teacher"
        lines = plan_recipe(request, session.root, dict(setting(text) for text in overrides))
        text, counts = to_toml(lines, head), next(f"{line.why}; " for line in lines if line.key == "data.name")
    recipe = recipe_from(text, path)
    roles = feasible(recipe, session, method)
    if write:  # a plan can be shown for another machine
        check_device(session.execution)
    size = f", images of {recipe.data.image_size} × {recipe.data.image_size}" if recipe.data.image_size else ""
    session.say(f"{request.data}: {counts}augmentation {recipe.data.augment}{size}, batches of {recipe.optim.batch}")
    for number, line in enumerate(_steps(recipe, roles), start=1):
        session.say(f"{number}. {line}")
    if write and not exists:
        with atomic_write(path) as file:
            file.write(text.encode())
    if write:
        session.say(f"the plan with its reasons, {'as it was' if exists else 'yours to edit'}: {path}")
    elif as_json:
        print_json(recipe.model_dump(mode="json", exclude_unset=True))
    else:
        print(text, end="")
    return path


def _require_agreement(path: Path, request: PairRequest, overrides: list[str]) -> None:
    """An existing recipe is never changed."""
    recipe, settings = load_recipe(str(path)), request.settings
    if _resolved(recipe.data.name) == _resolved(request.data):  # the same folder may be spelt otherwise
        del settings["data.name"]
    changed = with_settings(recipe, [f"{key}={json.dumps(value)}" for key, value in settings.items()] + overrides)
    if text := difference(recipe, changed):
        raise UserError(f"{path} is another recipe ({text}); edit it, or give these runs a --suite of their own")


def _resolved(name: str) -> tuple[str, Path]:
    kind, _, path = name.partition(":")
    return kind, expanded(path).resolve()


def _steps(recipe: Recipe, roles: Sequence[str]) -> Iterator[str]:
    teacher, student, weak = recipe.teacher, recipe.student, recipe.teacher.early == "weak"
    if not roles:
        yield f"train {student.name} from labels alone for {recipe.length}, {_start(student)}: it needs no teacher"
        return
    if teacher.final is not None:
        early = f"{teacher.early} is" if teacher.early_file else f"{teacher.early} for"
        early = "" if weak else f", and {early} its early state"
        yield f"take {teacher.name} as it was trained: {teacher.final}{early}"
    else:
        length = plural(teacher.epochs or recipe.epochs or recipe.iterations, "epoch" if recipe.epochs else "iteration")
        verb = "fine-tune" if teacher.pretrained else "train"
        yield f"{verb} {teacher.name} on these classes for {length}, {_start(teacher)}, keeping its trajectory"
        if not weak:
            yield f"take its state at {teacher.early} as T_early, the one to push away from"
    if weak and "early" in roles:
        run = weak_run(recipe, "")
        yield f"train {run.model.name} for {run.length} as a weak reference, in place of an early checkpoint"
    yield f"distil {student.name} for {recipe.length}, {_start(student)}"


def _start(model: Any) -> str:
    if model.pretrained or model.weights:
        return "from published weights" if model.pretrained else f"from {model.weights}"
    hub = model.name.startswith(("timm:", "torchvision:")) and "pretrained" not in model.model_fields_set
    return "from scratch" + (" (no published weights at hand)" if hub else "")


def _suite_of(recipe: Path, runs: Path) -> str:
    """The folder of a recipe's runs: its name, or where it lies if it was planned here."""
    folder = recipe.resolve().parent
    return folder.name if recipe.name == "recipe.toml" and folder.parent == runs.resolve() else recipe.stem


def _estimate(recipe: Recipe, session: Session, suite: str, method: str, seed: int) -> None:
    """Say how long it takes on this machine, from a few real steps, if that can be measured."""
    import torch

    from antishortcut.experiments.benchmark import Stopwatch
    from antishortcut.experiments.cost import measured_cost

    execution, threads = session.execution, torch.get_num_threads()
    if execution.devices * execution.nodes > 1 or int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return  # its processes would wait for each other
    job = Job(suite=suite, name=method, seed=seed, recipe=recipe, method=method)
    try:
        cost = measured_cost([job], session.runs, Stopwatch(execution))
    finally:
        torch.set_num_threads(threads)
    if not cost.left_out and 60 * cost.hours > 1:
        span = f"{cost.hours:,.1f} hours" if cost.hours >= 1.5 else plural(round(60 * cost.hours), "minute")
        session.say(f"about {span} here, reading of image files aside; --epochs N makes it shorter")


def _score(run: Run, session: Session, device: str) -> None:
    """Score the student for the report; what cannot be measured is left out with a line."""
    names = EVALUATED if run.roles else ("clean", "cost")  # the rest compare it with its teacher
    for name in names if first_process() else ():
        try:
            score_run(run.folder(session.runs), session.runs, session, [name], {}, options.use_hardware(device, 0))
        except UserError as error:
            session.say(f"not measured: {name}: {error}")


def _say_next(run: Run, session: Session, recipe: Path) -> None:
    folder = run.folder(session.runs)
    other = next(name for name in ("kd", "contrast+tc") if name != run.method)
    session.say(f"next: asd report {shlex.quote(str(folder.parent))}   what it relies on, as a page")
    session.say(f"      asd export {shlex.quote(str(folder))} --to onnx   the student for deployment")
    session.say(f"      {_again(recipe, session.runs, session.root)} --method {other}   another student to compare")


def _again(recipe: Path, runs: Path, root: Path | None) -> str:
    """The command for another student of the same teacher."""
    words = ["asd", "distill", str(recipe), *(["--runs", str(runs)] if runs != Path("runs") else [])]
    return shlex.join(words + (["--data-root", str(root)] if root is not None else []))
