"""Options that several commands share, shell completion, and how results are printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from glob import glob
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from pydantic import ValidationError
from typer import Option

from antishortcut.config.recipe import Execution, shipped_recipes
from antishortcut.errors import UserError, printable, suggest
from antishortcut.evaluation import EVALUATIONS, FOLDER, check_folder_name
from antishortcut.experiments.suites import SUITES
from antishortcut.fileio import expanded, near_folder
from antishortcut.run_dir import RunDir

if TYPE_CHECKING:
    from antishortcut.training.pipeline import Session

MEASURED = {"NAME=PATH" if name == FOLDER else name: evaluation.help for name, evaluation in EVALUATIONS.items()}


# --- Shell completion: names from the registries, which are imported on a tab ---


def methods(incomplete: str) -> list[str]:
    from antishortcut.methods import METHODS

    return starting(METHODS, incomplete)


def models(incomplete: str) -> list[str]:
    if incomplete.startswith("timm:"):
        import timm

        return starting((f"timm:{name}" for name in timm.list_models()), incomplete)
    from antishortcut.models.registry import DEEPLAB, FAMILIES, IMAGENET

    return starting((*FAMILIES, *DEEPLAB, *IMAGENET, "timm:", "torchvision:", "import:"), incomplete)


def recipes(incomplete: str) -> list[str]:
    files = sorted(glob(f"{incomplete}*.toml")) + sorted(glob(f"{incomplete}*/"))
    return starting(shipped_recipes(), incomplete) + files


def datasets(incomplete: str) -> list[str]:
    from antishortcut.data.datasets import DATASETS, WITH_PATH

    return starting([f"{name}:" if name in WITH_PATH else name for name in DATASETS], incomplete)


def data(incomplete: str) -> list[str]:
    return list(dict.fromkeys([*datasets(incomplete), *recipes(incomplete)]))


def suites(incomplete: str) -> list[str]:
    return starting(SUITES, incomplete)


def last_of(known: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """For comma-separated names: complete the last one."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in starting(known(), last) if name not in before.split(",")]

    return complete


def starting(known: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in known if name.startswith(incomplete)]


# --- Options ---

RECIPE = "A TOML file, or the name of a shipped recipe (asd list recipes)."
RecipeArg = Annotated[str, typer.Argument(help=RECIPE, autocompletion=recipes)]
SetOption = Annotated[list[str] | None, Option("--set", help="Override a setting: key=value, may be repeated.")]
RunsOption = Annotated[Path, Option(help="Folder of the runs.")]
RootOption = Annotated[Path | None, Option(help="Folder of the data sets [default: $ANTISHORTCUT_DATA or ./data].")]
AtOption = Annotated[list[str] | None, Option(help="Images of an evaluation: NAME=FOLDER, may be repeated.")]
AlsoOption = Annotated[list[str] | None, Option(help="Score it on a folder too: NAME=PATH, may be repeated.")]
DownloadOption = Annotated[bool, Option("--download", help="Download the data set if torchvision can.")]
JsonOption = Annotated[bool, Option("--json", help="Print one JSON document.")]
SeedOption = Annotated[int, Option(min=0, max=2**31 - 1, help="Random seed.")]
ModelOption = Annotated[str | None, Option(help="asd list models, timm:NAME, import:….", autocompletion=models)]
DatasetOption = Annotated[str | None, Option(help="asd list datasets, or folder:PATH.", autocompletion=datasets)]
TestSetOption = Annotated[str | None, Option(help="Which test set [default: the first].")]
DeviceOption = Annotated[str, Option(help="auto, cpu, cuda or mps.")]
PrecisionOption = Annotated[str, Option(help="Of the student: 32-true, bf16-mixed, 16-mixed; auto: by device.")]
ThreadsOption = Annotated[int, Option(help="CPU threads of each process, 0 for torch's default.")]

CACHE = "Cache the teachers' outputs on disk [default: in suites, if there is room]."

# execution flag → its type and default; see `with_execution`
EXECUTION: dict[str, tuple[Any, Any]] = {
    "device": (DeviceOption, "auto"),
    "devices": (Annotated[int, Option(help="How many devices share each batch.")], 1),
    "nodes": (Annotated[int, Option(help="Machines with that many devices each, under torchrun or srun.")], 1),
    "precision": (PrecisionOption, "auto"),
    "threads": (ThreadsOption, 0),
    "workers": (Annotated[str, Option(help="Processes that decode image files; auto: one per core.")], "auto"),
    "save_every": (Annotated[float, Option(help="Seconds between checkpoints to resume from.")], 60.0),
    "micro_batches": (
        Annotated[str | None, Option(help="Micro-batches per accumulation step; auto fits memory.")],
        None,
    ),
    "log": (Annotated[str, Option(help="Where metrics are logged too: tensorboard, wandb, or both.")], "tensorboard"),
    "cache_teachers": (Annotated[bool | None, Option("--cache-teachers/--no-cache-teachers", help=CACHE)], None),
    "teacher_precision": (Annotated[str, Option(help="float32, bfloat16 or float16; auto: by device.")], "auto"),
    "teacher_compile": (Annotated[str, Option(help="on, off; auto: in long runs, if it is faster.")], "auto"),
    "compile": (Annotated[bool, Option("--compile", help="Compile the student (torch.compile).")], False),
    "force": (Annotated[bool, Option("--force", help="Resume although the code of a network changed.")], False),
}
STUDENT_ONLY = ("cache_teachers", "teacher_precision", "teacher_compile", "compile")
Flags = dict[str, Any]


