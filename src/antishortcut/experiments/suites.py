"""Suites: named sets of runs that answer a question together. No torch.

desk        real CIFAR-100, 12,000 images: a pair of one family and a pair of two, one teacher each
desk-cues   synthetic images with a known shortcut: a teacher for every seed
desk-dense  segmentation: CamVid, one teacher, and synthetic scenes, a teacher for every seed
beyond-*    contrast targets, with rivals and controls
mixing      mixup and cutmix on synthetic images with a known shortcut
shortcuts   shortcuts of every kind, planted in real and synthetic images: a teacher for every seed
weak        the same, when no early checkpoint is left
natural     no planted shortcut: does the default method cost anything?
ablation    each part of the default method, and controls, on synthetic images with a known shortcut
standard    the pair that everyone reports, on all of CIFAR-100, in 30 epochs
table1, …   the tables and figures of the paper
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from antishortcut.config.recipe import LEVELS, Value, load_recipe
from antishortcut.errors import UserError, suggest
from antishortcut.experiments import paper
from antishortcut.experiments.jobs import Job, Suite, SuiteRow, make_jobs
from antishortcut.experiments.paper import MARK, NAMES, PAIRS, SCALES, TABLES, paper_suite

SEEDS = (1, 2, 3, 4, 5)
FEWER = SEEDS[:3]  # for segmentation, and for sweeps that ask for a trend
OURS = SuiteRow("contrast+tc", "contrast+tc")
DIALLED = SuiteRow("contrast+hint", "contrast+hint", budget=0.0)
PLAIN: dict[str, Value] = {"strength": 1.0, "beta": 0.0, "hint": 100.0}  # β goes by one true class, mixing has two
PAID = SuiteRow("contrast+hint-5", "contrast+hint", budget=0.05)
ROWS = (*paper.METHODS, paper.NO_SS, paper.NO_TC, paper.NO_TEMPORAL[0], OURS)
DENSE = (*paper.SEGMENTERS, OURS)
CORRUPTED = 2000  # images per corruption and severity
ON, ON_DENSE, ON_HARD = ("clean", "corruptions", "mechanism"), ("clean", "scenes"), ("clean", "hard")

STRENGTHS = [SuiteRow(f"contrast-{value:g}", "contrast", {"strength": value}) for value in (0.25, 0.5, 1.0, 2.0)]  # λ
RHOS = (0.8, 0.95, 0.99)  # beside 0.9, which has every row
KEPT = (0, 2, 5, 10, 15, 20, 30, 50, 75)  # states of a teacher; 0 is untrained
BASE = [paper.CE, paper.KD, paper.ASD]
JTT, LFF = SuiteRow("jtt", "jtt+kd"), SuiteRow("lff", "lff+kd")
RIVALS = [
    *(paper.NO_SS, paper.CKPT, JTT, LFF),
    SuiteRow("residual-0.5", "residual", {"strength": 0.5}),
    SuiteRow("residual-1", "residual", {"strength": 1.0}),
]
SHORTCUTS = [
    *(paper.CE, paper.KD, paper.ASD, SuiteRow("fitnets+kd", "fitnets+kd"), SuiteRow("dkd", "dkd"), JTT),
    *(SuiteRow("transplant", "transplant"), OURS, DIALLED, PAID),
]
KINDS = ("patch", "frame", "tint", "texture", "watermark")  # as in data.planted, which needs torch
STANDARD = [
    *(paper.KD, DIALLED, paper.ASD),  # over five seeds; the rest over three
    *(paper.CE, SuiteRow("fitnets+kd", "fitnets+kd"), paper.DKD, paper.NO_SS, paper.NO_TEMPORAL[0], paper.CRD),
    SuiteRow("reviewkd", "reviewkd"),
]
ON_STANDARD = ("clean", "corruptions", "stylized", "probes", "mechanism")
VARIANTS = [
    SuiteRow("contrast-4", "contrast", {"strength": 4.0}),
    SuiteRow("contrast-1-no-ce", "contrast", {"strength": 1.0, "task_weight": 0.0}),
    SuiteRow("contrast-1+tc", "contrast+tc", {"strength": 1.0}),
]


def controls(network: str) -> list[SuiteRow]:
    """Rows that should fall back to KD if it is T_early, of this very training, that helps."""
    strong: dict[str, Value] = {"strength": 1.0}
    return [
        SuiteRow("kd-no-ce", "kd", {"task_weight": 0.0}),
        SuiteRow("sharp", "contrast", strong | {"reference": "uniform"}),
        SuiteRow("sharp-no-ce", "contrast", strong | {"reference": "uniform", "task_weight": 0.0}),
        SuiteRow("untrained", "contrast", strong, "0%"),
        *(SuiteRow(f"early-{share}", "contrast", strong, f"{share}%") for share in (2, 5, 30, 50, 75)),
        SuiteRow("other-seed", "contrast", strong, "15%", "seed"),
        SuiteRow("other-network", "contrast", strong, "15%", network),
        SuiteRow("other-network-final", "contrast", strong, "final", network),
    ]


def _jobs(
    suite: str,
    source: str,
    overrides: Sequence[str],
    seeds: Sequence[int] = SEEDS,
    rows: Sequence[SuiteRow] = ROWS,
    on: tuple[str, ...] = ON,
    paired: bool = False,
) -> list[Job]:
    """paired: a teacher of its own for every seed."""
    if paired:
        teachers = {seed: [f"teacher.seed={seed}", *overrides] for seed in seeds}
        return [job for seed, own in teachers.items() for job in _jobs(suite, source, own, [seed], rows, on)]
    images = CORRUPTED if suite.startswith("desk") and "corruptions" in on else None
    return make_jobs(suite, load_recipe(source, overrides), rows, seeds, on, images)


def desk(overrides: Sequence[str]) -> Suite:
    jobs = [*_jobs("desk", "desk", overrides), *_jobs("desk-cross", "desk-cross", overrides)]
    return Suite("desk", "all methods and ASD's ablation on real CIFAR-100, two small pairs", tuple(jobs))


def desk_cues(overrides: Sequence[str]) -> Suite:
    jobs = _jobs("desk-cues", "cues", ["data.val_fraction=0.1", *overrides], paired=True)
    return Suite("desk-cues", "the same on synthetic images, where the shortcut is known", tuple(jobs))


def desk_dense(overrides: Sequence[str]) -> Suite:
    jobs = _jobs("desk-camvid", "camvid", overrides, FEWER, DENSE, ON_DENSE)
    jobs += _jobs("desk-cues-seg", "cues-seg", overrides, FEWER, DENSE, ON_DENSE, paired=True)
    return Suite("desk-dense", "segmentation: CamVid and synthetic scenes, small pairs", tuple(jobs))


def beyond_cues(overrides: Sequence[str]) -> Suite:
    """Seed s is the student's and its teacher's, so five teachers stand behind every row."""
    if any(text.startswith("data.options.rho=") for text in overrides):
        raise UserError("suite beyond-cues has its own ρ; for another: asd distill cues --set data.options.rho=…")
    rows = [*BASE, *STRENGTHS, *VARIANTS, *RIVALS, *controls("cnn-8-64")]
    held = ["data.val_fraction=0.1", f"teacher.keep={list(KEPT)}"]
    jobs = _jobs("beyond-cues", "cues", [*held, *overrides], SEEDS, rows, ON_HARD, paired=True)
    for rho in RHOS:
        own = [*held, f"data.options.rho={rho}", *overrides]
        jobs += _jobs(f"beyond-cues-rho{round(100 * rho)}", "cues", own, FEWER, [*BASE, *STRENGTHS], ON_HARD)
    return Suite("beyond-cues", "contrast targets where the shortcut is known, with rivals and controls", tuple(jobs))


def shortcuts(overrides: Sequence[str]) -> Suite:
    """Rows of the README over five seeds at ρ = 0.9; three elsewhere. Seed s is the student's and its teacher's."""
    if any(text.startswith(("data.options.rho=", "data.name=")) for text in overrides):
        raise UserError("suite shortcuts has its own data and ρ; for others: asd distill shortcuts --set data.name=…")
    jobs: list[Job] = []
    for rho in (0.9, *RHOS[:2]):
        for kind in ("cues", *KINDS):
            name, seeds = f"shortcuts-{kind}-rho{round(100 * rho)}", SEEDS if rho == 0.9 else FEWER
            jobs += _planted(name, kind, rho, overrides, seeds, SHORTCUTS)
    return Suite("shortcuts", "shortcuts of every kind, planted: does a method hand them down?", tuple(jobs))


def weak(overrides: Sequence[str]) -> Suite:
    """A weak network, and a rewound one, in T_early's place, beside T_early itself; the dial's level is the same."""
    if any(text.startswith(("data.options.rho=", "data.name=")) for text in overrides):
        raise UserError("suite weak has its own data and ρ; for others: asd distill … --set teacher.early=weak")
    rows = [paper.KD, SuiteRow("contrast+hint", "contrast+hint", LEVELS["medium"])]
    for early in ("weak", "rewind"):
        setting = (f"teacher.early={early}",)
        rows.append(SuiteRow(f"contrast+hint-{early}", "contrast+hint", LEVELS["medium"], settings=setting))
    jobs = _planted("weak", "cues", 0.9, overrides, SEEDS, rows)
    return Suite("weak", "no early checkpoint: a weak network or a rewound one in its place", tuple(jobs))


def natural(overrides: Sequence[str]) -> Suite:
    """The dial on sets without a planted shortcut. Seed s is the student's and its teacher's."""
    if any(text.startswith("data.name=") for text in overrides):
        raise UserError("suite natural has its own data; for others: asd distill desk --set data.name=…")
    beds = {"cifar100": "desk", "cifar100-cross": "desk-cross", "cifar100-coarse": "shortcuts", "tiny-imagenet": "desk"}
    jobs: list[Job] = []
    for bed, source in beds.items():
        plain = ["data.options={}"] if source == "shortcuts" else []
        own = [f"data.name={bed.removesuffix('-cross')}", "data.val_fraction=0.1", *plain, *overrides]
        jobs += _jobs(f"natural-{bed}", source, own, FEWER, [paper.KD, DIALLED, PAID], ON_HARD, paired=True)
    return Suite("natural", "no planted shortcut: does the default method cost anything?", tuple(jobs))


def ablation(overrides: Sequence[str]) -> Suite:
    """The parts of contrast+hint at one level, one by one, and what should fall back to KD if T_early matters."""
    level, method = LEVELS["medium"], "contrast+hint"
    changes: dict[str, dict[str, Value]] = {
        "full": {}, "no-hint": {"hint": 0.0}, "no-beta": {"beta": 0.0}, "no-contrast": {"strength": 0.0},
        "hint-alone": {"strength": 0.0, "beta": 0.0}, "contrast-alone": {"hint": 0.0, "beta": 0.0},
        "guard": {"guard": True}, "tc": {"tc": 0.2}, "sharp": {"reference": "uniform"},
    }  # fmt: skip
    rows = [paper.KD, *(SuiteRow(name, method, level | change) for name, change in changes.items())]
    rows += [
        SuiteRow("untrained", method, level, "0%"),
        SuiteRow("other-seed", method, level, "15%", "seed"),
        SuiteRow("other-network", method, level, "15%", "cnn-8-64"),
    ]
    held = ["teacher.keep=[0, 15]", *overrides]
    jobs = _planted("ablation", "cues", 0.9, held, FEWER, rows)
    return Suite("ablation", "each part of contrast+hint, and controls", tuple(jobs))


def _planted(
    suite: str, kind: str, rho: float, overrides: Sequence[str], seeds: Sequence[int], rows: Sequence[SuiteRow]
) -> list[Job]:
    """A shortcut of one kind, with a teacher of its own for every seed."""
    bed = [] if kind == "cues" else [f'data.name="shortcut:cifar100-coarse?kind={kind}"']
    own = [*bed, f"data.options.rho={rho}", "data.val_fraction=0.1", *overrides]
    source = "cues" if kind == "cues" else "shortcuts"
    return _jobs(suite, source, own, seeds, rows, ON_HARD, paired=True)


def mixing(overrides: Sequence[str]) -> Suite:
    """Each method plain, with mixup and with cutmix, with the task's loss and without."""
    ends: dict[str, dict[str, Value]] = {"": {}, "-no-ce": {"task_weight": 0.0}}
    ways: dict[str, tuple[str, ...]] = {"": (), "-mixup": ("optim.mixup=0.8",), "-cutmix": ("optim.cutmix=1.0",)}
    rows = [
        SuiteRow(name + way + end, method, options | own, settings=mix)
        for name, method, options in (("kd", "kd", {}), ("asd", "asd", {}), ("contrast+hint", "contrast+hint", PLAIN))
        for way, mix in ways.items()
        for end, own in ends.items()
    ]
    jobs = _jobs("mixing", "cues", ["data.val_fraction=0.1", *overrides], FEWER, rows, ON_HARD, paired=True)
    return Suite("mixing", "mixup and cutmix where the shortcut is known", tuple(jobs))


