"""Where a suite's runs lie, how they are computed, and how far they have come. Torch only to know methods' defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from antishortcut.errors import UserError
from antishortcut.folder import Folder
from antishortcut.run import Execution, Recipe, Run, Value, rewind_run, teach_run
from antishortcut.suites import Job, folder_of

Say = Callable[[str], None]
Kind = Literal["teach", "learn"]
Done = dict[str, Any]  # what came of a piece of work, as plain values that travel between processes

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


def check_images(jobs: Iterable[Job], place: Place) -> None:
    """Images of evaluations that are not there are told before anything is trained."""
    root = place.root or Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    wanted: dict[tuple[str, Path], list[str]] = {}
    for job in jobs:
        for name in job.on:
            if name in GIVEN and name not in place.at:
                kind = job.recipe.data.name.partition(":")[0]
                wanted.setdefault((name, root / GIVEN[name].format(data=kind)), []).append(job.title)
    missing = {key: titles for key, titles in wanted.items() if not key[1].is_dir()}
    if missing:
        parts = [f"{name} (no folder {folder}; {len(titles)} runs)" for (name, folder), titles in missing.items()]
        ways = " ".join(f"--at {name}=FOLDER" for name in dict.fromkeys(name for name, _ in missing))
        made = "; asd stylize makes stylised copies" if any(name == "stylized" for name, _ in missing) else ""
        raise UserError(f"images to score on are not there: {', '.join(parts)}; add {ways}{made}")


def another(job: Job, runs: Path) -> str:
    """In what the run in a job's folder is another, as far as can be told without its images; else nothing."""
    folder = Folder(folder_of(job, runs))
    if not (folder.path / "run.json").exists():
        return ""
    try:
        there, _ = folder.read()
    except UserError as error:
        return str(error)
    found = _unlike(_plain(there, job)) or _unlike(_settings(there, job)) or _unlike(_states(there, job))
    if not found:
        return ""
    return f"{folder.path} holds another run ({'; '.join(found[:3])}); use another --runs or remove that folder"


Pairs = dict[str, tuple[Any, Any]]  # setting → there, here


def _unlike(pairs: Pairs) -> list[str]:
    return [f"{name} {one} there, {two} here" for name, (one, two) in pairs.items() if one != two]


def _plain(there: Run, job: Job) -> Pairs:
    """What the recipe says itself. Of weights, their content counts, which is not read here."""
    recipe = job.recipe
    pairs: Pairs = {"length": (there.length, recipe.length), "method": (there.method, job.method)}
    parts: dict[str, tuple[Any, Any, set[str]]] = {
        "student": (there.model, recipe.student, {"weights", "digest"}),
        "data": (there.data, recipe.data.model_copy(update={"views": recipe.views}), set()),
        "optim": (there.optim, recipe.optim, set()),
        "task": (there.task, recipe.task, set()),
    }
    for name, (one, two, aside) in parts.items():
        keys = [key for key in type(one).model_fields if key not in aside]
        pairs |= {f"{name}.{key}": (getattr(one, key), getattr(two, key)) for key in keys}
    return pairs


def _settings(there: Run, job: Job) -> Pairs:
    """The method's, with the defaults of what nobody set."""
    given: Mapping[str, Value] = job.recipe.methods.get(job.method, {}) | job.options
    if given.keys() != there.options.keys():
        from antishortcut.methods import options_of  # torch, and only where a run is to be compared with

        try:
            given = options_of(job.method, given)
        except UserError:  # said when it is carried out
            return {}
    keys = [*there.options, *(key for key in given if key not in there.options)]
    return {f"method.{key}": (there.options.get(key), given.get(key)) for key in keys}


def _states(there: Run, job: Job) -> Pairs:
    """The teacher, and its states that are learned from or compared with; a chosen one is known by its teacher."""
    recipe = job.recipe
    try:
        teacher, source = (teach_run(own, there.fingerprint) for own in (recipe, job.teachers[-1]))
    except UserError:  # weights that are not there
        return {}
    early = _early(recipe, teacher)
    learned = early if job.early is None else job.early if job.other is None else f"{source.hash}/{job.early}"
    states = {role: learned if role == "early" else role for role in there.roles if role != "chosen"}
    pairs: Pairs = {"teacher": (there.teacher, teacher.hash), "early": (there.early, early)}
    return pairs | {f"state {role}": (there.roles[role], state) for role, state in states.items()}


def _early(recipe: Recipe, teacher: Run) -> str:
    own = recipe.teacher
    rewound = own.early == "rewind"
    return f"{rewind_run(teacher, own.rewind_epochs, own.rewind_rate).hash}/final" if rewound else own.early_state


def state(job: Job, runs: Path) -> str:
    """ "finished", "begun", "waiting", or "another" when the folder holds another run."""
    if another(job, runs):
        return "another"
    if finished(job, runs):
        return "finished"
    return "begun" if (folder_of(job, runs) / "run.json").exists() else "waiting"
