"""Which runs belong to the paper's tables, and in what they differ from the paper's."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from antishortcut.config.recipe import Recipe, Run, Value, distill_run, early_state, teach_run
from antishortcut.experiments.jobs import Job
from antishortcut.experiments.paper import MARK, PAIRS, TABLES, desk, desk_recipe
from antishortcut.report.collect import BASELINE, Collected

SIGNS = "compare signs against KD only"
DESK = f"desk scale, not the paper's size: {SIGNS}"
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


def pair_of(run: Run) -> str | None:
    """The paper's pair that a run belongs to by its suite and its data, at either scale."""
    name = run.suite.removesuffix(MARK)
    return name if name in PAIRS and recipe_of(name).data.name == run.data.name else None


def at_desk(run: Run) -> bool:
    return run.suite.endswith(MARK)


def row_of(run: Run) -> str:
    """The paper's row: a run that was not named has its method's name, which is not always the printed one."""
    return PRINTED_AS.get(run.name, run.name) if run.name == run.method else run.name


def title_of(run: Run) -> str:
    """P1: ResNet-34 → ResNet-18, CIFAR-100; at desk scale by their names here."""
    pair, recipe = PAIRS[run.suite.removesuffix(MARK)], recipe_of(run.suite)
    teacher, student = (recipe.teacher.name, recipe.student.name) if at_desk(run) else (pair.teacher, pair.student)
    return f"{run.suite}: {teacher} → {student}, {pair.data}"


def unlike(run: Run, teacher: Run | None) -> str:
    """In what a run or its teacher differs from the paper's row of that name; empty where in nothing.

    At desk scale: from that row cut down. `teacher` is None where its folder is not here.
    """
    rows = _paper_rows(run.suite)
    own = {"method": run.method, "options": run.options, "early": run.roles.get("early", run.early)}
    job = rows.get(row_of(run)) or rows[BASELINE].model_copy(update=own)  # a row that the paper does not have
    recipe, settings = job.recipe, job.recipe.teacher
    options = DEFAULTS.get(job.method, {}) | recipe.methods.get(job.method, {}) | job.options
    paper_teacher = teach_run(recipe, run.fingerprint)
    reference = distill_run(
        recipe, run.fingerprint, method=job.method, options=options, seed=run.seed, roles={},
        teacher=paper_teacher.hash, early=settings.early, suite=run.suite, name=run.name,
    )  # fmt: skip
    ours, paper = _settings(run), _settings(reference)
    if run.roles:
        early, expected = run.roles.get("early", run.early), job.early or settings.early
        state = early_state(recipe, paper_teacher) if expected == "rewind" else expected
        same = share_of(early, recipe.epochs) == share_of(state, recipe.epochs)
        ours["T_early"], paper["T_early"] = early, early if same else expected
    changed = _changed(ours, paper)
    if run.teacher is not None and run.roles and run.teacher != paper_teacher.hash:
        changed.append(unlike_teacher(run, teacher, recipe) if teacher else "another teacher, whose folder is not here")
    return ", ".join(filter(None, changed))


def unlike_teacher(run: Run, teacher: Run, recipe: Recipe | None = None) -> str:
    """The same of a student's teacher."""
    reference = teach_run(recipe or recipe_of(run.suite), run.fingerprint)
    ours, paper = (_settings(each, "kind", "seed", "fingerprint") for each in (teacher, reference))
    return ", ".join(f"teacher.{change}" for change in _changed(ours, paper))


def _settings(run: Run, *more: str) -> dict[str, Any]:
    """What decides a run besides its seed and its teacher; of weights their digest counts."""
    fields = {"method", "epochs", "iterations", "model", "options", "data", "optim", "task", *more}
    without = {"model": {"weights"}, "optim": {"accumulate"}}  # the second has no effect on the result
    return dict(dotted(run.model_dump(include=fields, exclude=without)))


def dotted(settings: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Names and values of nested settings: optim.lr, 0.1."""
    fields: list[tuple[str, Any]] = []
    for key, value in settings.items():
        fields += dotted(value, f"{above}{key}.") if isinstance(value, dict) else [(above + key, value)]
    return fields


def _changed(ours: dict[str, Any], paper: dict[str, Any]) -> list[str]:
    return [f"{key} {ours[key]} instead of {paper.get(key)}" for key in ours if ours[key] != paper.get(key)]


def row_labels(runs: Collected) -> dict[str, str]:
    """Method of a pair → in what its runs are not the paper's."""
    labels: dict[str, str] = {}
    teachers = {name: teacher.run for name, teacher in runs.teacher_runs.items()}
    for method, group in runs.groups.items():
        run = group[0].run
        if pair_of(run) is not None:
            size = "the desk suite's" if at_desk(run) else "the paper's"
            each = dict.fromkeys(unlike(s.run, teachers.get(s.run.teacher or "")) for s in group)
            label = [DESK] * at_desk(run) + [f"not made as {size} ({other}): {SIGNS}" for other in each if other]
            labels |= {method: "; ".join(label)} if label else {}
    return labels


def suite_labels(runs: Collected) -> dict[str, list[str]]:
    """Suite of a pair → what a reader must know before reading its numbers."""
    suites: dict[str, dict[str, list[str]]] = {}  # suite → label → rows
    for method, label in row_labels(runs).items():
        run = runs.groups[method][0].run
        suites.setdefault(run.suite, {}).setdefault(label, []).append(run.name)
    return {
        suite: [label if label == DESK else f"{', '.join(names)}: {label}" for label, names in labels.items()]
        for suite, labels in suites.items()
    }


def share_of(state: str, epochs: int) -> float | str:
    """A state as per cent of training: "15%" and, of 240 epochs, "epoch:36" are the same; others are their names."""
    word, _, epoch = state.partition(":")
    try:
        return round(100 * float(epoch) / epochs if word == "epoch" else float(state.removesuffix("%")), 6)
    except (ValueError, ZeroDivisionError):
        return state


@cache
def _paper_rows(suite: str) -> dict[str, Job]:
    """The paper's rows of a pair at the suite's scale, by name."""
    jobs = [job for job in TABLES["paper"].jobs() if job.suite == suite.removesuffix(MARK)]
    return {job.name: desk(job) if suite.endswith(MARK) else job for job in jobs}


@cache
def recipe_of(suite: str) -> Recipe:
    """Of a pair, at the suite's scale."""
    recipe = PAIRS[suite.removesuffix(MARK)].recipe()
    return desk_recipe(recipe) if suite.endswith(MARK) else recipe
