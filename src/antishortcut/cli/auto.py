"""asd distill without a recipe: what is planned for someone's data and two networks, told, written, measured."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.cli.options import print_json
from antishortcut.errors import UserError, plural
from antishortcut.fileio import expanded
from antishortcut.progress import first_process

if TYPE_CHECKING:
    from antishortcut.config.recipe import Execution, Recipe, Run
    from antishortcut.training.auto_recipe import Wanted
    from antishortcut.training.pipeline import Session

ON = ("clean", "hard", "mechanism", "cost")  # measured when the student is there, so that a report has what to show
SHOWN = 1 / 60  # hours from which on an estimate is worth telling


def asked(
    data: str | None,
    teacher: str | None,
    student: str | None,
    final: str | None,
    early: str | None,
    epochs: int | None,
    pretrained: bool | None,
) -> Wanted:
    """What is to be planned; a name left out is said now."""
    from antishortcut.training.auto_recipe import Wanted, data_name

    if data is None or teacher is None or student is None:
        named = {"--data": data, "--teacher": teacher, "--student": student}
        absent = [name for name, value in named.items() if value is None]
        raise UserError(
            f"name a recipe (asd list recipes), or your data and two networks, like --data folder:photos "
            f"--teacher timm:resnet50 --student timm:mobilenetv3_small_100; "
            f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing"
        )
    if early is not None and final is None and early != "rewind" and not early.endswith("%"):
        raise UserError(f"--early {early} goes with --final, the weights of a teacher that is already trained")
    return Wanted(data_name(data), teacher, student, final, early, epochs, pretrained)


def planned(
    wanted: Wanted, session: Session, suite: str, overrides: Sequence[str], method: str, write: bool, as_json: bool
) -> Path:
    """The recipe of such a folder of runs: the one that is there if it agrees, or a new one, told and written.

    What could not be trained is said before anything is written.
    """
    from antishortcut.config.recipe import recipe_from, setting
    from antishortcut.fileio import atomic_write
    from antishortcut.training.auto_recipe import plan, written
    from antishortcut.training.fabric import check_device
    from antishortcut.training.pipeline import feasible

    path, inputs = session.runs / suite / "recipe.toml", dict(setting(text) for text in overrides)
    while write and not first_process() and not path.is_file():  # under torchrun all begin at once, and one plans
        time.sleep(0.2)
    if there := path.is_file():
        _agree(path, wanted.said, overrides)
        text, result = path.read_text(encoding="utf-8"), ""
    else:
        head = f"{wanted.teacher} → {wanted.student} on {wanted.data}, planned by asd distill; yours to edit.\n"
        head += f"{_again(path, session.runs, session.root)} --method kd    another student of the same teacher"
        lines = plan(wanted, session.root, inputs)
        text, result = written(lines, head), next(f"{line.why}; " for line in lines if line.key == "data.name")
    recipe = recipe_from(text, path)
    roles = feasible(recipe, session, method)
    if write:  # a plan is shown where it will not be run, too
        check_device(session.execution)
    _tell(f"{wanted.data}: {result}{_pixels(recipe)}, batches of {recipe.optim.batch}")
    for number, line in enumerate(_steps(recipe, bool(roles)), start=1):
        _tell(f"{number}. {line}")
    if write and not there:
        with atomic_write(path) as file:
            file.write(text.encode())
    if write:
        _tell(f"the plan with its reasons, {'as it was' if there else 'yours to edit'}: {path}")
    elif as_json:
        print_json(recipe.model_dump(mode="json", exclude_unset=True))
    else:
        print(text, end="")
    return path


def _agree(path: Path, said: dict[str, Any], overrides: Sequence[str]) -> None:
    """A recipe that was planned before is not changed behind anyone's back."""
    from antishortcut.config.recipe import load_recipe, with_settings

    there = load_recipe(str(path))
    required = with_settings(there, [f"{key}={json.dumps(value)}" for key, value in said.items()] + list(overrides))
    old, new = there.model_dump(), required.model_dump()
    for key in (*said, *(text.partition("=")[0].strip() for text in overrides)):
        one, two = (_at(tree, key) for tree in (old, new))
        if one != two and not (key == "data.name" and _same(str(one), str(two))):
            raise UserError(
                f"{path} says {key} = {one!r}, not {two!r}; edit it, or give these runs a --suite of their own"
            )


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _same(one: str, two: str) -> bool:
    """Whether two names of data are of the same folder."""
    (kind, _, here), (other, _, there) = one.partition(":"), two.partition(":")
    return kind == other and expanded(here).resolve() == expanded(there).resolve()


