"""Options that several sub-commands share, and how their results are printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from glob import glob
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from antishortcut.errors import UserError, printable, suggest
from antishortcut.evaluation import EVALUATIONS
from antishortcut.fileio import expanded

# --- What a shell offers after a tab: names from the registries, imported only then ---

PREFIXES = ("timm:", "torchvision:", "import:")


def methods(incomplete: str) -> list[str]:
    from antishortcut.methods import METHODS

    return _starting(METHODS, incomplete)


def models(incomplete: str) -> list[str]:
    """Our own, and behind timm: and torchvision: theirs."""
    if incomplete.startswith("timm:"):
        import timm

        return _starting((f"timm:{name}" for name in timm.list_models()), incomplete)
    if incomplete.startswith("torchvision:"):
        import torchvision

        names = torchvision.models.list_models(module=torchvision.models)
        return _starting((f"torchvision:{name}" for name in names), incomplete)
    from antishortcut.models.registry import DEEPLAB, FAMILIES, IMAGENET

    return _starting((*FAMILIES, *DEEPLAB, *IMAGENET, *PREFIXES), incomplete)


def recipes(incomplete: str) -> list[str]:
    """Shipped ones, and TOML files."""
    from antishortcut.config.recipe import shipped_recipes

    return [*_starting(shipped_recipes(), incomplete), *sorted(glob(f"{incomplete}*.toml")), *_folders(incomplete)]


def datasets(incomplete: str) -> list[str]:
    """Names of sets, and folders behind folder: and groups:."""
    from antishortcut.data.datasets import DATASETS, WITH_PATH

    kind, colon, path = incomplete.partition(":")
    if colon and kind in WITH_PATH:
        return [f"{kind}:{folder}" for folder in _folders(path)]
    return _starting([f"{name}:" if name in WITH_PATH else name for name in DATASETS], incomplete)


def data(incomplete: str) -> list[str]:
    """Names of sets, recipes and folders."""
    return list(dict.fromkeys([*datasets(incomplete), *recipes(incomplete)]))


def suites(incomplete: str) -> list[str]:
    from antishortcut.experiments.suites import SUITES

    return _starting(SUITES, incomplete)


def listed(known: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """For options of several names with commas between: the last one is completed."""

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in _starting(known(), last) if name not in before.split(",")]

    return offer


def _starting(known: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in known if name.startswith(incomplete)]


def _folders(incomplete: str) -> list[str]:
    return sorted(glob(f"{incomplete}*/"))


if TYPE_CHECKING:
    from antishortcut.config.recipe import Execution
    from antishortcut.training.pipeline import Session


MEASURED = {name: evaluation.help for name, evaluation in EVALUATIONS.items()}

RecipeArg = Annotated[
    str,
    typer.Argument(help="A TOML file, or the name of a shipped recipe (asd list recipes).", autocompletion=recipes),
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override: key=value, may be repeated.")]
RunsOption = Annotated[Path, typer.Option(help="Where run folders lie.")]
RootOption = Annotated[Path | None, typer.Option(help="Where data sets lie [default: $ANTISHORTCUT_DATA or ./data].")]
AtOption = Annotated[list[str] | None, typer.Option(help="Where images lie: NAME=FOLDER, may be repeated.")]
DownloadOption = Annotated[bool, typer.Option("--download", help="Fetch the data set where torchvision can.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
SeedOption = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the student.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
PrecisionOption = Annotated[str, typer.Option(help="Of the student: 32-true, bf16-mixed, 16-mixed; auto: by device.")]
ThreadsOption = Annotated[int, typer.Option(help="CPU threads of each process, 0 for torch's choice.")]

# how a training is computed: flag of the command → its type and default; see `with_execution`
EXECUTION: dict[str, tuple[Any, Any]] = {
    "device": (DeviceOption, "auto"),
    "devices": (Annotated[int, typer.Option(help="How many devices share each batch.")], 1),
    "nodes": (Annotated[int, typer.Option(help="Machines with so many devices each, under torchrun or srun.")], 1),
    "precision": (PrecisionOption, "auto"),
    "threads": (ThreadsOption, 0),
    "workers": (Annotated[str, typer.Option(help="Processes that decode images on disk; auto: one a core.")], "auto"),
    "save_every": (Annotated[float, typer.Option(help="Seconds between resume states.")], 60.0),
    "micro_batches": (
        Annotated[
            str | None,
            typer.Option(
                help="Micro-batches per accumulation step; auto: as memory demands [default: 1, auto without a recipe]."
            ),
        ],
        None,
    ),
    "log": (
        Annotated[str, typer.Option(help="Where numbers go besides the folder: tensorboard, wandb, or both.")],
        "tensorboard",
    ),
    "cache_teachers": (
        Annotated[
            bool | None,
            typer.Option(
                "--cache-teachers/--no-cache-teachers",
                help="Keep teachers' outputs on disk for their next students [default: in suites, if there is room].",
            ),
        ],
        None,
    ),
    "teacher_precision": (Annotated[str, typer.Option(help="float32, bfloat16 or float16; auto: by device.")], "auto"),
    "teacher_compile": (Annotated[str, typer.Option(help="on, off; auto: in long runs, when it is faster.")], "auto"),
    "compile": (Annotated[bool, typer.Option("--compile", help="Compile the student (torch.compile).")], False),
}
TEACHING = ("cache_teachers", "teacher_precision", "teacher_compile", "compile")  # flags of students alone


Flags = dict[str, Any]


def with_execution(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with a parameter `execution: Flags` gets the flags of EXECUTION, but for some, in its place."""
    flags = {name: flag for name, flag in EXECUTION.items() if name not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapped(**words: Any) -> None:
            command(execution={name: words.pop(name) for name in flags}, **words)

        own = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in signature(command, eval_str=True).parameters.values()]
        parameters = [parameter for parameter in own if parameter.name != "execution"]
        parameters += [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in flags.items()
        ]
        wrapped.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return decorate


