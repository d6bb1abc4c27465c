"""What a suite is made of: jobs, each the training of one student and what it is scored on. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

from pydantic import Field

from antishortcut.config.recipe import Recipe, Settings, TeacherSettings, Value, with_settings
from antishortcut.errors import UserError, suggest


class Job(Settings):
    """One student. The folder is runs/<suite>/<name>-s<seed>, as for a run started by hand."""

    suite: str
    name: str
    seed: int
    recipe: Recipe
    method: str
    options: dict[str, Value] = Field(default_factory=dict)  # the method's, over the recipe's
    early: str | None = None  # a state to learn from in place of the recipe's early one
    other: TeacherSettings | None = None  # the teacher that state belongs to, when it is not the recipe's
    on: tuple[str, ...] = ("clean",)  # evaluations
    images: int | None = None  # at most so many of a corruption at a severity

    @property
    def title(self) -> str:
        return f"{self.suite}/{self.name}-s{self.seed}"

    @property
    def teachers(self) -> tuple[Recipe, ...]:
        """Recipes whose teachers must be there: its own, which it learns from or is compared with, and the other."""
        if self.other is None:
            return (self.recipe,)
        return self.recipe, self.recipe.model_copy(update={"teacher": self.other})


@dataclass(frozen=True)
class BaseRow:
    """A row of a suite's table: a method with its settings, and the early state it learns from if not the usual one."""

    name: str
    method: str
    options: dict[str, Value] = field(default_factory=dict)
    early: str | None = None


@dataclass(frozen=True)
class Suite:
    name: str
    what: str
    jobs: tuple[Job, ...]
    timed: bool = False  # its runs' seconds are compared, so none may read what another has paid for

    def only(self, patterns: Iterable[str], seeds: Iterable[int]) -> Suite:
        """The part whose names (or suite/names) fit one of the patterns and whose seeds are among these."""
        required, numbers, there = list(patterns), set(seeds), sorted({job.seed for job in self.jobs})
        for pattern in required:
            if not any(_fits(job, pattern) for job in self.jobs):
                names = dict.fromkeys(job.name for job in self.jobs)
                raise UserError(f"suite {self.name}: nothing fits --only {pattern}{suggest(pattern, names)}")
        for seed in numbers.difference(there):
            raise UserError(f"suite {self.name} has no seed {seed}; it has {', '.join(map(str, there))}")
        saved = tuple(
            job
            for job in self.jobs
            if (not required or any(_fits(job, p) for p in required)) and (not numbers or job.seed in numbers)
        )
        if not saved:
            raise UserError(f"suite {self.name}: no run fits --only and --seeds together")
        return replace(self, jobs=saved)

    def set(self, overrides: Sequence[str]) -> Suite:
        """The same jobs with recipe settings overridden, key=value; these come last."""
        built: dict[int, Recipe] = {}  # jobs share their recipes
        for job in self.jobs if overrides else ():
            if id(job.recipe) not in built:
                built[id(job.recipe)] = with_settings(job.recipe, overrides)
        saved = tuple(job.model_copy(update={"recipe": built.get(id(job.recipe), job.recipe)}) for job in self.jobs)
        return replace(self, jobs=saved)


def _fits(job: Job, pattern: str) -> bool:
    return fnmatch(job.name, pattern) or fnmatch(f"{job.suite}/{job.name}", pattern)


def teacher_key(recipe: Recipe) -> str:
    """Equal for recipes that train the same teacher; which of its states is early does not matter."""
    own = recipe.teacher
    aside = {"rewind_epochs", "rewind_lr", "keep", "epochs", "lr", "batch"}
    teacher = own.model_dump_json(exclude=aside if own.early_file else aside | {"early"})
    optim = recipe.optim.model_copy(update={"lr": own.lr or recipe.optim.lr, "batch": own.batch or recipe.optim.batch})
    length = own.epochs or recipe.epochs or recipe.iterations
    return f"{teacher} {recipe.data.model_dump_json()} {optim.model_dump_json()} {recipe.task.aux} {length}"


def folder_of(job: Job, runs: Path) -> Path:
    return runs / job.suite / f"{job.name}-s{job.seed}"
