"""asd bench: what a training step costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antishortcut.cli import options as complete
from antishortcut.cli.options import DeviceOption, JsonOption, ThreadsOption, print_json, table, use_threads
from antishortcut.errors import UserError

if TYPE_CHECKING:
    from antishortcut.experiments.benchmark import Pair
    from antishortcut.experiments.cost import Size


def bench(
    pair: Annotated[
        str, typer.Option(help="TEACHER:STUDENT on CIFAR-100, or a recipe.", autocompletion=complete.recipes)
    ] = "wrn-40-2:wrn-16-2",
    methods: Annotated[
        str,
        typer.Option(help="Comma-separated, or all.", autocompletion=complete.listed(lambda: complete.methods(""))),
    ] = "kd,asd,contrast",
    batch: Annotated[int | None, typer.Option(min=2, help="Images a step; 64, or the recipe's.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Steps of each method that are counted.")] = 20,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    compile: Annotated[
        str, typer.Option("--teacher-compile", help="on, off; auto: compile, and keep what is faster.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Milliseconds of a training step by method, interleaved, with ratios and where the time goes.

    On the CPU, and on a GPU where there is one, unless --device says which.
    """
    import torch

    from antishortcut.experiments.benchmark import PARTS, WARM
    from antishortcut.experiments.benchmark import bench as measure
    from antishortcut.methods import METHODS
    from antishortcut.progress import ProgressBar

    names = list(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    names = list(METHODS) if names == ["all"] else names
    if not names:
        raise UserError("--methods names none; asd list methods shows them")
    there = ["cpu", *["cuda"] * torch.cuda.is_available()]
    if device not in ("auto", *there):
        raise UserError(f"--device {device}: not here; use cpu")
    if compile not in ("on", "off", "auto"):
        raise UserError(f"--teacher-compile {compile}: on, off or auto")
    use_threads(threads)
    models, size, usual = _networks(pair)
    settings: dict[str, Any] = {"batch": batch or usual, "rounds": rounds, "compile": compile, "images": size}
    results = {}
    for where in there if device == "auto" else [device]:
        with ProgressBar(f"bench {pair} on {where}", rounds + WARM) as watch:
            results[where] = measure(models, names, device=where, tell=lambda n: watch.update(n, {}), **settings)
    if as_json:
        first, *rest = results
        print_json(results[first] | {where: results[where] for where in rest})
        return
    for where, result in results.items():
        split, passes = result["split"], result["teacher_passes"]
        rows = [(name, passes[name], ms, *split[name].values()) for name, ms in result["ms"].items()]
        title = f"ms a step, {pair}, batch {result['batch']}, {where}, median of {rounds}"
        table(title, ("method", "teacher passes", "step", *PARTS), rows)
        table("ratios, round by round", ("", "ratio"), list(result["ratio"].items()))


def _networks(pair: str) -> tuple[Pair, Size, int]:
    """Teacher and student, what they see, and the usual batch; of a recipe its own."""
    from antishortcut.config.recipe import ModelSettings, load_recipe, shipped_recipes
    from antishortcut.experiments.benchmark import CIFAR, pair_of
    from antishortcut.experiments.cost import size_of

    if pair.partition("@")[0] not in shipped_recipes() and not Path(pair).is_file():
        return pair_of(pair), CIFAR, 64
    recipe = load_recipe(pair)
    size = size_of(recipe.data, {})
    if size is None or size.dense:
        raise UserError(f"--pair {pair}: {recipe.data.name} is not measured here; write TEACHER:STUDENT")
    teacher, student = (  # weights do not change what a step costs
        ModelSettings(name=model.name, stem=model.stem, embedding=model.embedding)
        for model in (recipe.teacher, recipe.student)
    )
    return (teacher, student), size, recipe.optim.batch
