"""A recipe for your images and two networks: planned, agreed with, timed, and the student scored after it is run."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.api.arguments import use_hardware
from antishortcut.api.scoring import eval_context, score_run
from antishortcut.config.recipe import (
    DIALS,
    LEVELS,
    TRIALS,
    WEAK,
    Recipe,
    Run,
    load_recipe,
    recipe_from,
    setting,
    weak_length,
    weak_run,
    with_settings,
)
from antishortcut.config.schema import PUBLISHED
from antishortcut.errors import UserError, plural
from antishortcut.experiments.jobs import Job
from antishortcut.fileio import atomic_write, expanded
from antishortcut.fileio import text as text_of
from antishortcut.progress import first_process
from antishortcut.run_dir import RunDir, difference

if TYPE_CHECKING:
    from antishortcut.training.auto_recipe import PairRequest
    from antishortcut.training.pipeline import Session

EITHER = "--data, --teacher, --student and what belongs to them stand for a recipe; with one, use --set"
EVALUATED = ("clean", "hard", "mechanism", "cost", "maps")  # what the report shows
PROBED = 2_000 * 64**2  # pixels of test images up to which probes, 16 passes over them, take seconds


def dialled(
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
    from antishortcut.training.pipeline import check_name, feasible
    from antishortcut.training.pipeline import distill as distill_recipe
    from antishortcut.types import lacks_labels

    requested, bare = budget is not None or frontier, lacks_labels(session.sets(recipe.data).train)
    if method not in DIALS or chained or bare:
        if requested:
            why = "leave --via and --generations out" if chained else f"{method} has no dial"
            why = "some images have no labels, which its trials need" if bare else why
            raise UserError(f"--budget and --frontier are of --method {dial.METHOD}: {why}")
        return recipe
    levels = {f"{method}-{level}": values for level, values in LEVELS.items()} if frontier else {}
    places = [(suite, run) for run in (name or method, *levels)]
    is_open = dial.is_open(recipe, method)
    for folder, run in [*places, *((suite + TRIALS, level) for level in LEVELS if is_open)]:
        check_name(recipe, session, method=method, seed=seed, suite=folder, name=run)
    if is_open:
        feasible(recipe, session, method)  # before the teacher is trained
        choice = dial.choose(recipe, session, seed=seed, suite=suite, budget=budget or 0.0)
        session.say(choice.why)
        if planned is not None and first_process():
            session.say(dial.record(planned, choice))
        recipe = dial.applied(recipe, choice)
    elif requested:
        dial.check_recorded(recipe, planned, budget)
    session.reuse = True  # the chosen level is finished: it was tried
    for run, values in levels.items():
        distill_recipe(recipe, session, method=method, seed=seed, suite=suite, name=run, options=values)
    return recipe


def recommended(recipe: Recipe, session: Session) -> str:
    """The method for those who name none, by what data and networks can give; the run says which it is."""
    from antishortcut.tasks import build_task
    from antishortcut.types import lacks_labels

    sets = session.sets(recipe.data)
    if not sets.classes:
        method, why = "features", "the teacher has no classifier, so the student learns its embedding"
        why += " and the classes only score it" if sets.classified else ""
    elif recipe.teacher.early == "weak" and lacks_labels(session.sets(recipe.data.labelled).train):
        method, why = "kd", "there is no early checkpoint, and no labels to train a weak reference with"
    elif build_task(sets).dense:
        method, why = "contrast+tc", "of the methods tried on scenes, none was better"
    else:
        method, why = "contrast+hint", "recommended (docs/contrast.md)"
    session.say(f"method {method}: {why}; --method asd is the paper's, --method kd plain distillation")
    return method


def folder_name(name: Any) -> Any:
    """A run's name is a folder's name: no separators, nothing hidden, UTF-8."""
    if name == "teachers":
        raise UserError("'teachers' is the folder of the teachers; choose another --suite or --name")
    if name is not None and (not name.isprintable() or name[:1] in ("", ".") or "/" in name or "\\" in name):
        raise UserError(f"{name!r} cannot name a folder")
    return name


def pair_request(data: Any, teacher: Any, student: Any, unlabelled: bool = False, **more: Any) -> PairRequest:
    from antishortcut.training.auto_recipe import PairRequest, data_name, unlabelled_request

    if data is None or teacher is None or student is None:
        raise UserError(
            "name a recipe (asd list recipes), or --data, --teacher and --student, like --data folder:photos "
            "--teacher timm:resnet50 --student timm:mobilenetv3_small_100"
        )
    more |= {key: str(more[key]) for key in ("final", "early") if more.get(key) is not None}
    early, final = more.get("early"), more.get("final")
    if early is not None and final is None and early not in ("rewind", "weak") and not early.endswith("%"):
        raise UserError(f"--early {early} goes with --final, the weights of a teacher that is already trained")
    if unlabelled:
        return unlabelled_request(PairRequest(str(data), teacher, student, **more))
    return PairRequest(data_name(str(data)), teacher, student, **more)


def plan(
    request: PairRequest,
    session: Session,
    suite: str,
    overrides: list[str],
    method: str | None,
    write: bool,
    own: dict[str, Path] | None = None,
) -> tuple[Path, str, str]:
    """The recipe of a folder of runs: the existing one if it agrees, or a new one; its file, text and method.

    Nothing is written if it fails. own: folders that the student is to be scored on.
    """
    from antishortcut.training.auto_recipe import plan_recipe, to_toml
    from antishortcut.training.fabric import check_device
    from antishortcut.training.pipeline import feasible

    path = session.runs / suite / "recipe.toml"
    while write and not first_process() and not path.is_file():  # under torchrun the first process plans
        time.sleep(0.2)
    if exists := path.is_file():
        _require_agreement(path, request, overrides)
        text, counts = text_of(path), ""
    else:
        head = f"{request.teacher} → {request.student} on {request.data}, planned by asd distill; yours to edit.\n"
        head += f"{_again(path, session.runs, session.root)} --method kd    another student of the same teacher"
        lines = plan_recipe(request, session.root, dict(setting(text) for text in overrides))
        text, counts = to_toml(lines, head), next(f"{line.why}; " for line in lines if line.key == "data.name")
    recipe = recipe_from(text, path)
    method = method or recommended(recipe, session)
    roles = feasible(recipe, session, method, download=write)
    if own:
        eval_context(session, recipe.data, session.runs, own)
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
        session.say(f"{'the plan is unchanged' if exists else 'wrote the plan, which you can edit'}: {path}")
    return path, text, method


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
        early = "" if weak or teacher.final == PUBLISHED else f", and {early} its early state"
        yield f"take {teacher.name} as it was trained: {teacher.final}{early}"
    else:
        length = plural(teacher.epochs or recipe.epochs or recipe.iterations, "epoch" if recipe.epochs else "iteration")
        verb = "fine-tune" if teacher.pretrained else "train"
        yield f"{verb} {teacher.name} on these classes for {length}, {_start(teacher)}, saving checkpoints"
        if not weak:
            use = "the negative example" if "early" in roles else "which scores compare with"
            yield f"take its checkpoint at {teacher.early} as T_early, {use}"
    if weak and "early" in roles:
        run = weak_run(recipe, "")
        yield f"train {run.model.name} for {run.length} as a weak reference, in place of an early checkpoint"
    yield f"distil {student.name} for {recipe.length}, {_start(student)}"


def _start(model: Any) -> str:
    if model.name.startswith("live:"):
        return "from the weights it has"
    if model.pretrained or model.weights:
        return "from published weights" if model.pretrained else f"from {model.weights}"
    hub = model.name.startswith(("timm:", "torchvision:")) and "pretrained" not in model.model_fields_set
    return "from scratch" + (" (no published weights at hand)" if hub else "")


def is_planned(recipe: Path, runs: Path) -> bool:
    """Whether a recipe lies beside the runs made from it, as those that were planned do."""
    return recipe.name == "recipe.toml" and recipe.resolve().parent.parent == runs.resolve()


def suite_of(recipe: Path, runs: Path) -> str:
    """The folder of a recipe's runs: its name, or where it lies if it was planned here."""
    return recipe.resolve().parent.name if is_planned(recipe, runs) else recipe.stem


