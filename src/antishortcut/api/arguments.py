"""Arguments that the functions and the commands share: where runs are, how they are computed, what is measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from antishortcut.config.recipe import Execution
from antishortcut.errors import UserError, suggest
from antishortcut.evaluation import EVALUATIONS, FOLDER, check_folder_name
from antishortcut.fileio import expanded, near_folder
from antishortcut.run_dir import RunDir

if TYPE_CHECKING:
    from antishortcut.training.pipeline import Session

MEASURED = {"NAME=PATH" if name == FOLDER else name: evaluation.help for name, evaluation in EVALUATIONS.items()}
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


def named_paths(folders: Mapping[str, str | Path] | Sequence[str]) -> list[str]:
    """NAME=PATH of each: as on the command line."""
    return [f"{name}={path}" for name, path in folders.items()] if isinstance(folders, Mapping) else list(folders)