def standard(overrides: Sequence[str]) -> Suite:
    recipe = load_recipe("standard", overrides)
    rows = {seed: STANDARD if seed in FEWER else STANDARD[:3] for seed in SEEDS}
    jobs = [job for seed in SEEDS for job in make_jobs("standard", recipe, rows[seed], [seed], ON_STANDARD, CORRUPTED)]
    return Suite(
        "standard", "resnet56 → resnet20 on all of CIFAR-100, 30 epochs, beside published numbers", tuple(jobs)
    )


def beyond_cifar(overrides: Sequence[str]) -> Suite:
    on = ("clean", "hard", "corruptions", "mechanism")
    same = [*BASE, *STRENGTHS[1:], VARIANTS[-1]]
    cross = [*BASE, STRENGTHS[2], VARIANTS[-1]]
    jobs = _jobs("beyond-cifar", "desk", overrides, SEEDS, same, on)
    jobs += _jobs("beyond-cifar-cross", "desk-cross", overrides, FEWER, cross, on)
    what = "contrast targets on real CIFAR-100, small pairs; the paper's Sec. 5.4, Beyond CIFAR-100, is table3"
    return Suite("beyond-cifar", what, tuple(jobs))


def beyond_groups(overrides: Sequence[str]) -> Suite:
    if not any(text.startswith("data.name=") for text in overrides):
        raise UserError("suite beyond-groups needs a folder with metadata.csv: add --set data.name=groups:PATH")
    rows = [*BASE, *STRENGTHS, JTT, LFF]
    jobs = _jobs("beyond-groups", "groups", overrides, SEEDS, rows, ("clean", "hard", "groups"))
    return Suite("beyond-groups", "contrast targets on a folder with a group file", tuple(jobs))


