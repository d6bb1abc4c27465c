"""Recipes carried out: teach, rewind, distil, in the order they need each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric

from antishortcut.console import console
from antishortcut.data import open_sets
from antishortcut.folder import Folder
from antishortcut.methods import options_of, roles_of
from antishortcut.run import DataSettings, Execution, Recipe, Run, Value, distill_run, rewind_run, teach_run
from antishortcut.teachers import Trajectory
from antishortcut.train import make_fabric, train
from antishortcut.types import Sets


@dataclass
class Workshop:
    """Where runs and data lie, how they are computed, and what is open already."""

    runs: Path
    root: Path | None = None
    download: bool = False
    execution: Execution = field(default_factory=Execution)
    quiet: bool = False
    _sets: dict[str, Sets] = field(default_factory=dict)
    _fabric: dict[Execution, Fabric] = field(default_factory=dict)

    def sets(self, data: DataSettings) -> Sets:
        """The images a recipe names, opened once."""
        key = data.model_dump_json(exclude={"augment"})
        if key not in self._sets:
            self._sets[key] = open_sets(
                data.name,
                self.root,
                seed=data.seed,
                train_limit=data.train_limit,
                test_limit=data.test_limit,
                val_fraction=data.val_fraction,
                download=self.download,
                image_size=data.image_size,
                options=data.options,
            )
        return self._sets[key]

    def carry_out(self, run: Run) -> dict[str, Any]:
        """Train, go on, or return what is there. A run that was begun keeps the execution settings it began with."""
        folder = Folder(run.folder(self.runs))
        execution = self.execution
        if (folder.path / "run.json").exists():
            execution = Execution.model_validate(folder.read()[1])
        if execution not in self._fabric:
            self._fabric[execution] = make_fabric(execution)
        return train(run, self.runs, self.sets(run.data), self._fabric[execution], execution, self.quiet)

    def say(self, text: str) -> None:
        if not self.quiet:
            console().print(text, markup=False)


def teach(recipe: Recipe, shop: Workshop) -> Run:
    """Train a recipe's teacher, unless it is there."""
    run = teach_run(recipe, shop.sets(recipe.data).fingerprint)
    folder = Folder(run.folder(shop.runs))
    if folder.finished:
        shop.say(f"teacher {run.model.name}: there already, {folder.path}")
    else:
        shop.say(f"teacher {run.model.name}: {run.epochs} epochs on {run.data.name}, {folder.path}")
        shop.carry_out(run)
    return run


def rewind(teacher: Run, epochs: int, rate: float, shop: Workshop) -> Run:
    """Make an early-like state from a teacher's final one."""
    run = rewind_run(teacher, epochs, rate)
    shop.say(f"rewinding {teacher.model.name}: {epochs} epochs at a constant {rate:g}, {run.folder(shop.runs)}")
    shop.carry_out(run)
    return run


def distill(
    recipe: Recipe,
    shop: Workshop,
    *,
    method: str,
    seed: int,
    suite: str,
    name: str | None = None,
    options: Mapping[str, Value] | None = None,
) -> Run:
    """Train a student; its teacher first when the method needs one that is not there."""
    settings = options_of(method, recipe.methods.get(method, {}) | dict(options or {}))
    roles = roles_of(method, settings)
    fingerprint = shop.sets(recipe.data).fingerprint
    teacher = teach(recipe, shop) if roles else teach_run(recipe, fingerprint)
    early = recipe.teacher.early
    if early == "rewind":
        plan = rewind_run(teacher, recipe.teacher.rewind_epochs, recipe.teacher.rewind_rate)
        if "early" in roles:
            rewind(teacher, recipe.teacher.rewind_epochs, recipe.teacher.rewind_rate, shop)
        early = f"{plan.hash}/final"
    elif "early" in roles and "/" not in early:
        Trajectory(Folder(teacher.folder(shop.runs))).entry(early)  # an unknown state is said before training starts
    run = distill_run(
        recipe,
        fingerprint,
        method=method,
        options=settings,
        roles=roles,
        seed=seed,
        teacher=teacher.hash,
        early=early,
        suite=suite,
        name=name,
    )
    shop.carry_out(run)
    return run
