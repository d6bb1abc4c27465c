"""Every table and figure of the paper as the runs behind it.

A run lies in the folder of its pair under the name of its row, runs/P2/asd-s1, so that tables which share it share its
training; what each table measures is added to the scores of the same run. S-Table and S-Sec. are the supplement's.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import fsum
from pathlib import Path
from typing import NamedTuple

from antishortcut.config.recipe import Recipe, Value, load_recipe
from antishortcut.experiments.jobs import Job, Suite, SuiteRow, make_jobs

SEEDS = (1, 2, 3)  # "mean ± std over 3 seeds unless noted" (Sec. 5.1)
RUN_HOURS = 4.5  # A100-hours of one CIFAR-100 run of ASD (S-Sec. A.5)
OTHER_HOURS = 75.0  # of ImageNet-100 and TinyImageNet together
LARGE_HOURS = OTHER_HOURS / 9  # P11–P13 over three seeds; the paper gives only their sum
C100, TINY, IN100, ADE = "CIFAR-100", "TinyImageNet", "ImageNet-100", "ADE20K"


class PaperPair(NamedTuple):
    """Teacher, student and data as the paper writes them. The settings are those of the shipped recipe of that name."""

    name: str
    teacher: str
    student: str
    data: str
    hours: float | None = RUN_HOURS  # A100-hours of a run, if the paper gives them

    def recipe(self) -> Recipe:
        return load_recipe(self.name)


PAIRS: dict[str, PaperPair] = {
    pair.name: pair
    for pair in (
        PaperPair("P1", "ResNet-34", "ResNet-18", C100),
        PaperPair("P2", "WRN-40-2", "WRN-16-2", C100),
        PaperPair("P3", "ResNet-32x4", "ResNet-8x4", C100),
        PaperPair("P4", "WRN-40-2", "WRN-40-1", C100),
        PaperPair("P5", "VGG-13", "VGG-8", C100),
        PaperPair("P6", "WRN-40-2", "ShuffleNet-V2", C100),
        PaperPair("P7", "WRN-40-2", "ShuffleNet-V1", C100),
        PaperPair("P8", "ResNet-32x4", "ShuffleNet-V1", C100),
        PaperPair("P9", "ResNet-32x4", "ShuffleNet-V2", C100),
        PaperPair("P10", "VGG-13", "MobileNet-V2", C100),
        PaperPair("P11", "ResNet-50", "MobileNet-V2", IN100, LARGE_HOURS),
        PaperPair("P12", "ResNet-34", "ResNet-18", TINY, LARGE_HOURS),
        PaperPair("P13", "ResNet-50", "ResNet-18", IN100, LARGE_HOURS),
        PaperPair("deit-tiny", "ResNet-50", "DeiT-Tiny", IN100, None),
        PaperPair("ade20k-resnet18", "ResNet-101", "ResNet-18", ADE, None),
        PaperPair("ade20k-mobilenetv2", "ResNet-101", "MobileNetV2", ADE, None),
    )
}
SAME, CROSS, LARGER = ("P1", "P2", "P3", "P4", "P5"), ("P6", "P7", "P8", "P9", "P10"), ("P11", "P12", "P13")
DENSE = ("ade20k-resnet18", "ade20k-mobilenetv2")

CE, KD, DKD, CKPT = (SuiteRow(name, name) for name in ("ce", "kd", "dkd", "ckptkd"))
CRD, ASD = SuiteRow("crd+kd", "crd+kd"), SuiteRow("asd", "asd")
METHODS = (CE, KD, SuiteRow("fitnets+kd", "fitnets+kd"), SuiteRow("at+kd", "at+kd"), DKD, CRD, CKPT, ASD)
SEGMENTERS = (CE, KD, SuiteRow("af-dcd", "afdcd"), SuiteRow("ufd-kd", "ufd"), ASD)
NO_SS, NO_TC = SuiteRow("asd-no-ss", "asd", {"ss": 0.0}), SuiteRow("asd-no-tc", "asd", {"tc": 0.0})
# Table 8's "in-batch" row has KD's numbers and is called CE + KD; its text describes L_TC without the temporal negative
NO_TEMPORAL = (
    SuiteRow("asd-no-temporal", "asd", {"temporal": False}),
    SuiteRow("asd-no-temporal-no-ss", "asd", {"temporal": False, "ss": 0.0}),
)
REWOUND = SuiteRow("asd-rewind", "asd", settings=("teacher.early=rewind",))
EPOCHS = tuple(  # T_early by epoch of 240
    ASD if epoch == 36 else SuiteRow(f"asd-early{epoch}", "asd", early=state)
    for epoch, state in {12: "5%", 24: "10%", 36: "15%", 48: "20%", 72: "30%"}.items()
)
BATCHES = tuple(  # another batch for the student; the teacher is that of all other rows
    ASD if size == 64 else SuiteRow(f"asd-b{size}", "asd", settings=("teacher.batch=64", f"optim.batch={size}"))
    for size in (32, 64, 128, 256)
)


def _swept(letter: str, setting: str, values: Sequence[float], default: float) -> tuple[SuiteRow, ...]:
    """ASD with one setting varied; its default is ASD itself."""
    return tuple(ASD if x == default else SuiteRow(f"asd-{letter}{x:g}", "asd", {setting: x}) for x in values)


class PaperTable(NamedTuple):
    also: str  # its readable name
    what: str
    jobs: Callable[[], tuple[Job, ...]]
    timed: bool = False


def _jobs(pairs: Iterable[str], rows: Sequence[SuiteRow], *on: str, seeds: Sequence[int] = SEEDS) -> tuple[Job, ...]:
    """Every row of every pair over the seeds, scored on clean images and on what else is named."""
    return tuple(job for p in pairs for job in make_jobs(p, PAIRS[p].recipe(), rows, seeds, ("clean", *on)))


def _table(
    also: str, what: str, pairs: Sequence[str], rows: Sequence[SuiteRow], *on: str, timed: bool = False
) -> PaperTable:
    return PaperTable(also, what, lambda: _jobs(pairs, rows, *on), timed)


P1 = ("P1",)
CORRUPTED, INSIDE, STYLED = "corruptions", "mechanism", "stylized"
TABLES: dict[str, PaperTable] = {
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
    "table5": _table("corruption-robustness", "Table 5: CIFAR-100-C, eight methods", (*SAME, "P6"), METHODS, CORRUPTED),
    "table6": _table(
        "ablation-losses", "Table 6: ASD without L_SS, without L_TC, P1", P1, (KD, NO_SS, NO_TC, ASD), CORRUPTED
    ),
    "table7": _table("early-epoch", "Table 7: T_early at epoch 12, 24, 36, 48, 72, P1", P1, EPOCHS),
    "table8": _table(
        "negative-source",
        "Table 8: T_early against in-batch negatives, as its numbers say (KD) and as its text says (two rows)",
        ("P1", "P2", "P3", "P6", "P5"), (KD, *NO_TEMPORAL, ASD),
    ),
    "s-table1": PaperTable(
        "multi-pair", "S-Table 1: mechanism on P1, P5, P3, P12; 'shape' is accuracy on stylised images",
        lambda: _jobs(("P1", "P5", "P3"), (KD, ASD), INSIDE, STYLED) + _jobs(("P12",), (KD, ASD), INSIDE),
    ),
    "s-table2": PaperTable(
        "energy-trajectory", "S-Table 2, Figure A.6: energy of the teacher's states, measured with any student of P1",
        lambda: _jobs(P1, (ASD,), INSIDE, seeds=SEEDS[:1]),
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
        "batch-size", "S-Table 8: B = 32, 64, 128, 256 with the subspace angles, P1", P1, BATCHES, CORRUPTED, INSIDE
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
    "p3-boundary": PaperTable(
        "", "S-Sec. A.9.1: the capacity boundary, P3 beside P1's KD student",
        lambda: _jobs(("P3",), (KD, CKPT, *NO_TEMPORAL, ASD), CORRUPTED, INSIDE) + _jobs(P1, (KD,), CORRUPTED, INSIDE),
    ),
    "complexity": _table(
        "", "S-Sec. A.8: seconds of ASD against KD over whole runs, P1; asd bench measures single steps",
        P1, (KD, ASD), timed=True,
    ),
    "paper": PaperTable("", "every run of the paper, once", lambda: _all()),
}  # fmt: skip
NAMES = {table.also: name for name, table in TABLES.items() if table.also}  # readable name → its number


def _all() -> tuple[Job, ...]:
    """All tables; a run that several need is scored on what any of them measures."""
    jobs: dict[str, Job] = {}
    for job in (job for name, known in TABLES.items() if name != "paper" for job in known.jobs()):
        before = jobs.get(job.title, job)
        jobs[job.title] = job.model_copy(update={"on": tuple(dict.fromkeys((*before.on, *job.on)))})
    return tuple(jobs.values())


# --- Desk scale: the paper's runs cut down for two cores ---

SCALES = ("paper", "desk")
MARK = "-desk"
DESK_EPOCHS, DESK_ITERATIONS, DESK_IMAGES = 12, 1_200, 12_000
SIDES = {"cifar100": None, "ade20k": 128}  # None: as they are; all others become 32
WARMED = {"asd": 20.0, "dkd": 20.0}  # methods whose `warmup` counts epochs, and its default; a test compares
STAND_INS = {  # narrower or shallower, if possible of the same family; equally wide exactly where the paper's pairs are
    "resnet34": "resnet14", "resnet18": "resnet8", "wrn-40-2": "wrn-28-2", "wrn-16-2": "wrn-10-2",
    "wrn-40-1": "wrn-10-1", "resnet32x4": "resnet14x4", "resnet8x4": "resnet8x4", "vgg13": "cnn-96-128",
    "vgg8": "cnn-48-128", "shufflenet-v1": "shufflenet-v1", "shufflenet-v2": "shufflenet-v2-x0.5",
    "mobilenet-v2": "mobilenet-v2", "timm:resnet50": "cnn-64-256", "timm:resnet18": "cnn-16-128",
    "timm:mobilenetv2_100": "mobilenet-v2", "timm:deit_tiny_patch16_224": "timm:test_vit",
    "deeplabv3-resnet101": "dense-32", "deeplabv3-resnet18": "dense-8", "deeplabv3-mobilenetv2": "dense-6",
}  # fmt: skip


def paper_suite(name: str, overrides: Sequence[str], scale: str = "paper") -> Suite:
    """The runs of a table at a scale."""
    _, what, make, timed = TABLES[name]
    jobs = make()
    if scale == "desk":
        recipes: dict[int, Recipe] = {}  # jobs share their recipes
        jobs = tuple(desk(job, recipes.setdefault(id(job.recipe), desk_recipe(job.recipe))) for job in jobs)
        what = f"at desk scale, not the paper's size: {what}"
    return Suite(name, what, jobs, timed).set(overrides)


def desk(job: Job, recipe: Recipe | None = None) -> Job:
    """A job of the paper, cut down."""
    options: dict[str, Value] = dict(job.options)
    if job.method in WARMED:
        known = {"warmup": WARMED[job.method], **job.recipe.methods.get(job.method, {}), **options}
        options["warmup"] = round(float(known["warmup"]) * _share(job.recipe), 6)
    changes = {"suite": job.suite + MARK, "recipe": recipe or desk_recipe(job.recipe), "options": options}
    return job.model_copy(update=changes)


def desk_recipe(recipe: Recipe) -> Recipe:
    """A recipe, cut down; states named by an epoch move with the length of training."""
    share, teacher, side = _share(recipe), recipe.teacher, SIDES.get(recipe.data.name, 32)
    data = {"train_limit": DESK_IMAGES} | ({"image_size": side} if side else {})
    keep = tuple(_moved(state, share) for state in teacher.keep)
    rewind_epochs = max(round(teacher.rewind_epochs * share), 1)
    own = {"pretrained": False, "name": STAND_INS[teacher.name], "keep": keep, "rewind_epochs": rewind_epochs}
    student = {"name": STAND_INS[recipe.student.name], "pretrained": False}
    changes = {
        "title": f"{recipe.title}, at desk scale",
        "data": recipe.data.model_copy(update=data),
        "teacher": teacher.model_copy(update=own),
        "student": recipe.student.model_copy(update=student),
    }
    length = {"iterations": DESK_ITERATIONS} if recipe.iterations else {"epochs": DESK_EPOCHS}
    return recipe.model_copy(update=changes | length)


def _share(recipe: Recipe) -> float:
    """Of the paper's length."""
    return DESK_ITERATIONS / recipe.iterations if recipe.iterations else DESK_EPOCHS / recipe.epochs


