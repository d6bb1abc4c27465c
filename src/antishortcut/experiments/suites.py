"""The standing small benchmark: the paper's comparison and its loss ablation, sized for an evening on two cores.

desk        real CIFAR-100, 12,000 images: a pair of one family and a pair of two, one teacher each
desk-cues   the embedded images, where what the shortcut costs can be read: a teacher for every seed
desk-dense  segmentation: CamVid, one teacher, and the embedded scenes, a teacher for every seed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from antishortcut.config.recipe import Recipe, TeacherSettings, Value, load_recipe
from antishortcut.errors import UserError, suggest
from antishortcut.experiments.jobs import BaseRow, Job, Suite, folder_of, teacher_key
from antishortcut.experiments.paper import (
    MARK,
    METHODS,
    NAMES,
    NO_SS,
    NO_TC,
    NO_TEMPORAL,
    PAIRS,
    SCALES,
    TABLES,
    scaled,
    table,
)

SEEDS = (1, 2, 3, 4, 5)
FEWER = SEEDS[:3]  # for segmentation, and for sweeps that ask for a trend
OURS = BaseRow("contrast+tc", "contrast+tc")
ROWS: tuple[BaseRow, ...] = (*METHODS, NO_SS, NO_TC, NO_TEMPORAL[0], OURS)
DENSE = (
    *(BaseRow(name, name) for name in ("ce", "kd")),
    BaseRow("af-dcd", "afdcd"),
    BaseRow("ufd-kd", "ufd"),
    BaseRow("asd", "asd"),
    OURS,
)
CORRUPTED = 2000  # images of a corruption at a severity
ON, SEEN = ("clean", "corruptions", "mechanism"), ("clean", "scenes")


def desk(overrides: Sequence[str]) -> Suite:
    jobs = [*_jobs("desk", "desk", overrides), *_jobs("desk-cross", "desk-cross", overrides)]
    return Suite("desk", "all methods and ASD's ablation on real CIFAR-100, two small pairs", tuple(jobs))


def desk_cues(overrides: Sequence[str]) -> Suite:
    jobs = _paired("desk-cues", "cues", ["data.val_fraction=0.1", *overrides], SEEDS, ROWS, ON)
    return Suite("desk-cues", "the same on the embedded images, where the shortcut is known", tuple(jobs))


def desk_dense(overrides: Sequence[str]) -> Suite:
    jobs = [
        *_jobs("desk-camvid", "camvid", overrides, FEWER, DENSE, SEEN),
        *_paired("desk-cues-seg", "cues-seg", overrides, FEWER, DENSE, SEEN),
    ]
    return Suite("desk-dense", "segmentation: CamVid and the embedded scenes, small pairs", tuple(jobs))


def _jobs(
    suite: str,
    source: str,
    overrides: Sequence[str],
    seeds: Sequence[int] = SEEDS,
    rows: Sequence[BaseRow] = ROWS,
    on: tuple[str, ...] = ON,
) -> list[Job]:
    """Every row over the seeds, seed by seed, so that a suite cut short still compares."""
    known: dict[str, Any] = {"suite": suite, "recipe": load_recipe(source, overrides), "on": on}
    if "corruptions" in on:
        known["images"] = CORRUPTED
    return [
        Job(name=row.name, seed=seed, method=row.method, options=row.options, **known) for seed in seeds for row in rows
    ]


def _paired(
    suite: str,
    source: str,
    overrides: Sequence[str],
    seeds: Sequence[int],
    rows: Sequence[BaseRow],
    on: tuple[str, ...],
) -> list[Job]:
    """With a teacher of its own for every seed."""
    return [
        job for seed in seeds for job in _jobs(suite, source, [f"teacher.seed={seed}", *overrides], [seed], rows, on)
    ]


# --- Contrast targets put to the test ---

STRENGTHS = (0.25, 0.5, 1.0, 2.0)  # λ; 0 is KD
RHOS = (0.8, 0.95, 0.99)  # beside 0.9, which has every row
STRONG = 1.0  # λ of the controls
KEPT = (0, 2, 5, 10, 15, 20, 30, 50, 75)  # states of a teacher; 0 is untrained
LATER = ("2%", "5%", "30%", "50%", "75%")  # than 15 %, or earlier


@dataclass(frozen=True)
class Row(BaseRow):
    """With whose state it is, where it is not its teacher's."""

    other: str = ""  # "seed" or the name of a network: whose state it is


