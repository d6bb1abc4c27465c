"""The standing small benchmark: the paper's comparison and its loss ablation, sized for an evening on two cores.

desk        real CIFAR-100, 12,000 images: a pair of one family and a pair of two, one teacher each
desk-cues   the embedded images, where what the shortcut costs can be read: a teacher for every seed
desk-dense  segmentation: CamVid, one teacher, and the embedded scenes, a teacher for every seed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antishortcut.config.recipe import load_recipe
from antishortcut.experiments.jobs import BaseRow, Job, Suite
from antishortcut.experiments.paper import METHODS, NO_SS, NO_TC, NO_TEMPORAL

SEEDS = (1, 2, 3, 4, 5)
FEWER = SEEDS[:3]  # for segmentation
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