def student_length(recipe: Recipe, epochs: int) -> list[str]:
    """Settings for a student of so many epochs whose teacher, and what is made of it, stay those of the recipe."""
    if recipe.iterations:
        raise UserError("this recipe counts iterations, not epochs; use --set iterations=N")
    teacher = recipe.teacher
    lengths = {"epochs": teacher.epochs or recipe.epochs, "rewind_epochs": teacher.rewind_epochs}
    lengths["weak_epochs"] = teacher.weak_epochs or weak_length(recipe.epochs)
    return [f"epochs={epochs}", *(f"teacher.{key}={length}" for key, length in lengths.items())]


def estimate(recipe: Recipe, session: Session, suite: str, method: str, seed: int) -> None:
    """Say how long what is left takes on this machine, from a few real steps, or why that cannot be measured."""
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
    if cost.left_out:
        session.say(f"no estimate of its time: {cost.left_out[0][1]}")
    elif 60 * cost.hours > 1:
        span = f"{cost.hours:,.1f} hours" if cost.hours >= 1.5 else plural(round(60 * cost.hours), "minute")
        again = "; trained three to five times to choose its strength, once with --set method.strength=0.25"
        again = again if method in DIALS and recipe.data.val_fraction else ""
        session.say(f"about {span} here, without reading image files{again}; --epochs N makes it shorter")
    elif cost.rows:
        session.say("less than a minute here, without reading image files")