def strengths() -> list[Row]:
    return [Row(f"contrast-{value:g}", "contrast", {"strength": value}) for value in STRENGTHS]


BASE = [Row("ce", "ce"), Row("kd", "kd"), Row("asd", "asd")]
RIVALS = [
    Row("asd-no-ss", "asd", {"ss": 0.0}),
    Row("ckptkd", "ckptkd"),
    Row("jtt", "jtt+kd"),
    Row("lff", "lff+kd"),
    Row("residual-0.5", "residual", {"strength": 0.5}),
    Row("residual-1", "residual", {"strength": 1.0}),
]
VARIANTS = [
    Row("contrast-4", "contrast", {"strength": 4.0}),
    Row("contrast-1-no-ce", "contrast", {"strength": 1.0, "task_weight": 0.0}),
    Row("contrast-1+tc", "contrast+tc", {"strength": 1.0}),
]


def controls(network: str) -> list[Row]:
    """Rows that should fall back to KD if it is T_early, of this very training, that helps."""
    strong: dict[str, Value] = {"strength": STRONG}
    return [
        Row("kd-no-ce", "kd", {"task_weight": 0.0}),
        Row("sharp", "contrast", strong | {"reference": "uniform"}),
        Row("sharp-no-ce", "contrast", strong | {"reference": "uniform", "task_weight": 0.0}),
        Row("untrained", "contrast", strong, "0%"),
        *(Row(f"early-{state.rstrip('%')}", "contrast", strong, state) for state in LATER),
        Row("other-seed", "contrast", strong, "15%", "seed"),
        Row("other-network", "contrast", strong, "15%", network),
        Row("other-network-final", "contrast", strong, "final", network),
    ]


def beyond_cues(overrides: Sequence[str]) -> Suite:
    """Seeds are paired: seed s is the student's and its teacher's, so that five teachers stand behind every row."""
    if any(text.startswith("data.options.rho=") for text in overrides):
        raise UserError("suite beyond-cues has its own ρ; for another: asd distill cues --set data.options.rho=…")
    rows = [*BASE, *strengths(), *VARIANTS, *RIVALS, *controls("cnn-8-64")]
    held = ["data.val_fraction=0.1", f"teacher.keep={list(KEPT)}"]
    jobs = [*_beyond_jobs("beyond-cues", "cues", rows, [*held, *overrides], paired=True)]
    for rho in RHOS:
        name = f"beyond-cues-rho{round(100 * rho)}"
        own = [*held, f"data.options.rho={rho}"]
        jobs += _beyond_jobs(name, "cues", [*BASE, *strengths()], [*own, *overrides], seeds=FEWER)
    return Suite("beyond-cues", "contrast targets where the shortcut is known, with rivals and controls", tuple(jobs))


def beyond_cifar(overrides: Sequence[str]) -> Suite:
    known = {row.name: row for row in (*strengths(), *VARIANTS)}
    on = ("clean", "hard", "corruptions", "mechanism")
    same = [*BASE, *(known[f"contrast-{name}"] for name in ("0.5", "1", "2", "1+tc"))]
    cross = [*BASE, *(known[f"contrast-{name}"] for name in ("1", "1+tc"))]
    jobs = [
        *_beyond_jobs("beyond-cifar", "desk", same, overrides, on=on),
        *_beyond_jobs("beyond-cifar-cross", "desk-cross", cross, overrides, seeds=FEWER, on=on),
    ]
    what = "contrast targets on real CIFAR-100, small pairs; the paper's Sec. 5.4, Beyond CIFAR-100, is table3"
    return Suite("beyond-cifar", what, tuple(jobs))


def beyond_groups(overrides: Sequence[str]) -> Suite:
    if not any(text.startswith("data.name=") for text in overrides):
        raise UserError(
            "suite beyond-groups works on a folder of yours: add --set data.name=groups:PATH, where PATH holds "
            "metadata.csv (see docs/shifts.md)"
        )
    rows = [*BASE, *strengths(), Row("jtt", "jtt+kd"), Row("lff", "lff+kd")]
    jobs = tuple(_beyond_jobs("beyond-groups", "groups", rows, overrides, on=("clean", "hard", "groups")))
    return Suite("beyond-groups", "contrast targets on a folder with a group file", jobs)


