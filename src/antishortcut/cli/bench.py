"""asd bench: what a training step costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from antishortcut.cli import options
from antishortcut.config.recipe import load_recipe, shipped_recipes
from antishortcut.errors import UserError
from antishortcut.experiments.cost import DataSize, architecture, size_of
from antishortcut.progress import ProgressBar

if TYPE_CHECKING:
    from antishortcut.experiments.benchmark import Pair

PAIR = "TEACHER:STUDENT on CIFAR-100, or a recipe."
METHODS = options.last_of(lambda: options.methods(""))


def bench(
    pair: Annotated[str, Option(help=PAIR, autocompletion=options.recipes)] = "wrn-40-2:wrn-16-2",
    methods: Annotated[str, Option(help="Comma-separated, or all.", autocompletion=METHODS)] = "kd,asd,contrast",
    batch: Annotated[int | None, Option(min=2, help="Batch size [default: 64, or the recipe's].")] = None,
    rounds: Annotated[int, Option(min=1, help="Measured steps of each method.")] = 20,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 0,
    compile: Annotated[str, Option("--teacher-compile", help="on, off; auto: whichever is faster.")] = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Milliseconds of a training step by method, interleaved, with ratios and where the time goes.

    Without --device on the CPU, and on a GPU if there is one.
    """
    from antishortcut.experiments.benchmark import PHASES, WARM
    from antishortcut.experiments.benchmark import bench as measure
    from antishortcut.methods import METHODS as ALL

    names = options.split_names(methods)
    names = list(ALL) if names == ["all"] else names
    if not names:
        raise UserError("--methods names none; asd list methods shows them")
    if compile not in ("on", "off", "auto"):
        raise UserError(f"--teacher-compile {compile}: on, off or auto")
    best = options.use_hardware(device, threads)
    devices = list(dict.fromkeys(["cpu", best])) if device == "auto" else [best]
    models, size, usual = _networks(pair)
    settings: dict[str, Any] = {"batch": batch or usual, "rounds": rounds, "compile": compile, "images": size}
    results = {}
    for name in devices:
        with ProgressBar(f"bench {pair} on {name}", rounds + WARM) as bar:
            results[name] = measure(models, names, device=name, tell=lambda n: bar.update(n, {}), **settings)
    if as_json:
        first, *rest = results
        options.print_json(results[first] | {name: results[name] for name in rest})
        return
    for name, result in results.items():
        split, passes = result["split"], result["teacher_passes"]
        rows = [(method, passes[method], ms, *split[method].values()) for method, ms in result["ms"].items()]
        title = f"ms a step, {pair}, batch {result['batch']}, {name}, median of {rounds}"
        options.table(title, ("method", "teacher passes", "step", *PHASES), rows)
        options.table("ratios, round by round", ("", "ratio"), list(result["ratio"].items()))


def _networks(pair: str) -> tuple[Pair, DataSize, int]:
    """Teacher and student, the size of their data, and the usual batch size."""
    from antishortcut.experiments.benchmark import CIFAR, pair_of

    if pair.partition("@")[0] not in shipped_recipes() and not Path(pair).is_file():
        return pair_of(pair), CIFAR, 64
    recipe = load_recipe(pair)
    size = size_of(recipe.data, {})
    if size is None or size.dense:
        raise UserError(f"--pair {pair}: {recipe.data.name} is not measured here; write TEACHER:STUDENT")
    return (architecture(recipe.teacher), architecture(recipe.student)), size, recipe.optim.batch
