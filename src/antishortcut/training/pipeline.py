"""What a recipe needs, in order: train or import the teacher, make its early state, distil the student."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning_fabric import Fabric

from antishortcut.config.recipe import (
    TRIALS,
    Recipe,
    Run,
    Value,
    distill_run,
    early_state,
    rewind_run,
    teach_run,
    weak_run,
)
from antishortcut.config.schema import DataSettings, Execution, ModelSettings
from antishortcut.data import open_sets
from antishortcut.errors import UserError, printable, suggest
from antishortcut.hardware import versions
from antishortcut.methods import method_options, method_roles
from antishortcut.models import feature_shapes
from antishortcut.models.external import code_of
from antishortcut.progress import console
from antishortcut.run_dir import InUse, RunDir, find_twin
from antishortcut.tasks import build_task
from antishortcut.teachers.imported import check_files_fit, import_teacher, imported_states
from antishortcut.teachers.selection import choose_weak_state, select_state
from antishortcut.teachers.trajectory import Trajectory, build_model, find_trajectory, warn_of_changed_code
from antishortcut.training.checkpoint import is_finished
from antishortcut.training.fabric import build_fabric
from antishortcut.training.trainer import build_objective, deployed, train
from antishortcut.types import DataSplits, lacks_labels


@dataclass
class Session:
    """Where runs and data are, how runs are computed, and what is already open."""

    runs: Path
    root: Path | None = None
    download: bool = False
    execution: Execution = field(default_factory=Execution)
    quiet: bool = False
    reuse: bool = False  # in a suite: copy a finished run of the same hash from another suite's folder
    _data: dict[str, DataSplits] = field(default_factory=dict)
    _fabrics: dict[Execution, Fabric] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)

    def sets(self, data: DataSettings) -> DataSplits:
        """The images that a recipe names, opened once."""
        key = data.model_dump_json(exclude={"augment", "augmentation_cycle"})
        if key not in self._data:
            settings = data.model_dump(exclude={"name", "augment", "augmentation_cycle"})
            self._data[key] = open_sets(data.name, self.root, download=self.download, **settings)
            if note := self._data[key].note:
                self.say(note)
        return self._data[key]

    def fabric(self, execution: Execution | None = None) -> Fabric:
        execution = execution or self.execution
        if execution not in self._fabrics:
            self._fabrics[execution] = build_fabric(execution)
        return self._fabrics[execution]

    def say(self, text: str) -> None:
        if not self.quiet:
            console().print(printable(text), markup=False)

    def say_once(self, text: str) -> None:
        if text and text not in self._said:
            self._said.add(text)
            self.say(text)

    def fit(self, run: Run) -> dict[str, Any]:
        """Train a run, resume it, or return its result. A resumed run keeps the execution settings it started with.

        Several runs may need the same teacher: one process trains it, the others wait.
        """
        while True:
            try:
                return self._fit(run)
            except InUse as error:
                if not (run.keep or run.suite.endswith(TRIALS)) or self.execution.devices * self.execution.nodes > 1:
                    raise
                self.say(f"{error.path}: in use by another process; waiting")
                with RunDir(error.path).locked(wait=True):
                    pass

    def _fit(self, run: Run) -> dict[str, Any]:
        run_dir, execution = RunDir(run.folder(self.runs)), self.execution
        if run_dir.finished:
            self.say_once(f"{run_dir.path}: already finished")
        if self.reuse and not run_dir.finished:
            self._copy_twin(run, run_dir)
        if is_finished(run_dir):
            run_dir.check(run)
            warn_of_changed_code(run_dir)
            return run_dir.result()
        if (run_dir.path / "run.json").exists():
            execution = self._resumed_execution(run_dir)
        fabric = self.fabric(execution)
        if run.keep and fabric.world_size > 1:  # all ranks wait, or one would wait while the others train
            with run_dir.locked(wait=True):
                pass
            fabric.barrier()
        return train(run, self.runs, self.sets(run.data), fabric, execution, self.quiet)

    def _copy_twin(self, run: Run, run_dir: RunDir) -> None:
        """Rank 0 copies a finished run of the same hash, if there is one; the other ranks wait."""
        fabric = self.fabric()
        if fabric.is_global_zero and not (run_dir.path / "run.json").exists() and (twin := find_twin(run, self.runs)):
            run_dir.copy_of(twin, run)
        fabric.barrier()

    def _resumed_execution(self, run_dir: RunDir) -> Execution:
        """The execution settings that a run started with; only where it logs may change."""
        try:
            current = {"log": self.execution.log, "force": self.execution.force}
            execution = Execution.model_validate(run_dir.read()[1] | current)
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            path = run_dir.path / "run.json"
            raise UserError(f"{path}: damaged (its execution settings); restore it or remove its folder") from None
        here = self.execution
        if self.reuse and (execution.devices, execution.nodes) != (here.devices, here.nodes):
            before = f"--devices {execution.devices} --nodes {execution.nodes}"
            raise UserError(f"{run_dir.path} was started with {before}; use the same, or remove that folder")
        requested = here.model_dump(exclude={"threads"} if here.threads == 0 else set())  # 0 and auto leave it open
        changes = [
            f"{name} {getattr(execution, name)}, not {value}"
            for name, value in requested.items()
            if value not in (getattr(execution, name), "auto")
        ]
        if changes:
            self.say(f"{run_dir.path} resumes as it was started: {', '.join(changes)}")
        return execution


def _teach_run(recipe: Recipe, session: Session) -> Run:
    """The training of a recipe's teacher on the labelled images; images alone are for teachers that are trained."""
    data, teacher = session.sets(recipe.data.labelled), recipe.teacher
    if lacks_labels(data.train) and (teacher.final is None or teacher.early == "rewind"):
        what = "trained" if teacher.final is None else "rewound"
        advice = "name its weights: --final FILE (teacher.final), and --early FILE for methods with an early state"
        raise UserError(f"{data.name} has no labels, so a teacher cannot be {what} on it; {advice}")
    return teach_run(recipe, data.fingerprint)