def with_execution(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameter `execution: Flags` by the flags of EXECUTION, except some."""
    flags = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in EXECUTION.items()
        if name not in without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapped(**words: Any) -> None:
            command(execution={flag.name: words.pop(flag.name) for flag in flags}, **words)

        own = [p for p in signature(command, eval_str=True).parameters.values() if p.name != "execution"]
        parameters = [*(p.replace(kind=Parameter.KEYWORD_ONLY) for p in own), *flags]
        wrapped.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return decorate


def execution_of(**flags: Any) -> Execution:
    """Execution settings from the flags; None means the default."""

    settings = {{"device": "accelerator"}.get(name, name): value for name, value in flags.items() if value is not None}
    if "log" in settings:
        settings["log"] = split_names(settings["log"])
    try:
        return Execution.model_validate(settings)
    except ValidationError as error:
        problem = error.errors()[0]
        flag = {"accelerator": "device"}.get(str(problem["loc"][0]), str(problem["loc"][0]).replace("_", "-"))
        raise UserError(f"--{flag}: {problem['msg'].removeprefix('Value error, ')}") from None


def open_session(runs: Path, data_root: Path | None, download: bool, **flags: Any) -> Session:
    from antishortcut.training.pipeline import Session

    return Session(runs, data_root, download, execution_of(**flags))


def use_hardware(device: str, threads: int) -> str:
    """Set the threads of this process; returns a device that exists here."""
    import torch

    if execution_of(threads=threads).threads:
        torch.set_num_threads(threads)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda", "mps") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"--device {device}: not here; use cpu")
    return device


def find_run(path: Path, runs: Path = Path("runs")) -> RunDir:
    """A run folder, or a teacher by its hash."""
    teacher = runs / "teachers" / path
    return RunDir(teacher if teacher.is_dir() and not path.is_dir() else path)


def split_names(text: str) -> list[str]:
    """Comma-separated names, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def image_folders(texts: Sequence[str]) -> dict[str, Path]:
    """NAME=FOLDER → the folder of an evaluation's images."""
    folders = {}
    for text in texts:
        name, mark, folder = text.partition("=")
        if not mark or not folder or name not in MEASURED:
            raise UserError(f"--at {text}: write NAME=FOLDER with a NAME of --on{suggest(name, MEASURED)}")
        folders[name] = expanded(folder)
        if not folders[name].is_dir():
            raise UserError(f"--at {name}={folder}: no such folder")
    return folders


def class_folders(texts: Sequence[str], flag: str) -> dict[str, Path]:
    """NAME=PATH → a folder of class folders, by a name of the user's."""
    named: dict[str, Path] = {}
    for text in texts:
        name, mark, path = text.partition("=")
        if not mark or not path:
            raise UserError(f"{flag} {text}: write NAME=PATH, such as sketch=photos/sketch")
        check_folder_name(name)
        if name in named:
            raise UserError(f"{flag} {text}: {name} is {named[name]} already; give this folder another name")
        named[name] = expanded(path)
        if not named[name].is_dir():
            raise UserError(f"{flag} {text}: no such folder{near_folder(path)}")
    return named


def measured(texts: Sequence[str]) -> tuple[list[str], dict[str, Path]]:
    """--on: names of evaluations, and folders as NAME=PATH; a PATH with commas has a flag to itself."""
    words: dict[str, None] = {}
    for text in texts:
        name, mark, path = text.partition("=")
        whole = mark and "," not in name and expanded(path).is_dir()
        words |= dict.fromkeys([text] if whole else split_names(text))
    names = [word for word in words if "=" not in word]
    return names, class_folders([word for word in words if "=" in word], "--on")


# --- Printing ---


def table(title: str, columns: Sequence[str] | Mapping[str, str], rows: Sequence[Any]) -> None:
    """Print rows of cells; or rows that are dictionaries, of which `columns` maps the shown keys to headings."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if isinstance(columns, Mapping):
        rows = [[row[key] for key in columns] for row in rows]
        columns = list(columns.values())
    shown = Table(title=Text(printable(title)), title_justify="left")
    for number, column in enumerate(columns):
        numeric = any(isinstance(row[number], int | float) for row in rows)
        shown.add_column(Text(printable(column)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(printable(_cell(value))) for value in row))
    Console().print(shown)


def print_rows(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """A table with a column for each key, or the same as JSON."""
    if as_json:
        print_json(rows)
    else:
        table(title, {key: key for key in rows[0]}, rows)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_json(value: Any) -> None:
    """As JSON in UTF-8; characters that would steer a terminal are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    print(re.sub(r"[^\n\x20-\x7e]", lambda m: m[0] if m[0].isprintable() else json.dumps(m[0])[1:-1], text))


def tell(text: object, file: TextIO | None = None) -> None:
    """Print a line that may hold names of files and runs; control characters are escaped."""
    print(printable(str(text)), file=file)
