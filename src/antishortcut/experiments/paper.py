"""Every table and figure of the paper as the runs behind it.

A run lies in the folder of its pair under the name of its row, runs/P2/asd-s1, so that tables which share it share its
training; what each table measures is added to the scores of the same run. S-Table and S-Sec. are the supplement's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from antishortcut.config.recipe import Recipe
from antishortcut.experiments.jobs import BaseRow, Job, Suite
from antishortcut.experiments.pairs import CROSS, DENSE, LARGER, PAIRS, SAME, SEEDS


@dataclass(frozen=True)
class Row(BaseRow):
    """With what its recipe has of its own."""

    change: Callable[[Recipe], Recipe] | None = None


def _batch(size: int) -> Callable[[Recipe], Recipe]:
    """Another batch for the student; the teacher is the one of all other rows."""

    def changed(recipe: Recipe) -> Recipe:
        teacher = recipe.teacher.model_copy(update={"batch": recipe.optim.batch})
        optim = recipe.optim.model_copy(update={"batch": size})
        return recipe.model_copy(update={"teacher": teacher, "optim": optim})

    return changed


def _rewound(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update={"early": "rewind"})})


CE, KD, DKD, CKPT = (Row(name, name) for name in ("ce", "kd", "dkd", "ckptkd"))
CRD, ASD = Row("crd+kd", "crd+kd"), Row("asd", "asd")
METHODS = (CE, KD, Row("fitnets+kd", "fitnets+kd"), Row("at+kd", "at+kd"), DKD, CRD, CKPT, ASD)
NO_SS, NO_TC = Row("asd-no-ss", "asd", {"ss": 0.0}), Row("asd-no-tc", "asd", {"tc": 0.0})
# Table 8's "in-batch" row has KD's numbers and is called CE + KD; its text describes L_TC without the temporal negative
NO_TEMPORAL = (
    Row("asd-no-temporal", "asd", {"temporal": False}),
    Row("asd-no-temporal-no-ss", "asd", {"temporal": False, "ss": 0.0}),
)
REWOUND = Row("asd-rewind", "asd", change=_rewound)
EARLY = {12: "5%", 24: "10%", 36: "15%", 48: "20%", 72: "30%"}  # epoch of 240: the state's name


def _swept(letter: str, setting: str, values: Sequence[float], default: float) -> tuple[Row, ...]:
    """ASD with one setting varied; its default is ASD itself."""
    return tuple(
        ASD if value == default else Row(f"asd-{letter}{value:g}", "asd", {setting: value}) for value in values
    )


EPOCHS = tuple(ASD if epoch == 36 else Row(f"asd-early{epoch}", "asd", early=at) for epoch, at in EARLY.items())
SIZES = tuple(ASD if size == 64 else Row(f"asd-b{size}", "asd", change=_batch(size)) for size in (32, 64, 128, 256))


def _jobs(
    pairs: Iterable[str], rows: Iterable[Row], on: Iterable[str], seeds: Sequence[int], styled: Sequence[str]
) -> Iterator[Job]:
    """Every row of every pair over the seeds, scored on clean images and on what else is named."""
    for pair in pairs:
        recipe = PAIRS[pair].recipe()
        scored = ("clean", *on, *((STYLED,) if pair in styled else ()))
        for row in rows:
            own = row.change(recipe) if row.change else recipe
            for seed in seeds:
                yield Job(
                    suite=pair, name=row.name, seed=seed, recipe=own, method=row.method, options=row.options,
                    early=row.early, on=scored,
                )  # fmt: skip


class Table(NamedTuple):
    also: str  # its readable name
    what: str
    jobs: Callable[[], tuple[Job, ...]]
    timed: bool = False


def _table(
    also: str,
    what: str,
    pairs: Sequence[str],
    rows: Sequence[Row],
    *on: str,
    seeds: Sequence[int] = SEEDS,
    styled: Sequence[str] = (),
    timed: bool = False,
) -> Table:
    """`styled` names the pairs that are scored on stylised images too."""
    return Table(also, what, lambda: tuple(_jobs(pairs, rows, on, seeds, styled)), timed)


def _boundary() -> tuple[Job, ...]:
    on = (CORRUPTED, INSIDE)
    return (*_jobs(["P3"], [KD, CKPT, *NO_TEMPORAL, ASD], on, SEEDS, ()), *_jobs(["P1"], [KD], on, SEEDS, ()))


P1 = ("P1",)
CORRUPTED, INSIDE, STYLED = "corruptions", "mechanism", "stylized"
SEGMENTERS = (CE, KD, Row("af-dcd", "afdcd"), Row("ufd-kd", "ufd"), ASD)
TABLES: dict[str, Table] = {
    "table1": _table("same-family", "Table 1: CIFAR-100, one family, P1–P5, eight methods", SAME, METHODS),
    "table2": _table("cross-architecture", "Table 2: CIFAR-100, two families, P6–P10, eight methods", CROSS, METHODS),
    "table3": _table(
        "larger-data", "Table 3, Sec. 5.4 (Beyond CIFAR-100): ImageNet-100 and TinyImageNet, P11–P13, eight methods",
        LARGER, METHODS,
    ),
    "table4": _table(
        "ade20k", "Table 4, S-Figures 1–5: ADE20K segmentation, two pairs, five methods, with scenes",
        DENSE, SEGMENTERS, "scenes",
    ),
    "table5": _table(
        "corruption-robustness", "Table 5: CIFAR-100-C, P1–P6, eight methods", (*SAME, "P6"), METHODS, CORRUPTED
    ),
    "table6": _table(
        "ablation-losses", "Table 6: ASD without L_SS, without L_TC, P1", P1, (KD, NO_SS, NO_TC, ASD), CORRUPTED
    ),
    "table7": _table("early-epoch", "Table 7: T_early at epoch 12, 24, 36, 48, 72, P1", P1, EPOCHS),
    "table8": _table(
        "negative-source",
        "Table 8: T_early against in-batch negatives, as its numbers say (KD) and as its text says (two rows)",
        ("P1", "P2", "P3", "P6", "P5"), (KD, *NO_TEMPORAL, ASD),
    ),
    "s-table1": _table(
        "multi-pair", "S-Table 1: mechanism on P1, P5, P3, P12; 'shape' is accuracy on stylised images",
        ("P1", "P5", "P3", "P12"), (KD, ASD), INSIDE, styled=("P1", "P5", "P3"),
    ),
    "s-table2": _table(
        "energy-trajectory", "S-Table 2, Figure A.6: energy of the teacher's states, measured with any student of P1",
        P1, (ASD,), INSIDE, seeds=SEEDS[:1],
    ),
    "s-table3": _table(
        "shortcut-benchmarks", "S-Table 3: P11's students on ImageNet-R, ImageNet-A and stylised images",
        ("P11",), (CE, KD, ASD), "imagenet-r", "imagenet-a", STYLED,
    ),
    "s-table4": _table(
        "ablation-directions", "S-Table 4: K = 1, 2, 4, 8, P1",
        P1, _swept("k", "directions", (1, 2, 4, 8), 4), CORRUPTED,
    ),
    "s-table5": _table(
        "ablation-margin", "S-Table 5: ε = 0.05, 0.1, 0.2, 0.4, P1",
        P1, _swept("eps", "margin", (0.05, 0.1, 0.2, 0.4), 0.1), CORRUPTED,
    ),
    "s-table6": _table(
        "ablation-queue", "S-Table 6: M = 0, 1024, 4096, 16384, P1",
        P1, _swept("m", "queue", (0, 1024, 4096, 16384), 4096),
    ),
    "s-table7": _table(
        "ablation-warmup", "S-Table 7: warm-up of 0, 10, 20, 40 epochs, P1",
        P1, _swept("warmup", "warmup", (0.0, 10.0, 20.0, 40.0), 20),
    ),
    "s-table8": _table(
        "batch-size", "S-Table 8: B = 32, 64, 128, 256 with the subspace angles, P1", P1, SIZES, CORRUPTED, INSIDE
    ),
    "s-table9": _table("paired-seeds", "S-Table 9: CRD against ASD seed by seed, P12", ("P12",), (CRD, ASD)),
    "figure2": _table(
        "mechanism", "Figures 2 and 3a, Sec. 6.4: alignment, signed cosine, angles, robust projection, stability, P1",
        P1, (KD, ASD), INSIDE,
    ),
    "figure3": _table("texture-shift", "Figure 3b: accuracy on stylised CIFAR-100, P1", P1, (KD, ASD), STYLED),
    "rewind": _table(
        "rewound-reference", "S-Sec. A.4.6: a rewound final teacher in place of T_early, P1", P1, (KD, REWOUND, ASD)
    ),
    "transformer": _table("deit-tiny", "S-Sec. A.4.7: DeiT-Tiny as the student", ("deit-tiny",), (KD, ASD)),
    "corruption-groups": _table(
        "", "S-Sec. A.3.7: ΔCE by group of corruptions, P1 and P6", ("P1", "P6"), (KD, ASD), CORRUPTED
    ),
    "p2-corruptions": _table("", "S-Sec. A.9.2: P2 corruption by corruption", ("P2",), (KD, DKD, ASD), CORRUPTED),
    "p3-boundary": Table("", "S-Sec. A.9.1: the capacity boundary, P3 beside P1's KD student", _boundary),
    "complexity": _table(
        "", "S-Sec. A.8: seconds of ASD against KD over whole runs, P1; asd bench measures single steps",
        P1, (KD, ASD), timed=True,
    ),
    "paper": Table("", "every run of the paper, once", lambda: _all()),
}  # fmt: skip
NAMES = {table.also: name for name, table in TABLES.items() if table.also}  # readable name → its number


def table(name: str) -> Suite:
    """The runs of a table at the paper's scale."""
    return Suite(name, TABLES[name].what, TABLES[name].jobs(), TABLES[name].timed)


def _all() -> tuple[Job, ...]:
    """All tables together; a run that several need is scored on what any of them measures."""
    kept: dict[str, Job] = {}
    for name, known in TABLES.items():
        if name == "paper":
            continue
        for job in known.jobs():
            before = kept.get(job.title, job)
            kept[job.title] = job.model_copy(update={"on": tuple(dict.fromkeys((*before.on, *job.on)))})
    return tuple(kept.values())
