"""Recipes carried out: teach, rewind, distil, in the order they need each other."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from lightning_fabric import Fabric

from antishortcut.config.recipe import (
    DataSettings,
    Execution,
    ModelSettings,
    Recipe,
    Run,
    TeacherSettings,
    Value,
    distill_run,
    rewind_run,
    teach_run,
)
from antishortcut.data import open_sets
from antishortcut.errors import UserError, printable, suggest
from antishortcut.hardware import versions
from antishortcut.methods import build_method, method_options, method_roles
from antishortcut.models import feature_shapes
from antishortcut.progress import console
from antishortcut.run_dir import InUse, RunDir, find_twin
from antishortcut.tasks import build_task, check_networks, method_sizes
from antishortcut.teachers.imported import check_files_fit, import_teacher, imported_states
from antishortcut.teachers.selection import select_state
from antishortcut.teachers.trajectory import Trajectory, build_model
from antishortcut.training.checkpoint import is_finished
from antishortcut.training.fabric import build_fabric
from antishortcut.training.mixup import check_mixup
from antishortcut.training.trainer import train
from antishortcut.types import DataSplits, Method


@dataclass
class Session:
    """Where runs and data lie, how they are computed, and what is open already."""

    runs: Path
    root: Path | None = None
    download: bool = False
    execution: Execution = field(default_factory=Execution)
    quiet: bool = False
    reuse: bool = False  # one of a suite: take a finished run of the same hash from another suite's folder
    _sets: dict[str, DataSplits] = field(default_factory=dict)
    _fabric: dict[Execution, Fabric] = field(default_factory=dict)

    def sets(self, data: DataSettings) -> DataSplits:
        """The images a recipe names, opened once."""
        key = data.model_dump_json(exclude={"augment", "augmentation_cycle"})
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

    def fit(self, run: Run) -> dict[str, Any]:
        """Train, go on, or return what is there. A run that was begun keeps the execution settings it began with.

        Several runs may want the same trajectory: one trains it, the others wait.
        """
        while True:
            try:
                return self._train(run)
            except InUse as busy:
                if not run.keep or self.execution.devices * self.execution.nodes > 1:
                    raise
                self.say(f"{busy.path}: another process is at it, which is waited for")
                with RunDir(busy.path).locked(wait=True):
                    pass

    def _train(self, run: Run) -> dict[str, Any]:
        folder = RunDir(run.folder(self.runs))
        execution = self.execution
        if self.reuse and not folder.finished:
            self._copied(run, folder)
        if is_finished(folder):
            folder.check(run)
            return folder.result()
        if (folder.path / "run.json").exists():
            execution = _as_begun(folder, execution)
            self._goes_on(folder, execution)
        fabric = self._made(execution)
        if run.keep and fabric.world_size > 1:  # all of them, or one would wait while the others train
            with folder.locked(wait=True):
                pass
            fabric.barrier()
        return train(run, self.runs, self.sets(run.data), fabric, execution, self.quiet)

    def _copied(self, run: Run, folder: RunDir) -> None:
        """From a twin, by the first process; no other goes on before that."""
        fabric = self._made(self.execution)
        if fabric.is_global_zero and not (folder.path / "run.json").exists() and (twin := find_twin(run, self.runs)):
            folder.copy_of(twin, run)
        fabric.barrier()

    def import_teacher(self, run: Run, teacher: TeacherSettings) -> None:
        """A teacher trained elsewhere becomes a teacher's folder: whole, or it is begun anew the next time."""
        fabric, folder = self._made(self.execution), RunDir(run.folder(self.runs))
        if fabric.is_global_zero:
            with folder.locked(wait=True):
                if not folder.finished:
                    self._brought(run, teacher, folder, fabric)
        fabric.barrier()

    def _brought(self, run: Run, teacher: TeacherSettings, folder: RunDir, fabric: Fabric) -> None:
        try:
            folder.begin(run, self.execution.model_dump(mode="json"), versions())
            for line in import_teacher(run, teacher, folder, self.sets(run.data), fabric):
                self.say(line)
        except UserError:
            shutil.rmtree(folder.path)  # weights that do not fit leave nothing behind
            raise

    def _goes_on(self, folder: RunDir, kept: Execution) -> None:
        here = self.execution
        if self.reuse and (kept.devices, kept.nodes) != (here.devices, here.nodes):
            raise UserError(
                f"{folder.path} was begun with --devices {kept.devices} --nodes {kept.nodes}; go on with it so, or "
                "remove that folder"
            )
        if rest := _differing(kept, here):
            self.say(f"{folder.path} goes on as it began: {rest}")

    def _made(self, execution: Execution) -> Fabric:
        if execution not in self._fabric:
            self._fabric[execution] = build_fabric(execution)
        return self._fabric[execution]

    def say(self, text: str) -> None:
        if not self.quiet:
            console().print(printable(text), markup=False)