def _beyond_jobs(
    suite: str,
    source: str,
    rows: Sequence[Row],
    overrides: Sequence[str],
    *,
    paired: bool = False,
    seeds: Sequence[int] = SEEDS,
    on: tuple[str, ...] = ("clean", "hard"),
) -> Iterator[Job]:
    for seed in seeds:
        own = [f"teacher.seed={seed}"] if paired else []
        recipe = load_recipe(source, [*own, *overrides])
        for row in rows:
            known: dict[str, Any] = {"options": row.options, "early": row.early, "other": _other(row, recipe)}
            yield Job(suite=suite, name=row.name, seed=seed, recipe=recipe, method=row.method, on=on, **known)


def _other(row: Row, recipe: Recipe) -> TeacherSettings | None:
    """The next seed's teacher, or one of another architecture."""
    if not row.other:
        return None
    change = {"seed": recipe.teacher.seed % len(SEEDS) + 1} if row.other == "seed" else {"name": row.other}
    return recipe.teacher.model_copy(update=change)


# --- Suites: named sets of runs that answer a question together. No torch ---

__all__ = ["SCALES", "SUITES", "Job", "Suite", "describe", "folder_of", "open_suite", "teacher_key"]


def _printed(name: str, overrides: Sequence[str], scale: str = "paper") -> Suite:
    """A table or figure of the paper; overrides come last."""
    return scaled(table(name), scale).set(overrides)


SUITES: dict[str, Callable[[Sequence[str]], Suite]] = {
    "desk": desk,
    "desk-cues": desk_cues,
    "desk-dense": desk_dense,
    "beyond-cues": beyond_cues,
    "beyond-cifar": beyond_cifar,
    "beyond-groups": beyond_groups,
    **{name: partial(_printed, name) for name in TABLES},
}


def open_suite(
    name: str,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    scale: str = "paper",
) -> Suite:
    """A suite's jobs, with recipe settings overridden, or a part of them; the paper's also at desk scale."""
    _check_scale(scale)
    known = NAMES.get(name, name)
    if known not in SUITES:
        raise UserError(f"no suite {name!r}{suggest(name, [*SUITES, *NAMES])}")
    if known not in TABLES and scale != "paper":
        raise UserError(f"suite {name} has one size only; --scale {scale} is for the tables of the paper")
    suite = _printed(known, overrides, scale) if known in TABLES else SUITES[known](overrides)
    saved = suite.only(only, seeds)
    if overrides:
        _check_rows(known, overrides, saved)
    return saved


def _check_scale(scale: str) -> None:
    if scale not in SCALES:
        raise UserError(f"--scale {scale!r}{suggest(scale, SCALES)}")


def _check_rows(name: str, overrides: Sequence[str], kept: Suite) -> None:
    """A setting that makes a row what it is may not be overridden: it would be another under the same name."""
    for job in kept.jobs:
        if job.other == job.recipe.teacher:
            raise UserError(f"suite {name}: --set makes the other teacher of {job.name} its own; use another setting")
    own = {(job.suite, job.name): _own(job) for job in TABLES[name].jobs()} if name in TABLES else {}
    for text in overrides:
        key = text.partition("=")[0].strip()
        for job in kept.jobs:
            for setting in own.get((job.suite.removesuffix(MARK), job.name), ()):
                if setting == key or setting.startswith(f"{key}."):
                    raise UserError(
                        f"suite {name}: {job.name} has its own {setting}, so --set {key} would make it another run "
                        "under its name; leave it out, or choose other rows with --only"
                    )


def _own(job: Job) -> list[str]:
    """Settings of a row's recipe that are not its pair's, like optim.batch. One teacher's batch is everyone's."""
    pair = PAIRS[job.suite].recipe()
    same = {"batch": pair.teacher.batch or pair.optim.batch}
    known, own = (
        recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update=same)}) for recipe in (pair, job.recipe)
    )
    return [
        f"{part}.{key}"
        for part in ("data", "teacher", "student", "optim", "task")
        for key, value in getattr(own, part)
        if value != getattr(getattr(known, part), key)
    ]


def describe(scale: str = "paper") -> list[dict[str, Any]]:
    """Name, number of students and question of every suite; one that must be told something first says what."""
    _check_scale(scale)
    rows: list[dict[str, Any]] = []
    for name in SUITES if scale == "paper" else TABLES:
        also = TABLES[name].also if name in TABLES else ""
        try:
            suite = open_suite(name, scale=scale)
        except UserError as error:
            rows.append({"name": name, "also": also, "students": None, "what": str(error).partition(": ")[2]})
        else:
            rows.append({"name": name, "also": also, "students": len(suite.jobs), "what": suite.what})
    return rows
