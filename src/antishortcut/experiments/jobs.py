"""A suite is a list of jobs; a job is the training of one student and what it is scored on. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

from pydantic import Field

from antishortcut.config.recipe import Recipe, Settings, TeacherSettings, Value, teach_run, with_settings
from antishortcut.errors import UserError, suggest


class Job(Settings):
    """One student. Its folder is runs/<suite>/<name>-s<seed>, as for a run started by hand."""

    suite: str
    name: str
    seed: int
    recipe: Recipe
    method: str
    options: dict[str, Value] = Field(default_factory=dict)  # the method's, over the recipe's
    budget: float | None = None  # what the dial may spend; None: no dial, the settings are those of the recipe
    early: str | None = None  # a state to learn from in place of the recipe's early one, or "weak"
    other: TeacherSettings | None = None  # the teacher of that state, if it is not the recipe's
    on: tuple[str, ...] = ("clean",)  # evaluations
    images: int | None = None  # at most so many per corruption and severity

    @property
    def title(self) -> str:
        return f"{self.suite}/{self.name}-s{self.seed}"

    @property
    def weak(self) -> bool:
        """Whether it learns from a weak network in T_early's place."""
        return self.other is None and (self.early or self.recipe.teacher.early) == "weak"

    @property
    def teachers(self) -> tuple[Recipe, ...]:
        """Recipes whose teachers it needs: its own, and the other one."""
        if self.other is None:
            return (self.recipe,)
        return self.recipe, self.recipe.model_copy(update={"teacher": self.other})


@dataclass(frozen=True)
class SuiteRow:
    """A row of a suite's table."""

    name: str
    method: str
    options: dict[str, Value] = field(default_factory=dict)
    early: str | None = None  # state to learn from, if not the recipe's, or "weak"
    other: str = ""  # whose state it is: "seed" for the next seed's teacher, or another architecture
    settings: tuple[str, ...] = ()  # of its recipe: key=value
    budget: float | None = None  # what the dial may spend


def make_jobs(
    suite: str,
    recipe: Recipe,
    rows: Iterable[SuiteRow],
    seeds: Sequence[int],
    on: tuple[str, ...],
    images: int | None = None,
) -> list[Job]:
    """Every row over the seeds, seed by seed, so that a suite cut short still compares."""
    own = [(row, with_settings(recipe, row.settings) if row.settings else recipe) for row in rows]
    return [
        Job(
            suite=suite, name=row.name, seed=seed, recipe=recipe, method=row.method, options=row.options,
            budget=row.budget, early=row.early, other=_other(row, recipe), on=on, images=images,
        )
        for seed in seeds
        for row, recipe in own
    ]  # fmt: skip


def _other(row: SuiteRow, recipe: Recipe) -> TeacherSettings | None:
    if not row.other:
        return None
    change = {"seed": recipe.teacher.seed % 5 + 1} if row.other == "seed" else {"name": row.other}
    return recipe.teacher.model_copy(update=change)


@dataclass(frozen=True)
class Suite:
    name: str
    what: str
    jobs: tuple[Job, ...]
    timed: bool = False  # its runs' seconds are compared, so teacher outputs are not cached

    def only(self, patterns: Sequence[str], seeds: Iterable[int]) -> Suite:
        """The jobs whose name or suite/name matches a pattern and whose seed is listed; empty means all."""
        known = sorted({job.seed for job in self.jobs})
        numbers = set(seeds) or set(known)
        for pattern in patterns:
            if not any(_fits(job, pattern) for job in self.jobs):
                names = dict.fromkeys(job.name for job in self.jobs)
                raise UserError(f"suite {self.name}: nothing fits --only {pattern}{suggest(pattern, names)}")
        for seed in numbers.difference(known):
            raise UserError(f"suite {self.name} has no seed {seed}; it has {', '.join(map(str, known))}")
        fit = [job for job in self.jobs if any(_fits(job, pattern) for pattern in patterns or ["*"])]
        jobs = [job for job in fit if job.seed in numbers]
        if not jobs:
            raise UserError(f"suite {self.name}: no run fits --only and --seeds together")
        return replace(self, jobs=tuple(jobs))

    def set(self, overrides: Sequence[str]) -> Suite:
        """The same jobs with recipe settings overridden: key=value."""
        if not overrides:
            return self
        recipes = {id(job.recipe): job.recipe for job in self.jobs}  # jobs share their recipes
        recipes = {key: with_settings(recipe, overrides) for key, recipe in recipes.items()}
        jobs = (job.model_copy(update={"recipe": recipes[id(job.recipe)]}) for job in self.jobs)
        return replace(self, jobs=tuple(jobs))


def _fits(job: Job, pattern: str) -> bool:
    return fnmatch(job.name, pattern) or fnmatch(f"{job.suite}/{job.name}", pattern)


def teacher_key(recipe: Recipe) -> str:
    """Equal for recipes that train the same teacher; which of its states is early does not matter."""
    return teach_run(recipe, "").hash
