"""Options that several commands share, shell completion, and how results are printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from glob import glob
from inspect import Parameter, Signature, signature
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, TextIO

import typer
from typer import Option

from antishortcut.api.arguments import MEASURED as MEASURED
from antishortcut.api.arguments import class_folders as class_folders
from antishortcut.api.arguments import execution_of as execution_of
from antishortcut.api.arguments import find_run as find_run
from antishortcut.api.arguments import image_folders as image_folders
from antishortcut.api.arguments import measured as measured
from antishortcut.api.arguments import open_session as open_session
from antishortcut.api.arguments import split_names as split_names
from antishortcut.api.arguments import use_hardware as use_hardware
from antishortcut.config.recipe import shipped_recipes
from antishortcut.errors import printable
from antishortcut.experiments.suites import SUITES

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

FORCE = "Go on although the code of a network changed, or T_early is better than T_final."
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
    "force": (Annotated[bool, Option("--force", help=FORCE)], False),
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


# --- Printing ---


BAR, LEAST = 8, 3  # letters of a bar beside a share, and the fewest that are worth it


def bar(share: float, length: int) -> str:
    """A share as a bar of at most so many letters, in eighths."""
    eighths = round(8 * length * share)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def table(title: str, columns: Sequence[str] | Mapping[str, str], rows: Sequence[Any], *, bars: bool = False) -> None:
    """Print rows of cells; or rows that are dictionaries, of which `columns` maps the shown keys to headings.

    bars: beside numbers from 0 to 1, where the terminal has room and letters for them.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if isinstance(columns, Mapping):
        rows = [[row[key] for key in columns] for row in rows]
        columns = list(columns.values())
    screen = Console()
    cells = [[printable(cell(value)) for value in row] for row in rows]
    shares = [[value if type(value) is float and 0 <= value <= 1 else None for value in row] for row in rows]
    barred = [bars and any(share is not None for share in column) for column in zip(*shares, strict=True)]
    if any(barred) and screen.encoding.startswith("utf"):
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for length in range(BAR, LEAST - 1, -1):
            wide = [width + (length + 1) * has_bar for width, has_bar in zip(widths, barred, strict=True)]
            if sum(max(len(head), each) + 3 for head, each in zip(columns, wide, strict=True)) < screen.width:
                for texts, row in zip(cells, shares, strict=True):
                    for at in (at for at, has_bar in enumerate(barred) if has_bar):
                        texts[at] += f" {bar(row[at] or 0.0, length)}"
                break
    screen.print(Text(printable(title), style="italic"))  # above a Table, which would fold it to its own width
    shown = Table()
    for number, column in enumerate(columns):
        numeric = any(isinstance(row[number], int | float) for row in rows) and not barred[number]
        shown.add_column(Text(printable(column)), justify="right" if numeric else "left", overflow="fold")
    for texts in cells:
        shown.add_row(*map(Text, texts))
    screen.print(shown)


def print_rows(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """A table with a column for each key, or the same as JSON."""
    if as_json:
        print_json(rows)
    else:
        table(title, {key: key for key in rows[0]}, rows)


def cell(value: Any) -> str:
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


def tell_prose(lines: Iterable[str], file: TextIO | None = None) -> None:
    """Print sentences, folded at the width of the terminal; 80 elsewhere."""
    from rich.console import Console

    width = Console().width
    for line in lines:
        whole = line.replace(" %", "\u00a0%")  # a number and its sign stay in one line
        tell(fill(whole, width, break_long_words=False, break_on_hyphens=False).replace("\u00a0%", " %"), file)