SUITES: dict[str, Callable[[Sequence[str]], Suite]] = {
    "desk": desk,
    "desk-cues": desk_cues,
    "desk-dense": desk_dense,
    "beyond-cues": beyond_cues,
    "shortcuts": shortcuts,
    "weak": weak,
    "natural": natural,
    "ablation": ablation,
    "mixing": mixing,
    "standard": standard,
    "beyond-cifar": beyond_cifar,
    "beyond-groups": beyond_groups,
    **{name: partial(paper_suite, name) for name in TABLES},
}


def open_suite(
    name: str, overrides: Sequence[str] = (), only: Sequence[str] = (), seeds: Sequence[int] = (), scale: str = "paper"
) -> Suite:
    """A suite or a part of it, with recipe settings overridden; the paper's also at desk scale."""
    known = NAMES.get(name, name)
    if scale not in SCALES:
        raise UserError(f"--scale {scale!r}{suggest(scale, SCALES)}")
    if known not in SUITES:
        raise UserError(f"no suite {name!r}{suggest(name, [*SUITES, *NAMES])}")
    if known not in TABLES and scale != "paper":
        raise UserError(f"suite {name} has one size only; --scale {scale} is for the tables of the paper")
    suite = paper_suite(known, overrides, scale) if known in TABLES else SUITES[known](overrides)
    suite = suite.only(only, seeds)
    if overrides:
        _check_rows(known, overrides, suite)
    return suite