def teach(recipe: Recipe, session: Session) -> Run:
    """Train or import a recipe's teacher, unless it is there."""
    run = _teach_run(recipe, session)
    run_dir = RunDir(run.folder(session.runs))
    if is_finished(run_dir):
        run_dir.check(run)  # a folder that was copied to this name teaches something else
        return run
    if run.kind == "imported":
        session.say(f"teacher {run.model.name}, already trained: {run_dir.path}")
        _import_teacher(run, recipe, session, run_dir)
    else:
        session.say(f"teacher {run.model.name}: {run.length} on {run.data.name}, {run_dir.path}")
        session.fit(run)
    return run


def _import_teacher(run: Run, recipe: Recipe, session: Session, run_dir: RunDir) -> None:
    fabric = session.fabric()
    if fabric.is_global_zero:
        with run_dir.locked(wait=True):
            if not run_dir.finished:
                before = run_dir.entries()
                try:
                    code = code_of(run.model.name)
                    run_dir.begin(run, session.execution.model_dump(mode="json"), versions(), code)
                    for line in import_teacher(recipe.teacher, run_dir, session.sets(run.data), fabric):
                        session.say(line)
                except UserError:
                    run_dir.remove_since(before)  # weights that do not fit leave nothing behind
                    raise
    fabric.barrier()


def rewind(teacher: Run, epochs: int, lr: float, session: Session) -> Run:
    """Make an early-like state from a teacher's final one."""
    run = rewind_run(teacher, epochs, lr)
    run_dir = RunDir(run.folder(session.runs))
    if is_finished(run_dir):
        run_dir.check(run)
    else:
        session.say(f"rewinding {teacher.model.name}: {run.length} at a constant rate of {lr:g}, {run_dir.path}")
        session.say("The paper found a rewound reference no better than plain KD (80.18 against 80.22 on P1).")
        session.fit(run)
    _check_early(teacher, f"{run.hash}/final", session)
    return run


def weaken(recipe: Recipe, teacher: Run, session: Session) -> Run:
    """Train a small network briefly, and choose which of its states takes T_early's place beside this teacher."""
    run = weak_run(recipe, teacher.fingerprint)
    run_dir = RunDir(run.folder(session.runs))
    if is_finished(run_dir):
        run_dir.check(run)
    else:
        session.say(f"weak reference {run.model.name} in T_early's place: {run.length}, {run_dir.path}")
        session.fit(run)
    trajectories = Trajectory(run_dir), Trajectory(RunDir(teacher.folder(session.runs)))
    choose_weak_state(*trajectories, session.sets(recipe.data.labelled), session.fabric().device, session.say)
    return run


