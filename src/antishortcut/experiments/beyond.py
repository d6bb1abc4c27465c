"""Contrast targets put to the test: against rivals with the same early state, and against controls that should fail.

beyond-cues    embedded images, shortcut known: every rival and control at ρ = 0.9, the strength λ at four ρ
beyond-cifar   real CIFAR-100, small pairs: what is left of it where no shortcut was planted
beyond-groups  a folder of your own with a group file
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from antishortcut.config.recipe import Recipe, TeacherSettings, Value, load_recipe
from antishortcut.errors import UserError
from antishortcut.experiments.jobs import BaseRow, Job, Suite

SEEDS = (1, 2, 3, 4, 5)
FEWER = SEEDS[:3]  # of the sweep over ρ, which asks for a trend
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
    jobs = [*_jobs("beyond-cues", "cues", rows, [*held, *overrides], paired=True)]
    for rho in RHOS:
        name = f"beyond-cues-rho{round(100 * rho)}"
        own = [*held, f"data.options.rho={rho}"]
        jobs += _jobs(name, "cues", [*BASE, *strengths()], [*own, *overrides], seeds=FEWER)
    return Suite("beyond-cues", "contrast targets where the shortcut is known, with rivals and controls", tuple(jobs))


def beyond_cifar(overrides: Sequence[str]) -> Suite:
    known = {row.name: row for row in (*strengths(), *VARIANTS)}
    on = ("clean", "hard", "corruptions", "mechanism")
    same = [*BASE, *(known[f"contrast-{name}"] for name in ("0.5", "1", "2", "1+tc"))]
    cross = [*BASE, *(known[f"contrast-{name}"] for name in ("1", "1+tc"))]
    jobs = [
        *_jobs("beyond-cifar", "desk", same, overrides, on=on),
        *_jobs("beyond-cifar-cross", "desk-cross", cross, overrides, seeds=FEWER, on=on),
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
    jobs = tuple(_jobs("beyond-groups", "groups", rows, overrides, on=("clean", "hard", "groups")))
    return Suite("beyond-groups", "contrast targets on a folder with a group file", jobs)


def _jobs(
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
