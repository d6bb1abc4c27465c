"""Whose runs are the paper's, and whether they were made as the paper's were."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from antishortcut.config.recipe import Recipe, Run, Value, distill_run, rewind_run, teach_run
from antishortcut.experiments.paper import MARK, PAIRS, TABLES, desk, desk_recipe
from antishortcut.report.collect import Found, Student

SIGNS = "compare signs against KD only"
DESK = f"desk scale, not the paper's size: {SIGNS}"
FREE = {"accumulate"}  # of the optimiser: in how many parts a batch is computed has no effect
PRINTED_AS = {"afdcd": "af-dcd", "ufd": "ufd-kd"}
# settings of the paper's methods where nothing else is said, for reading runs without torch; a test compares
_KD: dict[str, Value] = {"kd": 1.0, "kd_temperature": 4.0, "task_weight": 1.0}  # beside a method that is added to KD
DEFAULTS: dict[str, dict[str, Value]] = {
    "ce": {"task_weight": 1.0},
    "kd": {"weight": 1.0, "temperature": 4.0, "task_weight": 1.0},
    "fitnets+kd": {"weight": 100.0, "hint": 2, "relu": True, **_KD},
    "at+kd": {"weight": 1000.0, **_KD},
    "dkd": {"alpha": 1.0, "beta": 8.0, "temperature": 4.0, "warmup": 20.0, "task_weight": 1.0},
    "crd+kd": {
        "weight": 0.8, "negatives": 16384, "temperature": 0.07, "momentum": 0.5, "width": 128, "memory": "bank",
        **_KD,
    },
    "ckptkd": {"weight": 0.5, "temperature": 5.0, "task_weight": 0.5},
    "asd": {
        "tc": 0.8, "ss": 1.0, "temperature": 0.07, "margin": 0.1, "directions": 4, "queue": 4096, "warmup": 20.0,
        "temporal": True, "subspace": "batch", "select": "displaced", "momentum": 0.99, "refresh": 50, **_KD,
    },
    "afdcd": {
        "kd": 0.5, "fd": 1e-06, "ctr": 0.04, "kd_temperature": 1.0, "mask_ratio": 0.75, "groups": 16, "patch": 4,
        "pool": 4, "temperature": 0.07, "stage": -1, "task_weight": 1.0,
    },
    "ufd": {
        "kd": 0.5, "kd_temperature": 1.0, "spatial_dc": 0.004, "spatial_ac": 0.0012, "channel_dc": 0.001,
        "channel_ac": 0.002, "published_channel": False, "stage": -1, "task_weight": 1.0,
    },
}  # fmt: skip


class Made(NamedTuple):
    """How a row of the paper's is made."""

    recipe: Recipe
    method: str
    options: dict[str, Value]
    early: str


def pair_of(run: Run) -> str | None:
    """The pair that a run belongs to by its suite and its data, at either scale; P2 on other data is nobody's."""
    name = run.suite.removesuffix(MARK)
    if name not in PAIRS:
        return None
    return name if _recipe(name).data.name == run.data.name else None


def at_desk(run: Run) -> bool:
    return run.suite.endswith(MARK)


def row_of(run: Run) -> str:
    """The paper's row: a run that was not named has its method's name, which is not always the printed one."""
    return PRINTED_AS.get(run.name, run.name) if run.name == run.method else run.name


def title_of(run: Run, teacher: Run | None) -> str:
    """P1: ResNet-34 → ResNet-18, CIFAR-100; other networks than the paper's by the names they have here."""
    pair, recipe = PAIRS[run.suite.removesuffix(MARK)], _recipe(run.suite)
    plain = {} if at_desk(run) else {recipe.teacher.name: pair.teacher, recipe.student.name: pair.student}
    large = teacher.model.name if teacher else recipe.teacher.name
    small = run.model.name
    return f"{run.suite}: {plain.get(large, large)} → {plain.get(small, small)}, {pair.data}"


def unlike(run: Run, teacher: Run | None) -> str:
    """In what a run or its teacher is not as the paper's row of that name, in words; empty where all is.

    At desk scale: not as that row cut down. `teacher` is None where its folder is not here.
    """
    built = _rows(run.suite).get(row_of(run)) or _freely(run)
    school = teach_run(built.recipe, run.fingerprint)
    reference = distill_run(
        built.recipe, run.fingerprint, method=built.method, options=built.options, seed=run.seed, roles={},
        teacher=school.hash, early=built.early, suite=run.suite, name=run.name,
    )  # fmt: skip
    own, known = _course(run), _course(reference)
    own |= {f"method.{key}": value for key, value in run.options.items()}
    known |= {f"method.{key}": built.options.get(key) for key in run.options}
    changed = [_instead(key, own[key], known[key]) for key in own if own[key] != known[key]]
    changed += _other_early(run, built, school)
    if run.teacher is not None and run.roles and run.teacher != school.hash:
        changed += _differing(teacher, school) if teacher else ["another teacher, whose folder is not here"]
    return ", ".join(changed)