def make_early(recipe: Recipe, teacher: Run, session: Session, early: str | None = None) -> str:
    """The state that stands for "early", made if it is to be made. early: in place of the recipe's."""
    settings = recipe.teacher
    match early or settings.early:
        case "rewind":
            rewind(teacher, settings.rewind_epochs, settings.rewind_lr, session)
        case "weak":
            weaken(recipe, teacher, session)
    return early_state(recipe, teacher, early)


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
    """Train a student, and first its teacher if the method needs one that is not there.

    early: a state to learn from in place of the recipe's early state, with which the student is still compared; or
    "weak" or "rewind", which make one.
    via: networks between teacher and student, each taught by the one before (TAKD). generations: above 1, the student's
    own architecture stands there that many times less one (Born-Again). All are ordinary runs, shared by seeds.
    """
    for section in recipe.methods:
        method_options(section, recipe.methods[section])  # an unknown method in the recipe is an error
    settings = method_options(method, recipe.methods.get(method, {}) | dict(options or {}))
    roles = method_roles(method, settings, weak=(early or recipe.teacher.early) == "weak")
    between = [*via, *[recipe.student.name] * (generations - 1)]
    if between and not roles:
        raise UserError(f"method {method!r} has no teacher, so there is nothing between teacher and student")
    name = name or _student_name(method, via, generations, recipe.augmentation_cycle)
    students = [*_assistants(recipe, between), (recipe.student, {"seed": seed, "suite": suite, "name": name})]
    run = teacher = _teach_run(recipe, session)
    for student, where in students:
        run = _student_run(recipe, session, method, settings, run, student, early, **where)
    run_dir = RunDir(run.folder(session.runs))
    if (run_dir.path / "run.json").exists() and "chosen" not in roles:  # which is known once the teacher is trained
        run_dir.check(run)
    if not run_dir.finished:
        run_dir.check_place()
    makes_weak = "early" in roles and (early or recipe.teacher.early) == "weak"
    weak = weak_run(recipe, teacher.fingerprint) if makes_weak else teacher
    if not all(RunDir(needed.folder(session.runs)).finished for needed in (teacher, weak)):
        _check(recipe, session, method, settings, between, early or recipe.teacher.early_state)
    run = teach(recipe, session) if roles else teacher
    for number, (student, where) in enumerate(students, start=1):
        if number <= len(between):
            session.say(f"assistant {student.name}: {number} of {len(between)} between teacher and student")
        states = _resolve_states(recipe, session, roles, run, early)
        if "early" in states and not run_dir.finished:
            _check_early(run, states["early"], session)
        run = _student_run(recipe, session, method, settings, run, student, early, states, **where)
        session.fit(run)
    return run


def check_name(recipe: Recipe, session: Session, *, method: str, seed: int, suite: str, name: str) -> None:
    """Raise if a run cannot have this name. Settings of its method, of which some are not chosen yet, may be any."""
    run_dir = RunDir(session.runs / suite / f"{name}-s{seed}")
    run_dir.check_place()
    if (run_dir.path / "run.json").exists():
        there, _ = run_dir.read()
        settings = method_options(method, {there.method: there.options}.get(method, {}))
        where: dict[str, Any] = {"seed": seed, "suite": suite, "name": name}
        teacher = _teach_run(recipe, session)
        run_dir.check(_student_run(recipe, session, method, settings, teacher, recipe.student, **where))


def _student_run(
    recipe: Recipe,
    session: Session,
    method: str,
    settings: Mapping[str, Value],
    teacher: Run,
    student: ModelSettings,
    early: str | None = None,
    states: Mapping[str, str] = MappingProxyType({}),
    **where: Any,
) -> Run:
    """The training of a student of this teacher. states: what roles stand for, as far as that is chosen in training."""
    learned = dict(states) | {"early": early_state(recipe, teacher, early)}
    roles = method_roles(method, settings, weak=(early or recipe.teacher.early) == "weak")
    return distill_run(
        recipe.model_copy(update={"student": student}),
        session.sets(recipe.data).fingerprint,
        method=method,
        options=settings,
        roles={role: learned.get(role, role) for role in roles},
        teacher=teacher.hash,
        early=early_state(recipe, teacher),
        **where,
    )


def _student_name(method: str, via: Sequence[str], generations: int, cycle: int | None) -> str:
    words = [method, *(f"via-{network}" for network in via)]
    words += [f"gen{generations}"] if generations > 1 else []
    words += [f"cycle{cycle}"] if cycle else []
    return "-".join(words).replace("/", "-").replace(":", "-")


def _assistants(recipe: Recipe, between: Sequence[str]) -> Iterator[tuple[ModelSettings, dict[str, Any]]]:
    """Networks between teacher and student, each the teacher of the next, and where their runs are."""
    for number, network in enumerate(between, start=1):
        where = {"seed": recipe.teacher.seed + 1000 + number, "suite": "teachers", "name": network}
        yield recipe.student.model_copy(update={"name": network}), where | {"keep": recipe.teacher.keep}