def _differing(kept: Execution, wanted: Execution) -> str:
    """Execution settings that were asked for otherwise than the run has them."""
    requested = wanted.model_dump(exclude={"threads"} if wanted.threads == 0 else set())  # 0 and auto leave it open
    pairs = [(name, getattr(kept, name), value) for name, value in requested.items()]
    return ", ".join(f"{name} {there}, not {here}" for name, there, here in pairs if here not in (there, "auto"))


def _as_begun(folder: RunDir, wanted: Execution) -> Execution:
    """The execution that a run began with; where it is logged may change."""
    _, begun = folder.read()
    try:
        return Execution.model_validate(begun | {"log": wanted.log})
    except ValueError:  # pydantic's
        where = folder.path / "run.json"
        raise UserError(f"{where}: damaged (its execution settings); restore it or remove its folder") from None


def teach(recipe: Recipe, session: Session) -> Run:
    """Train a recipe's teacher, unless it is there."""
    run = teach_run(recipe, session.sets(recipe.data).fingerprint)
    folder = RunDir(run.folder(session.runs))
    if is_finished(folder):
        return run
    if run.kind == "given":
        session.say(f"teacher {run.model.name}, already trained: {folder.path}")
        session.import_teacher(run, recipe.teacher)
    else:
        session.say(f"teacher {run.model.name}: {run.length} on {run.data.name}, {folder.path}")
        session.fit(run)
    return run


def rewind(teacher: Run, epochs: int, rate: float, session: Session) -> Run:
    """Make an early-like state from a teacher's final one."""
    run = rewind_run(teacher, epochs, rate)
    folder = RunDir(run.folder(session.runs))
    if not is_finished(folder):
        session.say(f"rewinding {teacher.model.name}: {run.length} at a constant {rate:g}, {folder.path}")
        session.say("The paper found a rewound reference no better than plain KD (80.18 against 80.22 on P1).")
        session.fit(run)
    return run


def distill(
    recipe: Recipe,
    session: Session,
    *,
    method: str,
    seed: int,
    suite: str,
    name: str | None = None,
    options: Mapping[str, Value] | None = None,
    early: str | None = None,
    via: Sequence[str] = (),
    generations: int = 1,
) -> Run:
    """Train a student; its teacher first when the method needs one that is not there.

    `early` is a state to learn from in place of the recipe's own early state, with which the student is still compared.

    `via` names networks between teacher and student, each taught by the one before (TAKD); `generations` above 1 puts
    the student's own architecture there that many times less one (Born-Again). All are ordinary runs, shared by seeds.
    """
    for section in recipe.methods:
        method_options(section, recipe.methods[section])  # a section that nobody reads is a slip of the pen
    settings = method_options(method, recipe.methods.get(method, {}) | dict(options or {}))
    roles = method_roles(method, settings)
    between = [*via, *[recipe.student.name] * (generations - 1)]
    if between and not roles:
        raise UserError(f"method {method!r} has no teacher, so nothing can stand between them")
    if not RunDir(teach_run(recipe, session.sets(recipe.data).fingerprint).folder(session.runs)).finished:
        _check(recipe, session, method, settings, roles, between, early or recipe.teacher.early_state)
    teacher = teach(recipe, session) if roles else teach_run(recipe, session.sets(recipe.data).fingerprint)
    learn = partial(_learn, recipe, session, method, settings, roles, early)
    for place, network in enumerate(between, start=1):
        student = recipe.student.model_copy(update={"name": network})
        session.say(f"assistant {network}: {place} of {len(between)} between teacher and student")
        teacher = learn(teacher, student, recipe.teacher.seed + 1000 + place, "teachers", network, recipe.teacher.keep)
    born = [f"gen{generations}"] if generations > 1 else []
    outputs = (
        [f"cycle{recipe.augmentation_cycle}"] if recipe.augmentation_cycle else []
    )  # a protocol of its own says so in its name
    title = "-".join([method, *(f"via-{network}" for network in via), *born, *outputs])
    return learn(teacher, recipe.student, seed, suite, name or title.replace("/", "-").replace(":", "-"), ())