def _steps(recipe: Recipe, taught: bool) -> Iterable[str]:
    """What will be done, for a person."""
    teacher, student = recipe.teacher, recipe.student
    if not taught:
        yield f"train {student.name} from labels alone for {recipe.length}, {_begins(student)}: no teacher is wanted"
        return
    if teacher.final is not None:
        early = f"{teacher.early} is" if teacher.early_file else f"{teacher.early} for"
        yield f"take {teacher.name} as it was trained: {teacher.final}, and {early} its early state"
    else:
        own = teacher.epochs or recipe.epochs or recipe.iterations
        length = plural(own, "epoch" if recipe.epochs else "iteration")
        way = "fine-tune" if teacher.pretrained else "train"
        yield f"{way} {teacher.name} on these classes for {length}, {_begins(teacher)}, keeping its trajectory"
        yield f"take its state at {teacher.early} as T_early, the one to push away from"
    yield f"distil {student.name} for {recipe.length}, {_begins(student)}"


def _pixels(recipe: Recipe) -> str:
    size = recipe.data.image_size
    return f"augmentation {recipe.data.augment}" + (f", images of {size} × {size}" if size else "")


def _begins(model: Any) -> str:
    if model.pretrained:
        return "from published weights"
    if model.weights:
        return f"from {model.weights}"
    hub = model.name.partition(":")[0] in ("timm", "torchvision") and "pretrained" not in model.model_fields_set
    return "from scratch" + (" (no published weights at hand)" if hub else "")


def suite_of(recipe: Path, runs: Path) -> str:
    """The folder of runs that a recipe's students go to: its name, or where it lies beside those it was planned for."""
    here = recipe.resolve().parent
    return here.name if recipe.name == "recipe.toml" and here.parent == runs.resolve() else recipe.stem


def estimate(recipe: Recipe, runs: Path, suite: str, method: str, seed: int, execution: Execution) -> None:
    """Hours on this machine, from a few real steps; silence where they cannot be measured."""
    import torch

    from antishortcut.experiments.benchmark import Stopwatch
    from antishortcut.experiments.cost import measured_cost
    from antishortcut.experiments.jobs import Job

    single = execution.devices * execution.nodes == 1 and int(os.environ.get("WORLD_SIZE", "1") or 1) == 1
    if not first_process() or not single:  # its processes would wait for each other
        return
    threads = torch.get_num_threads()
    job = Job(suite=suite, name=method, seed=seed, recipe=recipe, method=method)
    try:
        cost = measured_cost([job], runs, Stopwatch(execution))
    finally:
        torch.set_num_threads(threads)  # training has its own, or torch's
    if not cost.left_out and cost.hours > SHOWN:
        _tell(f"about {_span(cost.hours)} here, reading of image files aside; --epochs N makes it shorter")


def _span(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1.5 else plural(round(60 * hours), "minute")


def measure(run: Run, runs: Path, root: Path | None, device: str) -> None:
    """Score the student as a report wants it; what cannot be measured is said and left out."""
    from antishortcut.cli.evaluate import device_of, scores_of
    from antishortcut.training.pipeline import Session

    folder, session = run.folder(runs), Session(runs, root)
    required = ON if run.roles else ("clean", "cost")  # others compare it with its teacher
    for name in required if first_process() else ():
        try:
            scores_of(folder, runs, session, [name], {}, device_of(device))
        except UserError as error:
            _tell(f"not measured: {name}: {error}")


def following(run: Run, runs: Path, root: Path | None, recipe: Path) -> None:
    folder = run.folder(runs)
    other = next(name for name in ("kd", "contrast+tc") if name != run.method)
    _tell(f"next: asd report {shlex.quote(str(folder.parent))}   what it leans on, as a page")
    _tell(f"      asd export {shlex.quote(str(folder))} --to onnx   the student for others")
    _tell(f"      {_again(recipe, runs, root)} --method {other}   another to compare it with")


def _again(recipe: Path, runs: Path, root: Path | None) -> str:
    """The command for another student of the same teacher, which it finds only where the first one's runs lie."""
    words = ["asd", "distill", str(recipe)]
    words += ["--runs", str(runs)] if runs != Path("runs") else []
    return shlex.join(words + (["--data-root", str(root)] if root is not None else []))


def _tell(line: str) -> None:
    if first_process():
        print(line, file=sys.stderr)
