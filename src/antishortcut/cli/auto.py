"""asd distill without a recipe: plan one for your data and two networks, show it, write it, estimate, score."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.cli import options
from antishortcut.config.recipe import Recipe, Run, load_recipe, recipe_from, setting, with_settings
from antishortcut.errors import UserError, plural
from antishortcut.experiments.cost import measured_cost
from antishortcut.experiments.jobs import Job
from antishortcut.fileio import atomic_write, expanded
from antishortcut.progress import first_process
from antishortcut.run_dir import difference

if TYPE_CHECKING:
    from antishortcut.training.auto_recipe import PairRequest
    from antishortcut.training.pipeline import Session

EVALUATED = ("clean", "hard", "mechanism", "cost")  # what the report shows


def pair_request(data: str | None, teacher: str | None, student: str | None, **options: Any) -> PairRequest:
    from antishortcut.training.auto_recipe import PairRequest, data_name

    if data is None or teacher is None or student is None:
        flags = {"--data": data, "--teacher": teacher, "--student": student}
        missing = [name for name, value in flags.items() if value is None]
        raise UserError(
            f"name a recipe (asd list recipes), or your data and two networks, like --data folder:photos "
            f"--teacher timm:resnet50 --student timm:mobilenetv3_small_100; missing: {', '.join(missing)}"
        )
    early, final = options["early"], options["final"]
    if early is not None and final is None and early != "rewind" and not early.endswith("%"):
        raise UserError(f"--early {early} goes with --final, the weights of a teacher that is already trained")
    return PairRequest(data_name(data), teacher, student, **options)


def plan(
    request: PairRequest,
    session: Session,
    suite: str,
    overrides: Sequence[str],
    method: str,
    write: bool,
    as_json: bool,
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
    for number, line in enumerate(_steps(recipe, bool(roles)), start=1):
        session.say(f"{number}. {line}")
    if write and not exists:
        with atomic_write(path) as file:
            file.write(text.encode())
    if write:
        session.say(f"the plan with its reasons, {'as it was' if exists else 'yours to edit'}: {path}")
    elif as_json:
        options.print_json(recipe.model_dump(mode="json", exclude_unset=True))
    else:
        print(text, end="")
    return path


def _require_agreement(path: Path, request: PairRequest, overrides: Sequence[str]) -> None:
    """An existing recipe is never changed."""
    recipe, settings = load_recipe(str(path)), request.settings
    if _resolved(recipe.data.name) == _resolved(request.data):  # the same folder may be spelt otherwise
        del settings["data.name"]
    changed = with_settings(recipe, [f"{key}={json.dumps(value)}" for key, value in settings.items()] + list(overrides))
    if text := difference(recipe, changed):
        raise UserError(f"{path} is another recipe ({text}); edit it, or give these runs a --suite of their own")


def _resolved(name: str) -> tuple[str, Path]:
    kind, _, path = name.partition(":")
    return kind, expanded(path).resolve()


def _steps(recipe: Recipe, taught: bool) -> Iterator[str]:
    teacher, student = recipe.teacher, recipe.student
    if not taught:
        yield f"train {student.name} from labels alone for {recipe.length}, {_start(student)}: it needs no teacher"
        return
    if teacher.final is not None:
        early = f"{teacher.early} is" if teacher.early_file else f"{teacher.early} for"
        yield f"take {teacher.name} as it was trained: {teacher.final}, and {early} its early state"
    else:
        length = plural(teacher.epochs or recipe.epochs or recipe.iterations, "epoch" if recipe.epochs else "iteration")
        verb = "fine-tune" if teacher.pretrained else "train"
        yield f"{verb} {teacher.name} on these classes for {length}, {_start(teacher)}, keeping its trajectory"
        yield f"take its state at {teacher.early} as T_early, the one to push away from"
    yield f"distil {student.name} for {recipe.length}, {_start(student)}"


def _start(model: Any) -> str:
    if model.pretrained or model.weights:
        return "from published weights" if model.pretrained else f"from {model.weights}"
    hub = model.name.partition(":")[0] in ("timm", "torchvision") and "pretrained" not in model.model_fields_set
    return "from scratch" + (" (no published weights at hand)" if hub else "")


def suite_of(recipe: Path, runs: Path) -> str:
    """The folder of a recipe's runs: its name, or where it lies if it was planned here."""
    folder = recipe.resolve().parent
    return folder.name if recipe.name == "recipe.toml" and folder.parent == runs.resolve() else recipe.stem


def estimate(recipe: Recipe, session: Session, suite: str, method: str, seed: int) -> None:
    """Say how long it takes on this machine, from a few real steps, if that can be measured."""
    import torch

    from antishortcut.experiments.benchmark import Stopwatch

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


def score(run: Run, session: Session, device: str) -> None:
    """Score the student for the report; what cannot be measured is left out with a line."""
    from antishortcut.cli.evaluate import score_run

    names = EVALUATED if run.roles else ("clean", "cost")  # the rest compare it with its teacher
    for name in names if first_process() else ():
        try:
            score_run(run.folder(session.runs), session.runs, session, [name], {}, options.use_hardware(device, 0))
        except UserError as error:
            session.say(f"not measured: {name}: {error}")


def say_next(run: Run, session: Session, recipe: Path) -> None:
    folder = run.folder(session.runs)
    other = next(name for name in ("kd", "contrast+tc") if name != run.method)
    session.say(f"next: asd report {shlex.quote(str(folder.parent))}   what it relies on, as a page")
    session.say(f"      asd export {shlex.quote(str(folder))} --to onnx   the student for deployment")
    session.say(
        f"      {_again(recipe, session.runs, session.root)} --method {other}   another student to compare with"
    )


def _again(recipe: Path, runs: Path, root: Path | None) -> str:
    """The command for another student of the same teacher."""
    words = ["asd", "distill", str(recipe), *(["--runs", str(runs)] if runs != Path("runs") else [])]
    return shlex.join(words + (["--data-root", str(root)] if root is not None else []))