def feasible(recipe: Recipe, session: Session, method: str) -> tuple[str, ...]:
    """Say now what would keep a student from being trained. Returns the roles of its teacher that the method wants."""
    settings = method_options(method, recipe.methods.get(method, {}))
    roles = method_roles(method, settings)
    teach_run(recipe, session.sets(recipe.data).fingerprint)  # its weights are there
    _check(recipe, session, method, settings, roles, [], recipe.teacher.early_state)
    if roles and recipe.teacher.final is not None:
        check_files_fit(recipe.teacher, session.sets(recipe.data))
    return roles


def _check(
    recipe: Recipe,
    session: Session,
    method: str,
    settings: Mapping[str, Value],
    roles: tuple[str, ...],
    between: list[str],
    early: str,
) -> None:
    """What cannot work is said before a teacher is trained for it: networks, method, states."""
    sets = session.sets(recipe.data)
    classes, side = len(sets.classes), sets.image_size
    student, *_ = [
        build_model(recipe.student.model_copy(update={"name": n}), classes, side)
        for n in (recipe.student.name, *between)
    ]
    model = recipe.teacher.model_copy(update={"pretrained": False, "weights": None})
    shapes = dict.fromkeys(roles, feature_shapes(build_model(model, classes, side), side)) if roles else {}
    sizes = method_sizes(sets, feature_shapes(student, side), shapes)
    check_networks(sets, sizes)
    built = cast(Method, build_method(method, sizes, settings))
    check_mixup(recipe.optim, build_task(sets), built, method)
    if recipe.teacher.final is not None:
        there = [label for state in imported_states(recipe.teacher) for label in state.labels]
        options = (
            'teacher.early wants a file of weights too, or "rewind", which makes one (the paper: no better than KD)'
        )
    else:
        there = sorted({f"{p:g}%" if isinstance(p, int | float) else p for p in (*recipe.teacher.keep, 100)})
        options = "add it to teacher.keep"
    for role in roles:
        state = early if role == "early" else role
        if "/" not in state and state not in (*there, "final", "chosen", "rewind"):
            raise UserError(f"the teacher has no state {state!r}; {options}{suggest(state, there)}")


def _learn(
    recipe: Recipe,
    session: Session,
    method: str,
    settings: Mapping[str, Value],
    roles: tuple[str, ...],
    early: str | None,
    teacher: Run,
    student: ModelSettings,
    seed: int,
    suite: str,
    name: str,
    keep: tuple[float | str, ...],
) -> Run:
    """One student of one teacher."""
    states = _states(recipe, session, roles, teacher)
    learned = states | ({} if early is None else {"early": early})
    run = distill_run(
        recipe.model_copy(update={"student": student}),
        session.sets(recipe.data).fingerprint,
        method=method,
        options=settings,
        roles={role: learned.get(role, role) for role in roles},
        seed=seed,
        teacher=teacher.hash,
        early=states["early"],
        suite=suite,
        name=name,
        keep=keep,
    )
    session.fit(run)
    return run


def _states(recipe: Recipe, session: Session, roles: tuple[str, ...], teacher: Run) -> dict[str, str]:
    """Roles that stand for a state still to be made, chosen or looked up; a state that was not kept is said now."""
    settings, folder = recipe.teacher, RunDir(teacher.folder(session.runs))
    states = {"early": settings.early_state}
    if settings.early == "rewind":
        states["early"] = f"{rewind_run(teacher, settings.rewind_epochs, settings.rewind_lr).hash}/final"
        if "early" in roles:
            rewind(teacher, settings.rewind_epochs, settings.rewind_lr, session)
    if "chosen" in roles:
        states["chosen"] = select_state(Trajectory(folder), session.sets(recipe.data), session.say)
    for role in roles:
        state = states.get(role, role)
        if "/" not in state:
            Trajectory(folder).entry(state)
    return states