def unlike_teacher(run: Run, teacher: Run) -> str:
    """The same of the teacher alone; for any student of the suite."""
    recipe = _recipe(run.suite)
    return ", ".join(_differing(teacher, teach_run(recipe, run.fingerprint)))


def row_labels(found: Found) -> dict[str, str]:
    """Method of a pair → in what its runs are not the paper's, as a label; those made as the paper's have none."""
    rest = {method: _others(found, group) for method, group in found.groups.items()}
    return {method: "; ".join(each) for method, each in rest.items() if each}


def labels(found: Found) -> dict[str, list[str]]:
    """Suite of a pair → what must be said before its numbers are read; a suite made as the paper's has nothing."""
    suites: dict[str, dict[str, list[str]]] = {}  # suite → what is other → rows
    for group in found.groups.values():
        for other in _others(found, group):
            suites.setdefault(group[0].run.suite, {}).setdefault(other, []).append(group[0].run.name)
    return {
        suite: [other if other == DESK else f"{', '.join(names)}: {other}" for other, names in rest.items()]
        for suite, rest in suites.items()
    }


def _others(found: Found, group: list[Student]) -> list[str]:
    """What is other in the runs of a row."""
    run = group[0].run
    if pair_of(run) is None:
        return []
    each = dict.fromkeys(unlike(s.run, found.school(s.run)) for s in group)
    size = "the desk suite's" if at_desk(run) else "the paper's"
    return [DESK] * at_desk(run) + [f"not made as {size} ({other}): {SIGNS}" for other in each if other]


def _instead(key: str, ours: Any, theirs: Any) -> str:
    ours, theirs = ("none" if value is None else value for value in (ours, theirs))
    return f"{key} {ours} instead of {theirs}"


def _course(run: Run) -> dict[str, Any]:
    """What decides a run besides its seed, its method's options and its teacher."""
    fields = {"method": run.method, "epochs": run.epochs, "iterations": run.iterations, "model": run.model.name}
    pieces = {
        "model": run.model.model_dump(exclude={"name", "weights"}),  # of weights their digest counts
        "data": run.data.model_dump(),
        "optim": run.optim.model_dump(exclude=FREE),
        "task": run.task.model_dump(),
    }
    return fields | {f"{part}.{key}": value for part, held in pieces.items() for key, value in held.items()}


def _other_early(run: Run, made: Made, school: Run) -> list[str]:
    """T_early that is learned from, or with which a student that has a teacher is compared."""
    if not run.roles:
        return []
    required, teacher = made.early, made.recipe.teacher
    if required == "rewind":
        required = f"{rewind_run(school, teacher.rewind_epochs, teacher.rewind_lr).hash}/final"
    early = run.roles.get("early", run.early)
    same = share_of(early, made.recipe.epochs) == share_of(required, made.recipe.epochs)
    return [] if same else [_instead("T_early", early, made.early)]


def _differing(teacher: Run, school: Run) -> list[str]:
    """Of the teacher, which is known by its hash otherwise."""
    ours, reference = (
        _course(each) | {"kind": each.kind, "seed": each.seed, "fingerprint": each.fingerprint}
        for each in (teacher, school)
    )
    return [_instead(f"teacher.{key}", ours[key], reference[key]) for key in ours if ours[key] != reference[key]]


def share_of(state: str, epochs: int) -> float | str:
    """A state as per cent of training: "15%" and, of 240 epochs, "epoch:36" are the same; others are their names."""
    word, _, epoch = state.partition(":")
    try:
        return round(100 * float(epoch) / epochs if word == "epoch" else float(state.removesuffix("%")), 6)
    except (ValueError, ZeroDivisionError):
        return state


def early_of(suite: str) -> tuple[str, int]:
    """T_early of a pair's recipe and the epochs it counts by."""
    recipe = _recipe(suite)
    return recipe.teacher.early, recipe.epochs


@cache
def _rows(suite: str) -> dict[str, Made]:
    """The paper's rows of a pair at the suite's scale, by name."""
    name, result = suite.removesuffix(MARK), {}
    for job in TABLES["paper"].jobs():
        if job.suite == name and job.name not in result:
            own = desk(job) if suite.endswith(MARK) else job
            options = DEFAULTS[own.method] | own.recipe.methods.get(own.method, {}) | own.options
            result[own.name] = Made(own.recipe, own.method, options, own.early or own.recipe.teacher.early)
    return result


def _freely(run: Run) -> Made:
    """A row that the paper has not: its pair's recipe, with the batch and the method that it has here."""
    recipe = _recipe(run.suite)
    teacher = recipe.teacher.model_copy(update={"batch": recipe.optim.batch})
    optim = recipe.optim.model_copy(update={"batch": run.optim.batch})
    recipe = recipe.model_copy(update={"optim": optim, "teacher": teacher})
    return Made(recipe, run.method, run.options, run.roles.get("early", run.early))


@cache
def _recipe(suite: str) -> Recipe:
    """Of a pair, at the suite's scale."""
    recipe = PAIRS[suite.removesuffix(MARK)].recipe()
    return desk_recipe(recipe) if suite.endswith(MARK) else recipe
