"""Options that several sub-commands share, and how their results are printed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

if TYPE_CHECKING:
    from antishortcut.run import Execution
    from antishortcut.workflow import Workshop

from antishortcut.cli import complete
from antishortcut.errors import UserError, near, printable
from antishortcut.evaluate import EVALUATIONS
from antishortcut.files import expanded

MEASURED = {name: evaluation.help for name, evaluation in EVALUATIONS.items()}

RecipeArg = Annotated[
    str,
    typer.Argument(
        help="A TOML file, or the name of a shipped recipe (asd list recipes).", autocompletion=complete.recipes
    ),
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override: key=value, may be repeated.")]
RunsOption = Annotated[Path, typer.Option(help="Where run folders lie.")]
RootOption = Annotated[Path | None, typer.Option(help="Where data sets lie [default: $ANTISHORTCUT_DATA or ./data].")]
DownloadOption = Annotated[bool, typer.Option("--download", help="Fetch the data set where torchvision can.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
DevicesOption = Annotated[int, typer.Option(help="How many devices share each batch.")]
NodesOption = Annotated[int, typer.Option(help="Machines with so many devices each, under torchrun or srun.")]
PrecisionOption = Annotated[str, typer.Option(help="Of the student: 32-true, bf16-mixed, 16-mixed; auto: by device.")]
TeacherOption = Annotated[
    str, typer.Option("--teacher-precision", help="float32, bfloat16 or float16; auto: by device.")
]
TeacherCompileOption = Annotated[
    str, typer.Option("--teacher-compile", help="on, off; auto: in long runs, when it is faster.")
]
CompileOption = Annotated[bool, typer.Option("--compile", help="Compile the student (torch.compile).")]
ThreadsOption = Annotated[int, typer.Option(help="CPU threads of each process, 0 for torch's choice.")]
WorkersOption = Annotated[str, typer.Option(help="Processes that decode images on disk; auto: one a core.")]
SaveOption = Annotated[float, typer.Option(help="Seconds between resume states.")]
PartsOption = Annotated[
    str, typer.Option(help="Parts that each of optim.accumulate's is computed in; auto: as many as memory demands.")
]
MemoryOption = Annotated[float, typer.Option(help="GB a process may take for --parts auto; 0: what is free.")]
LogOption = Annotated[str, typer.Option(help="Where numbers go besides the folder: tensorboard, wandb, or both.")]
CacheOption = Annotated[
    bool, typer.Option("--cache-teachers", help="Keep teachers' outputs on disk, for the next students of theirs.")
]
SharedCacheOption = Annotated[
    bool | None,
    typer.Option(
        "--cache-teachers/--no-cache-teachers",
        help="Teachers' outputs on disk, for all students of theirs; unless said, if that takes little of it.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
SeedOption = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the student.")]


def workshop(runs: Path, data_root: Path | None, download: bool, *how: Any, **more: Any) -> Workshop:
    from antishortcut.workflow import Workshop

    return Workshop(runs, data_root, download, execution_of(*how, **more))


def execution_of(
    device: str,
    devices: int,
    precision: str,
    threads: int,
    workers: str,
    save_every: float,
    cache_teachers: bool | Literal["auto"] = False,
    nodes: int = 1,
    teacher_precision: str = "auto",
    teacher_compile: str = "auto",
    compile: bool = False,
    *,
    parts: str = "1",
    memory: float = 0.0,
    log: str = "tensorboard",
) -> Execution:
    """How runs are computed, from the flags."""
    from pydantic import ValidationError

    from antishortcut.run import Execution

    try:
        return Execution.model_validate(
            {
                "accelerator": device,
                "devices": devices,
                "nodes": nodes,
                "precision": precision,
                "threads": threads,
                "workers": workers,
                "save_every": save_every,
                "cache_teachers": cache_teachers,
                "teacher_precision": teacher_precision,
                "teacher_compile": teacher_compile,
                "compile": compile,
                "parts": parts,
                "memory": memory,
                "log": [name.strip() for name in log.split(",") if name.strip()],
            }
        )
    except ValidationError as error:
        problem = error.errors()[0]
        flag = {"accelerator": "device"}.get(str(problem["loc"][0]), str(problem["loc"][0]).replace("_", "-"))
        raise UserError(f"--{flag}: {problem['msg'].removeprefix('Value error, ')}") from None


def use_threads(threads: int) -> None:
    """For what runs in this very process."""
    import torch

    check_threads(threads)
    if threads:
        torch.set_num_threads(threads)


def check_threads(threads: int) -> None:
    from antishortcut.settings import PROCESSES

    if not 0 <= threads <= PROCESSES:
        raise UserError(f"--threads {threads}: a number from 0 to {PROCESSES}")


def places_of(texts: Sequence[str]) -> dict[str, Path]:
    """NAME=FOLDER, each a place for an evaluation's images."""
    places = {}
    for text in texts:
        name, found, folder = text.partition("=")
        if not found or not folder or name not in MEASURED:
            raise UserError(f"--at {text}: write NAME=FOLDER with a NAME of --on{near(name, MEASURED)}")
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