def _moved(state: float | str, share: float) -> float | str:
    word, _, epoch = str(state).partition(":")
    return f"{word}:{float(epoch) * share:g}" if epoch else state


def reported_hours(suite: Suite) -> tuple[float, int] | None:
    """A100-hours of a suite's students as the paper counts them, and how many it gives no hours for.

    None for runs that are not of the paper's size.
    """
    recipes = {pair: PAIRS[pair].recipe() for pair in {job.suite for job in suite.jobs} & PAIRS.keys()}
    for job in suite.jobs:
        known = recipes.get(job.suite)
        if known is None or (job.recipe.length, job.recipe.data) != (known.length, known.data):
            return None
    hours = [PAIRS[job.suite].hours for job in suite.jobs]
    return fsum(filter(None, hours)), hours.count(None)


# --- Every number the paper prints, with its place: tables first, then text and captions ---

# Tables 1–8 and figures are the paper's, S-… its supplement's. A range is two numbers, from and to. What the text
# repeats from a table is there again, with the place that repeats it. A note says where a number contradicts others,
# the text or arithmetic; the number itself stays as printed.


class Printed(NamedTuple):
    place: str  # "Table 1", "S-Table 3, caption", "Sec. 6.4", "S-Sec. A.7"
    row: str  # as a run is named; else teacher, student, protocol, paper, a data set, a state
    column: str  # a pair, or what the number is said of
    measure: str
    mean: float
    std: float | None = None
    best: bool = False  # the table marks it so
    note: str = ""  # what it contradicts


def of_run(pair: str, name: str) -> list[Printed]:
    """What is printed of a row of a pair, tables first."""
    return [number for number in PRINTED if (number.column, number.row) == (pair, name)]


def find(place: str, row: str, column: str, measure: str) -> Printed:
    """The one number of that place; the first when the text repeats it there."""
    return next(number for number in PRINTED if number[:4] == (place, row, column, measure))


def _read() -> Iterator[Printed]:
    with Path(__file__).with_name("printed.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            std = float(line["std"]) if line["std"] else None
            where = line["place"], line["row"], line["column"], line["measure"]
            yield Printed(*where, float(line["mean"]), std, line["best"] == "best", line["note"])


PRINTED: tuple[Printed, ...] = tuple(_read())
