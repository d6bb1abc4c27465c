"""Where a suite's runs lie, how they are computed, and how far they have come, read from their folders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antishortcut.config.recipe import Execution, Recipe, Run, rewind_run, teach_run
from antishortcut.errors import UserError
from antishortcut.experiments.suites_suites import Job, folder_of
from antishortcut.run_dir import Folder

Item = Recipe | Job  # a teacher to train, by its recipe, or a student
Result = dict[
    str, Any
]  # "run", "score", "seconds", or "error", or "stopped": plain values that travel between processes
Pairs = dict[str, tuple[Any, Any]]  # setting → there, here

# evaluations on images that nobody makes here, and the folder below the data root where they are looked for
GIVEN = {
    "stylized": "{data}-stylized",
    "cue-conflict": "cue-conflict",
    "imagenet-r": "imagenet-r",
    "imagenet-a": "imagenet-a",
}
# all but clean; a test compares
OTHERS = (*GIVEN, "corruptions", "groups", "attack", "hard", "mechanism", "scenes", "cost")


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


def scored(job: Job, runs: Path) -> bool:
    """Whether every evaluation has left a score; of clean images, whose sets have names of their own, any."""
    there = {path.stem for path in (folder_of(job, runs) / "scores").glob("*.json")}
    return all(bool(there.difference(OTHERS)) if name == "clean" else name in there for name in job.on)


def state(job: Job, runs: Path) -> str:
    """ "finished", "begun", "waiting", or "another" when the folder holds another run."""
    if another(job, runs):
        return "another"
    if finished(job, runs):
        return "finished"
    return "begun" if (folder_of(job, runs) / "run.json").exists() else "waiting"


def another(job: Job, runs: Path) -> str:
    """Why the run in a job's folder is not this job's, as far as can be told without its images; else nothing."""
    folder, recipe = Folder(folder_of(job, runs)), job.recipe
    if not (folder.path / "run.json").exists():
        return ""
    try:
        run, _ = folder.read()
    except UserError as error:
        return str(error)
    sections = {
        "student": (run.model, recipe.student),
        "data": (run.data, recipe.data.model_copy(update={"views": recipe.views})),
        "optim": (run.optim, recipe.optim),
        "task": (run.task, recipe.task),
    }
    pairs: Pairs = {"length": (run.length, recipe.length), "method": (run.method, job.method)}
    for section, (one, two) in sections.items():
        pairs |= {f"{section}.{key}": (getattr(one, key), value) for key, value in two}
    for key in ("student.weights", "student.digest"):  # the content counts, which is not read here
        pairs.pop(key)
    differences = _differences(pairs) or _differences(_options(run, job)) or _differences(_teacher(run, job))
    if not differences:
        return ""
    return f"{folder.path} holds another run ({'; '.join(differences[:3])}); use another --runs or remove that folder"


def _differences(pairs: Pairs) -> list[str]:
    return [f"{key} {one} there, {two} here" for key, (one, two) in pairs.items() if one != two]


def _options(run: Run, job: Job) -> Pairs:
    """The method's, with the defaults of what nobody set."""
    options = job.recipe.methods.get(job.method, {}) | job.options
    if options.keys() != run.options.keys():
        from antishortcut.methods import options_of  # torch, and only where a run is to be compared with

        try:
            options = options_of(job.method, options)
        except UserError:  # reported when it is carried out
            return {}
    return {f"method.{key}": (run.options.get(key), options.get(key)) for key in run.options | options}


def _teacher(run: Run, job: Job) -> Pairs:
    """Its hash, and the states that are learned from or compared with; a chosen one is known by its teacher."""
    own = job.recipe.teacher
    try:
        teacher, source = (teach_run(recipe, run.fingerprint) for recipe in (job.recipe, job.teachers[-1]))
    except UserError:  # weights that are not there
        return {}
    early = own.early_state
    if own.early == "rewind":
        early = f"{rewind_run(teacher, own.rewind_epochs, own.rewind_rate).hash}/final"
    learned = early if job.early is None else job.early if job.other is None else f"{source.hash}/{job.early}"
    states = {role: learned if role == "early" else role for role in run.roles if role != "chosen"}
    pairs: Pairs = {"teacher": (run.teacher, teacher.hash), "early": (run.early, early)}
    return pairs | {f"state {role}": (run.roles[role], name) for role, name in states.items()}


def check_images(jobs: Iterable[Job], place: Place) -> None:
    """Images of evaluations that are missing are reported before anything is trained."""
    root = place.root or Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    missing: dict[tuple[str, Path], int] = {}
    for job in jobs:
        for name in job.on:
            if name in GIVEN and name not in place.at:
                folder = root / GIVEN[name].format(data=job.recipe.data.name.partition(":")[0])
                if not folder.is_dir():
                    missing[name, folder] = missing.get((name, folder), 0) + 1
    if missing:
        lines = [f"{name} (no folder {folder}; {count} runs)" for (name, folder), count in missing.items()]
        ways = " ".join(f"--at {name}=FOLDER" for name in dict.fromkeys(name for name, _ in missing))
        hint = "; asd stylize makes stylised copies" if any(name == "stylized" for name, _ in missing) else ""
        raise UserError(f"images to score on are not there: {', '.join(lines)}; add {ways}{hint}")
