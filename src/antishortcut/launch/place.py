"""Where a suite's runs lie, how they are computed, and how far they have come. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antishortcut.errors import UserError
from antishortcut.folder import Folder
from antishortcut.run import Execution
from antishortcut.suites import Job, folder_of

Say = Callable[[str], None]
Done = dict[str, Any]  # what came of a piece of work, as plain values that travel between processes


@dataclass(frozen=True)
class Place:
    """Where runs and images lie, and how each run is computed."""

    runs: Path
    root: Path | None = None
    at: dict[str, Path] = field(default_factory=dict)
    execution: Execution = field(default_factory=Execution)
    download: bool = False


def finished(job: Job, runs: Path) -> bool:
    """Trained; scores that are missing are made by the next start."""
    return (folder_of(job, runs) / "result.json").exists()


def another(job: Job, runs: Path) -> str:
    """In what the run in a job's folder is another, as far as can be told without its images; else nothing."""
    folder = Folder(folder_of(job, runs))
    if not (folder.path / "run.json").exists():
        return ""
    try:
        there, _ = folder.read()
    except UserError as error:
        return str(error)
    recipe = job.recipe
    pairs: dict[str, tuple[Any, Any]] = {"length": (there.length, recipe.length), "method": (there.method, job.method)}
    pairs |= {"student": (there.model.name, recipe.student.name)}
    pairs |= {f"method.{key}": (there.options.get(key), value) for key, value in job.options.items()}
    for name, one, two in (("data", there.data, recipe.data), ("optim", there.optim, recipe.optim)):
        keys = [key for key in type(one).model_fields if key != "views"]  # a run holds them resolved
        pairs |= {f"{name}.{key}": (getattr(one, key), getattr(two, key)) for key in keys}
    found = [f"{name} {one} there, {two} here" for name, (one, two) in pairs.items() if one != two]
    if not found:
        return ""
    return f"{folder.path} holds another run ({'; '.join(found[:3])}); use another --runs or remove that folder"


def state(job: Job, runs: Path) -> str:
    """ "finished", "begun", "waiting", or "another" when the folder holds another run."""
    if another(job, runs):
        return "another"
    if finished(job, runs):
        return "finished"
    return "begun" if (folder_of(job, runs) / "run.json").exists() else "waiting"
