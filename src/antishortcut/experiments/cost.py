"""Hours of a suite on this machine: measured seconds of a training step times the steps that are left.

Evaluation and reading of image files are not counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import Field

from antishortcut.config.recipe import Recipe, Run, Value, rewind_run, teach_run, weak_run
from antishortcut.config.schema import DataSettings, ModelSettings, Settings, TaskSettings
from antishortcut.data import DATASETS
from antishortcut.data.datasets import TrainingSize, find, list_unlabelled
from antishortcut.errors import UserError
from antishortcut.experiments.jobs import Job
from antishortcut.experiments.launcher import state
from antishortcut.fileio import expanded
from antishortcut.methods import method_options, method_roles
from antishortcut.run_dir import RunDir
from antishortcut.types import is_dense


def known_sizes() -> dict[str, TrainingSize]:
    """Sizes of the data sets that have one, by name."""
    return {name: each.size for name, each in DATASETS.items() if each.size is not None}


class StepGroup(Settings):
    """Everything that decides what a training step costs, the machine aside."""

    network: ModelSettings  # the one that is trained
    teacher: ModelSettings | None = None
    other: ModelSettings | None = None  # whose early state it learns from, if of another architecture
    weak: bool = False  # whether that is a weak reference
    method: str = "ce"
    options: dict[str, Value] = Field(default_factory=dict)
    optimizer: str
    batch: int
    accumulate: int = 1
    augment: str
    size: TrainingSize
    task: TaskSettings = TaskSettings()

    def __str__(self) -> str:
        return f"{self.method}, {f'{self.teacher.name} → ' if self.teacher else ''}{self.network.name}"


class Clock(Protocol):
    """Measures on one machine."""

    machine: str

    def seconds(self, group: StepGroup) -> float: ...


class Training(NamedTuple):
    """One that is not finished yet."""

    suite: str
    title: str
    teacher: bool  # or a rewound one
    steps: int
    group: StepGroup


@dataclass
class PairCost:
    suite: str
    students: int = 0
    student_hours: float = 0.0
    teachers: int = 0
    teacher_hours: float = 0.0


@dataclass(frozen=True)
class Cost:
    """Hours on one such machine, one training after the other."""

    machine: str
    rows: tuple[PairCost, ...]
    left_out: tuple[tuple[str, str], ...]  # trainings that could not be measured, and why

    @property
    def hours(self) -> float:
        return sum(row.student_hours + row.teacher_hours for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        left_out = [{"run": title, "why": why} for title, why in self.left_out]
        pairs = [vars(row) for row in self.rows]
        return {"estimate": True, "machine": self.machine, "hours": self.hours, "pairs": pairs, "left_out": left_out}


def measured_cost(jobs: Sequence[Job], runs: Path, clock: Clock) -> Cost:
    """Measure a step of every group that is left to do, and sum up; what cannot be measured is left out."""
    todo, problems, seconds = trainings(jobs, runs), dict[str, str](), dict[str, float]()
    groups = {training.group.model_dump_json(): training.group for training in todo}
    for key, group in groups.items():
        try:
            seconds[key] = clock.seconds(group)
        except (UserError, RuntimeError, MemoryError) as error:  # torch's out of memory is a RuntimeError
            problems[key] = (str(error) or type(error).__name__).splitlines()[0][:200]
    rows, left_out = dict[str, PairCost](), list[tuple[str, str]]()
    for training in todo:
        key = training.group.model_dump_json()
        if key in problems:
            left_out.append((training.title, problems[key]))
            continue
        row, hours = rows.setdefault(training.suite, PairCost(training.suite)), training.steps * seconds[key] / 3600
        if training.teacher:
            row.teachers, row.teacher_hours = row.teachers + 1, row.teacher_hours + hours
        else:
            row.students, row.student_hours = row.students + 1, row.student_hours + hours
    return Cost(clock.machine, tuple(rows.values()), tuple(left_out))


def size_of(data: DataSettings) -> TrainingSize:
    """The training set after splits and limits; the images of a folder are counted."""
    whole = known_sizes().get(data.name)
    if whole is None:
        sets, _ = find(data.name, None, seed=data.seed, options=data.options)
        whole = TrainingSize(len(sets.train), len(sets.classes), sets.image_size, is_dense(sets.train))
    drawn = max(int(data.options.get("count", whole.images)), 1)  # of synthetic images
    images = drawn - (max(1, round(data.val_fraction * drawn)) if data.val_fraction else 0)
    images = max(min(images, data.train_limit or images), 1)
    images += 0 if data.unlabelled is None else len(list_unlabelled(expanded(data.unlabelled)))
    return whole._replace(images=images, side=data.image_size or whole.side)


def steps_of(images: int, batch: int) -> int:
    """Steps of an epoch; a single last image joins the batch before it, as in the loader."""
    steps = -(-images // batch)
    return steps - 1 if steps > 1 and (images - 1) % batch == 0 else steps


def trainings(jobs: Iterable[Job], runs: Path) -> list[Training]:
    """What is left of a suite: students, and before them each teacher once, with the first that needs it."""
    finished, listed, todo = _finished_teachers(runs), set[str](), list[Training]()
    sizes = dict[str, TrainingSize]()  # by data settings: a folder is counted once

    def add(job: Job, source: Run | Recipe, model: ModelSettings, title: str, **student: Any) -> None:
        key, optim, augment = job.recipe.data.model_dump_json(), source.optim, source.data.augment
        size = sizes[key] = sizes.get(key) or size_of(job.recipe.data)
        settings = {"optimizer": optim.name, "batch": optim.batch, "accumulate": optim.accumulate, "augment": augment}
        group = StepGroup(network=architecture(model), size=size, task=job.recipe.task, **settings, **student)
        steps = source.iterations or source.epochs * steps_of(size.images, optim.batch)
        todo.append(Training(job.suite, title, not student, steps, group))

    for job in jobs:
        for recipe in job.teachers:
            own, teacher = recipe.teacher, teach_run(recipe, "")
            title, there = f"teacher {own.name} s{own.seed} of {job.suite}", finished.get(teacher.hash)
            if teacher.kind == "teach" and there is None and teacher.hash not in listed:
                add(job, teacher, own, title)
            listed.add(teacher.hash)
            if own.early == "rewind":
                rewound = rewind_run(there or teacher, own.rewind_epochs, own.rewind_lr)
                if rewound.hash not in listed and not RunDir(rewound.folder(runs)).finished:
                    add(job, rewound, own, f"{title}, rewound")
                listed.add(rewound.hash)
        if state(job, runs) != "finished":
            recipe, network = job.recipe, architecture(job.recipe.teacher)
            other = None if job.other is None or architecture(job.other) == network else architecture(job.other)
            options = recipe.methods.get(job.method, {}) | job.options
            if job.weak:
                weak = weak_run(recipe, "")
                other = architecture(weak.model)
                uses = "early" in method_roles(job.method, method_options(job.method, options), weak=True)
                if uses and weak.hash not in listed and weak.hash not in finished:
                    add(job, weak, weak.model, f"weak reference {weak.name} s{weak.seed} of {job.suite}")
                    listed.add(weak.hash)
            own_step = {"teacher": network, "other": other, "weak": job.weak, "method": job.method, "options": options}
            add(job, recipe, recipe.student, job.title, **own_step)
    return todo


def architecture(model: ModelSettings) -> ModelSettings:
    """Weights do not change what a step costs."""
    return ModelSettings(name=model.name, stem=model.stem, embedding=model.embedding)


def _finished_teachers(runs: Path) -> dict[str, Run]:
    """By their hash without the fingerprint of the images, which would have to be read."""
    teachers = dict[str, Run]()
    for path in runs.glob("teachers/*/result.json"):
        try:
            run, _ = RunDir(path.parent).read()
        except UserError:  # damaged: not finished
            continue
        teachers[run.model_copy(update={"fingerprint": ""}).hash] = run
    return teachers