def execution_of(**flags: Any) -> Execution:
    """How runs are computed, from the flags; those that are None are as usual."""
    from pydantic import ValidationError

    from antishortcut.config.recipe import Execution

    settings = {{"device": "accelerator"}.get(name, name): value for name, value in flags.items() if value is not None}
    if "log" in settings:
        settings["log"] = [name.strip() for name in settings["log"].split(",") if name.strip()]
    try:
        return Execution.model_validate(settings)
    except ValidationError as error:
        problem = error.errors()[0]
        flag = {"accelerator": "device"}.get(str(problem["loc"][0]), str(problem["loc"][0]).replace("_", "-"))
        raise UserError(f"--{flag}: {problem['msg'].removeprefix('Value error, ')}") from None


def workshop(runs: Path, data_root: Path | None, download: bool, **flags: Any) -> Session:
    from antishortcut.training.pipeline import Session

    return Session(runs, data_root, download, execution_of(**flags))


def use_threads(threads: int) -> None:
    """For what runs in this very process."""
    import torch

    check_threads(threads)
    if threads:
        torch.set_num_threads(threads)


def check_threads(threads: int) -> None:
    from antishortcut.config.schema import PROCESSES

    if not 0 <= threads <= PROCESSES:
        raise UserError(f"--threads {threads}: a number from 0 to {PROCESSES}")


def places_of(texts: Sequence[str]) -> dict[str, Path]:
    """NAME=FOLDER, each a place for an evaluation's images."""
    places = {}
    for text in texts:
        name, result, folder = text.partition("=")
        if not result or not folder or name not in MEASURED:
            raise UserError(f"--at {text}: write NAME=FOLDER with a NAME of --on{suggest(name, MEASURED)}")
        places[name] = expanded(folder)
        if not places[name].is_dir():  # said now, not after hours of training
            raise UserError(f"--at {name}={folder}: no such folder")
    return places


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)), title_justify="left")
    for number, column in enumerate(columns):
        numeric = any(isinstance(row[number], int | float) for row in rows)
        table.add_column(Text(printable(column)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    print(re.sub(r"[^\n\x20-\x7e]", lambda found: _letter(found[0]), text))


def _letter(letter: str) -> str:
    """As JSON writes it: itself, or where it would steer a terminal its number."""
    return letter if letter.isprintable() else json.dumps(letter)[1:-1]


def tell(text: object, file: TextIO | None = None, flush: bool = False) -> None:
    """Print what may hold names of files, classes and runs, which are anybody's: nothing of it steers the terminal."""
    print(printable(str(text)), file=file, flush=flush)