def _check_rows(name: str, overrides: Sequence[str], suite: Suite) -> None:
    """A setting that defines a row cannot be overridden: it would be another run under the same name."""
    for job in suite.jobs:
        if job.other == job.recipe.teacher:
            raise UserError(f"suite {name}: --set makes the other teacher of {job.name} its own; use another setting")
    own = {(job.suite, job.name): _own_settings(job) for job in TABLES[name].jobs()} if name in TABLES else {}
    for key in (text.partition("=")[0].strip() for text in overrides):
        for job in suite.jobs:
            for setting in own.get((job.suite.removesuffix(MARK), job.name), ()):
                if setting == key or setting.startswith(f"{key}."):
                    own_key = f"{job.name} has its own {setting}"
                    raise UserError(f"suite {name}: {own_key}; leave --set {key} out, or choose rows with --only")


def _own_settings(job: Job) -> list[str]:
    """Settings of a row's recipe that are not its pair's, like optim.batch; the teacher's batch is everyone's."""
    pair = PAIRS[job.suite].recipe()
    return [
        f"{section}.{key}"
        for section in ("data", "teacher", "student", "optim", "task")
        for key, value in getattr(job.recipe, section)
        if value != getattr(getattr(pair, section), key) and (section, key) != ("teacher", "batch")
    ]


def describe_suites(scale: str = "paper") -> list[dict[str, Any]]:
    """Name, number of students and question of every suite."""
    rows: list[dict[str, Any]] = []
    for name in SUITES if scale == "paper" else TABLES:
        row: dict[str, Any] = {"name": name, "also": TABLES[name].also if name in TABLES else ""}
        try:
            suite = open_suite(name, scale=scale)
            rows.append(row | {"students": len(suite.jobs), "what": suite.what})
        except UserError as error:  # beyond-groups: what it needs
            if scale not in SCALES:
                raise
            rows.append(row | {"students": None, "what": str(error).partition(": ")[2]})
    return rows
