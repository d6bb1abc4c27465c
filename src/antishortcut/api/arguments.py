"""Arguments that the functions and the commands share: where runs are, how they are computed, what is measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from antishortcut.config.recipe import Execution
from antishortcut.errors import UserError, suggest
from antishortcut.evaluation import EVALUATIONS
from antishortcut.fileio import expanded
from antishortcut.run_dir import RunDir

if TYPE_CHECKING:
    from antishortcut.training.pipeline import Session

MEASURED = {name: evaluation.help for name, evaluation in EVALUATIONS.items()}
EXECUTION = ("device", *(name for name in Execution.model_fields if name != "accelerator"))


def words_of(settings: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """key=value of each: as on the command line, whose values are TOML."""
    if isinstance(settings, str):
        return [settings]
    if not isinstance(settings, Mapping):
        return list(settings)
    return [f"{key}={json.dumps(value, default=str)}" for key, value in settings.items() if value is not None]


def execution_of(**flags: Any) -> Execution:
    """Execution settings from the flags; None means the default."""

    settings = {{"device": "accelerator"}.get(name, name): value for name, value in flags.items() if value is not None}
    if "log" in settings:
        settings["log"] = split_names(settings["log"]) if isinstance(settings["log"], str) else settings["log"]
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