def shown_scores(run: Run, session: Session) -> tuple[str, ...]:
    """What the report shows of such a run, where it takes seconds."""
    from antishortcut.types import is_dense, lacks_labels

    sets = session.sets(run.data)
    images = next(iter(sets.tests.values()))
    if lacks_labels(images):
        return ("clean", "cost", *(["embedding"] if sets.classified else []))
    if not run.roles:  # the rest compare it with its teacher
        return ("clean", "cost")
    if is_dense(images):  # the rest are of one answer per image
        return ("clean", "scenes", "cost")
    weak = WEAK in run.early  # mechanism compares features of one network
    names = [name for name in EVALUATED if not (weak and name == "mechanism")]
    small = min(len(images), 2_000) * sets.image_size**2 <= PROBED
    return (*names, "probes") if small else tuple(names)


def score_student(run: Run, session: Session, device: str) -> None:
    """Score the student for the report; what cannot be measured is left out with a line for each reason."""
    missing = dict[str, list[str]]()
    for name in shown_scores(run, session) if first_process() else ():
        try:
            score_run(run.folder(session.runs), session.runs, session, [name], {}, use_hardware(device, 0))
        except UserError as error:
            missing.setdefault(str(error), []).append(name)
    for reason, names in missing.items():
        session.say(f"not measured: {', '.join(names)}: {reason}")


def say_next(run: Run, session: Session) -> None:
    """The commands that a person may want next."""
    folder = run.folder(session.runs)
    recipe = folder.parent / "recipe.toml"
    other = next(name for name in ("kd", "contrast+hint") if name != run.method)
    session.say(f"next: asd report {shlex.quote(str(folder.parent))}   what it relies on, as a page")
    if RunDir(folder).primary_metric()[0] == "accuracy":
        session.say(f"      asd predict {shlex.quote(str(folder))} IMAGE...   what it sees on images of yours")
        session.say(
            f"      asd evaluate {shlex.quote(str(folder))} --on NAME=FOLDER   on images you fear, sorted by class"
        )
    session.say(f"      asd export {shlex.quote(str(folder))} --to onnx   the student for deployment")
    session.say(f"      {_again(recipe, session.runs, session.root)} --method {other}   another student to compare")


def _again(recipe: Path, runs: Path, root: Path | None) -> str:
    """The command for another student of the same teacher."""
    words = ["asd", "distill", str(recipe), *(["--runs", str(runs)] if runs != Path("runs") else [])]
    return shlex.join(words + (["--data-root", str(root)] if root is not None else []))