def feasible(recipe: Recipe, session: Session, method: str, download: bool = True) -> tuple[str, ...]:
    """Raise now what would keep a student from being trained. Returns the teacher roles that the method needs.

    download: whether published weights are fetched now; a plan that is only shown has no need of them.
    """
    if not download:
        student = recipe.student.model_copy(update={"pretrained": False})
        recipe = recipe.model_copy(update={"student": student})
    settings, data = method_options(method, recipe.methods.get(method, {})), session.sets(recipe.data)
    _teach_run(recipe, session)  # its weights are there
    _check(recipe, session, method, settings, [], recipe.teacher.early_state)
    roles = method_roles(method, settings, weak=recipe.teacher.early == "weak")
    if roles and recipe.teacher.final is not None:
        check_files_fit(recipe.teacher, data, download)
    return roles


def _check(
    recipe: Recipe, session: Session, method: str, settings: Mapping[str, Value], between: Sequence[str], early: str
) -> None:
    """Build networks and method once, before a teacher is trained for what cannot work."""
    data, roles = session.sets(recipe.data), method_roles(method, settings, weak=early == "weak")
    classes, size = len(data.classes), data.image_size
    names = (recipe.student.name, *between)
    student, *_ = [build_model(recipe.student.model_copy(update={"name": name}), classes, size) for name in names]
    shapes, teacher = {}, None
    if roles:
        teacher = build_model(recipe.teacher.without_weights(), classes, size)
        shapes = dict.fromkeys(roles, feature_shapes(teacher, size))
    if early == "weak" and "early" in roles:
        if lacks_labels(session.sets(recipe.data.labelled).train):
            advice = "name an early checkpoint (--early FILE) or a method without one, like kd"
            raise UserError(f"{data.name} has no labels to train a weak reference with; {advice}")
        network = build_model(weak_run(recipe, data.fingerprint).model, classes, size)
        shapes["early"] = replace(feature_shapes(network, size), weak=True)
    _, module = build_objective(recipe, method, settings, data, student, shapes)
    deployed(module, student, teacher, size)
    if recipe.teacher.final is not None:
        states = [label for state in imported_states(recipe.teacher) for label in state.labels]
        advice = 'teacher.early takes a weights file too, or "weak", a small network that is trained in its place'
    else:
        states = sorted({f"{p:g}%" if isinstance(p, int | float) else p for p in (*recipe.teacher.keep, 100)})
        advice = "add it to teacher.keep"
    for role in roles:
        state = early if role == "early" else role
        if "/" not in state and state not in (*states, "final", "chosen", "rewind", "weak"):
            raise UserError(f"the teacher has no state {state!r}; {advice}{suggest(state, states)}")


def _check_early(teacher: Run, state: str, session: Session) -> None:
    """A student is pushed away from T_early: with a given one that is better than T_final it is not trained."""
    trajectory, name = find_trajectory(session.runs, teacher.hash, state)
    final = Trajectory(RunDir(teacher.folder(session.runs))).entry("final")
    metric, early = build_task(session.sets(teacher.data)).primary_metric, trajectory.entry(name)
    if not early.get(metric, 0) > final.get(metric, 1):
        return
    text = f"T_early ({state}) has the better {metric}, {early[metric]:.3f} against {final[metric]:.3f} of T_final"
    text += ": a student would be pushed away from the better one"
    if teacher.kind == "imported":
        text += "; check teacher.mean and teacher.std first, then data.image_size, then if its files were swapped"
    if teacher.kind == "imported" and state == name and not session.execution.force:
        raise UserError(f"{text}; --force trains it all the same")
    session.say_once(f"Note: {text}")  # of a state that was made: rewound, weak


def _resolve_states(
    recipe: Recipe, session: Session, roles: Sequence[str], teacher: Run, early: str | None
) -> dict[str, str]:
    """The states that roles stand for; a state still to be made is made, one that was not saved is an error."""
    states, trajectory = dict[str, str](), RunDir(teacher.folder(session.runs))
    if "early" in roles:
        compared = make_early(recipe, teacher, session)
        states["early"] = compared if early is None else make_early(recipe, teacher, session, early)
    if "chosen" in roles:
        states["chosen"] = select_state(Trajectory(trajectory), session.sets(recipe.data), session.say)
    for role in roles:
        state = states.get(role, role)
        if "/" not in state:
            Trajectory(trajectory).entry(state)
    return states
