"""asd distill without a recipe: what is planned for someone's data and two networks, told, written, measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.console import first_process
from antishortcut.errors import UserError

if TYPE_CHECKING:
    from antishortcut.plan import Wanted
    from antishortcut.run import Execution, Recipe, Run

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
    from antishortcut.plan import Wanted, data_name

    if data is None or teacher is None or student is None:
        named = {"--data": data, "--teacher": teacher, "--student": student}
        absent = ", ".join(name for name, value in named.items() if value is None)
        raise UserError(
            f"name a recipe (asd list recipes), or your data and two networks, like --data folder:photos "
            f"--teacher timm:resnet50 --student timm:mobilenetv3_small_100; {absent} is missing"
        )
    if early is not None and final is None and early != "rewind" and not early.endswith("%"):
        raise UserError(f"--early {early} goes with --final, the weights of a teacher that is already trained")
    return Wanted(data_name(data), teacher, student, final, early, epochs, pretrained)


def planned(wanted: Wanted, runs: Path, suite: str, root: Path | None, overrides: Iterable[str], write: bool) -> Path:
    """The recipe of such a folder of runs: the one that is there if it agrees, or a new one, told and written."""
    from antishortcut.plan import plan, written
    from antishortcut.run import recipe_from, setting

    path, given = runs / suite / "recipe.toml", dict(setting(text) for text in overrides)
    while write and not first_process() and not path.is_file():  # under torchrun all begin at once, and one plans
        time.sleep(0.2)
    if path.is_file():
        _agree(path, wanted.said | given)
        _tell(f"{path} is there and goes on: {' '.join(_summary(path))}")
        return path
    lines = plan(wanted, root, given)
    head = f"{wanted.teacher} → {wanted.student} on {wanted.data}, planned by asd distill; yours to edit.\n"
    text = written(lines, f"{head}asd distill {path} --method kd    another student of the same teacher")
    recipe = recipe_from(text, path)
    _tell(f"{wanted.data}: {_pixels(recipe)}, batches of {recipe.optim.batch}")
    for number, line in enumerate(_steps(recipe), start=1):
        _tell(f"{number}. {line}")
    if write:
        from antishortcut.folder import replacing

        with replacing(path) as file:
            file.write(text.encode())
        _tell(f"the plan with its reasons, yours to edit: {path}")
    else:
        print(text, end="")
    return path


def _agree(path: Path, said: dict[str, Any]) -> None:
    """A recipe that was planned before is not changed behind anyone's back."""
    from antishortcut.run import load_recipe

    recipe = load_recipe(str(path)).model_dump()
    for key, value in said.items():
        there: Any = recipe
        for part in key.split("."):
            there = there.get(part) if isinstance(there, dict) else None
        if there != value and str(there) != str(value):
            raise UserError(
                f"{path} says {key} = {there!r}, not {value!r}; edit it, or give these runs a --suite of their own"
            )


def _summary(path: Path) -> list[str]:
    from antishortcut.run import load_recipe

    recipe = load_recipe(str(path))
    return [f"{recipe.length},", f"images of {recipe.data.image_size or 'their own size'}"]


def _steps(recipe: Recipe) -> Iterable[str]:
    """What will be done, for a person."""
    teacher, student = recipe.teacher, recipe.student
    if teacher.final is not None:
        early = f"{teacher.early} is" if teacher.early_file else f"{teacher.early} for"
        yield f"take {teacher.name} as it was trained: {teacher.final}, and {early} its early state"
    else:
        length = f"{teacher.epochs or recipe.epochs or recipe.iterations} {'epochs' if recipe.epochs else 'iterations'}"
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
    source = model.name.partition(":")[0]
    return "from scratch" + (" (no published weights at hand)" if source in ("timm", "torchvision") else "")


def suite_of(recipe: Path, runs: Path) -> str:
    """The folder of runs that a recipe's students go to: its name, or where it lies beside those it was planned for."""
    here = recipe.resolve().parent
    return here.name if recipe.name == "recipe.toml" and here.parent == runs.resolve() else recipe.stem


@contextmanager
def unless_refused(recipe: Path) -> Iterator[None]:
    """A plan that cannot be carried out is not kept: no run is there that was made from it."""
    try:
        yield
    except UserError:
        if first_process() and [path.name for path in recipe.parent.iterdir()] == [recipe.name]:
            recipe.unlink()
            recipe.parent.rmdir()
            with suppress(OSError):  # others may have runs there
                recipe.parent.parent.rmdir()
        raise


def estimate(recipe: Recipe, runs: Path, suite: str, method: str, seed: int, execution: Execution) -> None:
    """Hours on this machine, from a few real steps; silence where they cannot be measured."""
    from antishortcut.cost import measured_cost
    from antishortcut.cost.measure import Stopwatch
    from antishortcut.job import Job

    if not first_process():
        return
    job = Job(suite=suite, name=method, seed=seed, recipe=recipe, method=method)
    cost = measured_cost([job], runs, Stopwatch(execution))
    hours = cost.all.hours - cost.all.done_hours
    if cost.rows and not cost.left_out and hours > SHOWN:
        _tell(f"about {_span(hours)} here, reading of image files aside; --epochs N makes it shorter")


def _span(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1.5 else f"{60 * hours:.0f} minutes"


def measure(run: Run, runs: Path, root: Path | None, device: str) -> None:
    """Score the student as a report wants it; what cannot be measured is said and left out."""
    from antishortcut.cli.scores import device_of, scores_of
    from antishortcut.workflow import Workshop

    folder, shop = run.folder(runs), Workshop(runs, root)
    for name in ON if first_process() else ():
        try:
            scores_of(folder, runs, shop, [name], {}, device_of(device))
        except UserError as error:
            _tell(f"not measured: {name}: {error}")


def following(run: Run, runs: Path, recipe: Path) -> None:
    folder = run.folder(runs)
    other = "kd" if run.method not in ("kd",) else "contrast+tc"
    _tell(f"next: asd report {folder.parent}            what it leans on, as a page")
    _tell(f"      asd export {folder} --to onnx   the student for others")
    _tell(f"      asd distill {recipe} --method {other}   another to compare it with")


def _tell(line: str) -> None:
    if first_process():
        print(line, file=sys.stderr)
