"""The standing small benchmark: the paper's comparison and its loss ablation, sized for an evening on two cores.

desk       real CIFAR-100, 12,000 images: a pair of one family and a pair of two, one teacher each
desk-cues  the embedded images, where what the shortcut costs can be read: a teacher for every seed
"""

from __future__ import annotations

from collections.abc import Sequence

from antishortcut.job import BaseRow, Job, Suite
from antishortcut.paper.tables import METHODS, NO_SS, NO_TC, NO_TEMPORAL
from antishortcut.run import load_recipe

SEEDS = (1, 2, 3, 4, 5)
ROWS: tuple[BaseRow, ...] = (*METHODS, NO_SS, NO_TC, NO_TEMPORAL[0], BaseRow("contrast+tc", "contrast+tc"))
CORRUPTED = 2000  # images of a corruption at a severity
ON = ("clean", "corruptions", "mechanism")


def desk(overrides: Sequence[str]) -> Suite:
    jobs = [*_jobs("desk", overrides), *_jobs("desk-cross", overrides)]
    return Suite("desk", "all methods and ASD's ablation on real CIFAR-100, two small pairs", tuple(jobs))


def desk_cues(overrides: Sequence[str]) -> Suite:
    jobs = [
        job
        for seed in SEEDS
        for job in _jobs("cues", ["data.val_fraction=0.1", f"teacher.seed={seed}", *overrides], "desk-cues", [seed])
    ]
    return Suite("desk-cues", "the same on the embedded images, where the shortcut is known", tuple(jobs))


def _jobs(source: str, overrides: Sequence[str], suite: str = "", seeds: Sequence[int] = SEEDS) -> list[Job]:
    """Every row over the seeds, seed by seed, so that a suite cut short still compares."""
    recipe = load_recipe(source, overrides)
    known = {"recipe": recipe, "suite": suite or source, "on": ON, "images": CORRUPTED}
    return [
        Job(name=row.name, seed=seed, method=row.method, options=row.options, **known) for seed in seeds for row in ROWS
    ]
