"""The trainings of a suite: how many steps each takes, and which of them have steps that cost the same. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from antishortcut.errors import UserError
from antishortcut.folder import Folder
from antishortcut.job import Job, teacher_key
from antishortcut.launch import state
from antishortcut.run import (
    DataSettings,
    ModelSettings,
    Recipe,
    Run,
    Settings,
    TaskSettings,
    Value,
    rewind_run,
    teach_run,
)


class Size(Settings):
    """Of a training set."""

    images: int = Field(ge=1)
    classes: int = Field(ge=1)
    side: int = Field(ge=1)  # of the square images, or of the crops
    dense: bool = False  # every pixel has a class


KNOWN = {  # of embedded images the sources' defaults; tests compare
    "cues": Size(images=8_000, classes=10, side=32),
    "cues-seg": Size(images=4_000, classes=11, side=64, dense=True),
    "cifar100": Size(images=50_000, classes=100, side=32),
    "tiny-imagenet": Size(images=100_000, classes=200, side=64),
    "imagenet100": Size(images=126_689, classes=100, side=224),
    "ade20k": Size(images=20_210, classes=150, side=512, dense=True),
    "camvid": Size(images=367, classes=11, side=352, dense=True),  # the usual crop of its 480 × 360
}


class Group(Settings):
    """Everything that makes a training step cost what it costs, the machine aside."""

    network: ModelSettings  # the one that learns
    teacher: ModelSettings | None = None
    other: ModelSettings | None = None  # whose early state it learns from, when of another architecture
    method: str = "ce"
    options: dict[str, Value] = Field(default_factory=dict)
    optimizer: str = "sgd"
    batch: int
    accumulate: int = 1
    augment: str = "none"
    size: Size
    task: TaskSettings | None = None  # of dense prediction

    @property
    def key(self) -> str:
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)


@dataclass(frozen=True)
class Piece:
    """One training."""

    suite: str
    title: str
    teaches: bool  # a teacher, or a rewound one
    length: int  # in epochs, or in iterations
    iterated: bool
    group: Group | None  # None when nobody knows how many images there are
    data: str
    done: bool

    @property
    def steps(self) -> int:
        if self.iterated or self.group is None:
            return self.length if self.iterated else 0
        return self.length * steps_of(self.group.size.images, self.group.batch)


def size_of(data: DataSettings, counted: Mapping[str, Size]) -> Size | None:
    """What is left to train on after splits and limits; `counted` are sizes of folders, by name."""
    whole = KNOWN.get(data.name) or counted.get(data.name)
    if whole is None:
        return None
    drawn = max(int(data.options.get("count", whole.images)), 1)  # of embedded images
    images = drawn - (max(1, round(data.val_fraction * drawn)) if data.val_fraction else 0)
    return Size(
        images=max(min(images, data.train_limit or images), 1),
        classes=whole.classes,
        side=data.image_size or whole.side,
        dense=whole.dense,
    )


def steps_of(images: int, batch: int) -> int:
    """Steps of an epoch; a last image alone joins the batch before it, as the loader has it."""
    steps = -(-images // batch)
    last = images - (steps - 1) * batch
    return steps - 1 if steps > 1 and last == 1 else steps


def pieces(jobs: Iterable[Job], counted: Mapping[str, Size], runs: Path) -> list[Piece]:
    """Every training of a suite: students, and before them each teacher once, with the first that needs it."""
    there, seen, found = _teachers(runs), set[str](), list[Piece]()
    for job in jobs:
        for recipe in job.teachers:
            key = teacher_key(recipe)
            if key not in seen and recipe.teacher.final is None:
                seen.add(key)
                found.append(_teacher(job, recipe, counted, there))
        own = job.recipe.teacher
        key = f"{teacher_key(job.recipe)} {own.rewind_epochs} {own.rewind_rate}"
        if own.early == "rewind" and key not in seen:
            seen.add(key)
            found.append(_rewound(job, counted, there, runs))
        found.append(_student(job, counted, runs))
    return found


def _student(job: Job, counted: Mapping[str, Size], runs: Path) -> Piece:
    recipe, teacher = job.recipe, _network(job.recipe.teacher)
    other = None if job.other is None else _network(job.other)
    kind = {
        "network": _network(recipe.student),
        "teacher": teacher,
        "other": None if other == teacher else other,
        "method": job.method,
        "options": recipe.methods.get(job.method, {}) | job.options,
        "batch": recipe.optim.batch,
    }
    group, done = _group(recipe, counted, kind), state(job, runs) == "finished"
    length = recipe.iterations or recipe.epochs
    return Piece(job.suite, job.title, False, length, recipe.iterations > 0, group, recipe.data.name, done)


def _teacher(job: Job, recipe: Recipe, counted: Mapping[str, Size], there: Mapping[str, Run]) -> Piece:
    own = recipe.teacher
    group = _group(recipe, counted, {"network": _network(own), "batch": own.batch or recipe.optim.batch})
    title, length = f"teacher {own.name} s{own.seed} of {job.suite}", own.epochs or recipe.iterations or recipe.epochs
    done = _mark(recipe) in there
    return Piece(job.suite, title, True, length, recipe.iterations > 0, group, recipe.data.name, done)


def _rewound(job: Job, counted: Mapping[str, Size], there: Mapping[str, Run], runs: Path) -> Piece:
    """A teacher's steps for as long as rewinding takes."""
    own, teacher = job.recipe.teacher, there.get(_mark(job.recipe) or "")
    done = False
    if teacher is not None:
        done = Folder(rewind_run(teacher, own.rewind_epochs, own.rewind_rate).folder(runs)).finished
    base = _teacher(job, job.recipe, counted, there)
    return replace(base, title=f"{base.title}, rewound", length=own.rewind_epochs, done=done)


def _group(recipe: Recipe, counted: Mapping[str, Size], kind: Mapping[str, Any]) -> Group | None:
    size, optim = size_of(recipe.data, counted), recipe.optim
    if size is None:
        return None
    how = {"optimizer": optim.name, "accumulate": optim.accumulate, "augment": recipe.data.augment}
    return Group(size=size, task=recipe.task if size.dense else None, **how, **kind)


def _network(model: ModelSettings) -> ModelSettings:
    """Weights do not change what it costs."""
    return ModelSettings(name=model.name, stem=model.stem, embedding=model.embedding)


def _teachers(runs: Path) -> dict[str, Run]:
    """Finished teachers, by what they are but for the fingerprint of their images, which would have to be read."""
    return {_unread(run): run for run in _finished(runs)}


def _finished(runs: Path) -> Iterator[Run]:
    for path in sorted(runs.glob("teachers/*/result.json")):
        try:
            yield Folder(path.parent).read()[0]
        except UserError:  # a damaged folder counts as nothing done
            continue


def _mark(recipe: Recipe) -> str | None:
    try:
        return _unread(teach_run(recipe, ""))
    except UserError:  # weights that are not there yet
        return None


def _unread(run: Run) -> str:
    return run.model_copy(update={"fingerprint": ""}).hash
