"""The paper as runs: every run of every table can be made, its settings are the text's, desk scale says what it is."""

import json
import runpy
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
import torch

from antishortcut.config.recipe import Recipe, teach_run
from antishortcut.evaluation import EVALUATIONS
from antishortcut.experiments.cost import known_sizes
from antishortcut.experiments.jobs import Job, Suite, teacher_key
from antishortcut.experiments.paper import (
    ADE,
    C100,
    DENSE,
    DESK_EPOCHS,
    DESK_ITERATIONS,
    IN100,
    MARK,
    NAMES,
    PAIRS,
    PRINTED,
    STAND_INS,
    TABLES,
    TINY,
    WARMED,
    desk,
    desk_recipe,
    find,
    of_run,
)
from antishortcut.experiments.suites import SUITES, open_suite
from antishortcut.methods import build_method, method_options, method_roles
from antishortcut.models import build, feature_shapes
from antishortcut.teachers.trajectory import snapshot_steps
from antishortcut.types import Shape, Sizes
from tests.conftest import asd, invoke
from tests.experiments.test_suites import settings

RUNS = {  # suite: students at either scale
    "table1": 120, "table2": 120, "table3": 72, "table4": 30, "table5": 144, "table6": 12, "table7": 15, "table8": 60,
    "s-table1": 24, "s-table2": 1, "s-table3": 9, "s-table4": 12, "s-table5": 12, "s-table6": 12, "s-table7": 12,
    "s-table8": 12, "s-table9": 6, "figure2": 6, "figure3": 6, "rewind": 9, "transformer": 6, "corruption-groups": 12,
    "p2-corruptions": 9, "p3-boundary": 18, "complexity": 6, "paper": 444,
}  # fmt: skip
BUILT = [name for name, pair in PAIRS.items() if pair.data != ADE]


@cache
def opened(name: str, scale: str = "paper") -> Suite:
    return open_suite(name, scale=scale)


@pytest.fixture(params=["paper", "desk"])
def scale(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def every(scale: str) -> Suite:
    """All runs of the paper at a scale, each once."""
    return opened("paper", scale)


@cache
def roles(method: str, options: str) -> tuple[str, ...]:
    return method_roles(method, json.loads(options))


def wants(job: Job) -> tuple[str, ...]:
    return roles(job.method, json.dumps(settings(job), sort_keys=True))


# --- The runs ---


def test_every_table_and_figure_has_its_suite(scale: str) -> None:
    assert list(TABLES) == list(RUNS)
    assert {name: len(opened(name, scale).jobs) for name in RUNS} == RUNS
    numbered = {number.place.partition(",")[0] for number in PRINTED if "Table" in number.place}
    assert {place.lower().replace(" ", "") for place in numbered} <= set(TABLES)
    assert not set(NAMES) & set(SUITES)
    assert opened("same-family") == opened("table1")


def test_tables_share_runs(scale: str) -> None:
    outputs: dict[str, Job] = {}
    for name in RUNS:
        for job in opened(name, scale).jobs:
            bare = job.model_copy(update={"on": ()})
            assert outputs.setdefault(job.title, bare) == bare
    assert len(outputs) == RUNS["paper"]
    title = "P1/asd-s1" if scale == "paper" else "P1-desk/asd-s1"
    (job,) = (job for job in opened("paper", scale).jobs if job.title == title)
    assert set(job.on) == {"clean", "corruptions", "mechanism", "stylized"}


def test_every_run_has_its_own_folder_and_valid_settings(every: Suite, scale: str) -> None:
    contents: dict[str, str] = {}
    for job in every.jobs:
        recipe, own = job.recipe, settings(job)  # names and types of all settings are the method's
        assert not set("/\\\0 ") & set(job.suite + job.name)
        assert set(job.on) <= set(EVALUATIONS)
        assert job.on[0] == "clean"
        assert len(set(job.on)) == len(job.on)
        for method, options in recipe.methods.items():
            method_options(method, options)
        saved = {at for names in snapshot_steps(recipe.teacher.keep, 100, 100 * recipe.epochs).values() for at in names}
        assert job.early is None or "early" in wants(job)
        assert {job.early or recipe.teacher.early, recipe.teacher.early} <= saved | {"rewind"}, job.title
        state = job.early or recipe.teacher.early if "early" in wants(job) else None
        content = json.dumps([job.suite, job.seed, job.method, own, state, recipe.optim.batch], sort_keys=True)
        assert contents.setdefault(content, job.title) == job.title  # no run has two names
    for name in RUNS:
        jobs = opened(name, scale).jobs
        titles = {job.title for job in jobs}
        assert len(titles) == len(jobs)
        rows = {(job.suite, job.name) for job in jobs}
        assert len(titles) == (1 if name == "s-table2" else 3) * len(rows)  # every row over all seeds


@cache
def shape(name: str, side: int) -> Shape:
    if name.startswith("deeplabv3-"):  # too slow to be computed: shapes alone
        with torch.device("meta"):
            return feature_shapes(build(name, 100, image_size=side), side)
    with torch.random.fork_rng(devices=[]):
        return feature_shapes(build(name, 100, image_size=side), side)


@pytest.mark.parametrize("pair", PAIRS)
def test_every_method_can_be_built_for_its_networks(pair: str, every: Suite) -> None:
    """Hints, attention maps and projectors fit the networks of the pair, at either size."""
    sides = {"cifar100": 32, "tiny-imagenet": 64, "imagenet100": 224}
    jobs = {job.name: job for job in every.jobs if job.suite.removesuffix(MARK) == pair}
    assert jobs
    labels = None if pair in DENSE else torch.arange(500) % 100
    for job in jobs.values():
        side = job.recipe.data.image_size or sides[job.recipe.data.name]
        teachers = dict.fromkeys(wants(job), shape(job.recipe.teacher.name, side))
        sizes = Sizes(100, 500, shape(job.recipe.student.name, side), teachers, labels)
        assert build_method(job.method, sizes, settings(job)) is not None


def test_rewinding_and_energy_are_those_of_the_supplement() -> None:
    recipes = {job.name: job.recipe for job in opened("s-table8").jobs}
    for name, recipe in recipes.items():
        assert recipe.optim.batch == find("S-Table 8", name, "P1", "B").mean
    assert len({teach_run(recipe, "data").hash for recipe in recipes.values()}) == 1
    teacher = next(job.recipe.teacher for job in opened("rewind").jobs if job.name == "asd-rewind")
    printed = [find("S-Sec. A.4.6", "asd-rewind", "P1", f"{what} of rewinding").mean for what in ("epochs", "rate")]
    assert (teacher.early, [teacher.rewind_epochs, teacher.rewind_lr]) == ("rewind", printed)
    states = {number.row for number in PRINTED if number.place == "S-Table 2"} - {"epoch:240"}  # which is final
    assert states <= {str(state) for state in opened("s-table2").jobs[0].recipe.teacher.keep}


def test_all_students_of_a_pair_share_one_teacher(every: Suite) -> None:
    keys = defaultdict(set)
    for job in every.jobs:
        assert len(job.teachers) == 1
        keys[job.suite].add(teacher_key(job.recipe))
    assert {len(result) for result in keys.values()} == {1}
    assert len(set.union(*keys.values())) == 7  # ResNet-34 on two data sets, WRN, ResNet-32x4, VGG, ResNet-50, DeepLab


SWEPT = {"s-table4": ("K", "directions"), "s-table5": ("ε", "margin"), "s-table6": ("M", "queue"),
         "s-table7": ("warm-up epochs", "warmup")}  # fmt: skip


@pytest.mark.parametrize("name", SWEPT)
def test_sweeps_have_the_values_of_their_table(name: str) -> None:
    measure, setting = SWEPT[name]
    place = name.replace("s-table", "S-Table ")
    for job in opened(name).jobs:
        assert settings(job)[setting] == find(place, job.name, "P1", measure).mean
        assert {key for key, value in settings(job).items() if value != method_options("asd", {})[key]} <= {setting}
    for job in opened("table7").jobs:
        share = float((job.early or job.recipe.teacher.early).rstrip("%"))
        assert share / 100 * job.recipe.epochs == find("Table 7", job.name, "P1", "T_early epoch").mean


def test_printed_rows_are_rows_of_the_suites() -> None:
    """A printed number of a run is found by the run's names."""
    for number in PRINTED:
        place = number.place.lower().replace(" ", "")
        if place in RUNS and number.row not in ("teacher", "student") and not number.row.startswith("epoch:"):
            assert (number.column, number.row) in {(job.suite, job.name) for job in opened(place).jobs}, number[:4]
    missing = {
        job.title
        for name in ("table2", "table3", "table5")
        for job in opened(name).jobs
        if not of_run(job.suite, job.name)
    }
    assert not missing


def test_docs_have_the_true_counts() -> None:
    root = Path(__file__).parents[2]
    reference = runpy.run_path(str(root / "theme" / "reference.py"))
    page = reference["complete"]((root / "docs" / "reproduce.md").read_text(encoding="utf-8"), "reproduce.md")
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    listed = {row[0].replace("`", ""): int(row[2]) for row in rows if row[2].isdigit()}
    assert listed == {f"{name}, {TABLES[name].also}".removesuffix(", "): RUNS[name] for name in RUNS}
    assert f"asd suite show table1                     # {RUNS['table1']} students" in page
    opening = page.partition("```")[0]
    assert all(f"`{name}`" in opening for name in PAIRS if not name.startswith("P"))
    assert all(words in opening for words in ("P1–P10", "P11–P13"))


# --- The protocol ---

TEXT = {  # Sec. 5.1 and S-Sec. A.5; TinyImageNet's rate and batch are inherited (decisions)
    C100: {"epochs": 240, "lr": 0.05, "batch": 64, "early": 36, "of": "cifar100 crop-flip"},
    TINY: {"epochs": 200, "lr": 0.05, "batch": 64, "early": 30, "of": "tiny-imagenet crop-flip"},
    IN100: {"epochs": 100, "lr": 0.1, "batch": 256, "early": 15, "of": "imagenet100 imagenet"},
}  # fmt: skip
ASD_TEXT = {"kd": "α_kd", "tc": "α_tc", "ss": "α_ss", "kd_temperature": "τ_kd", "temperature": "τ_c", "margin": "ε",
            "directions": "K", "queue": "M", "warmup": "warm-up epochs"}  # fmt: skip


def early_at(recipe: Recipe) -> float:
    """T_early as an epoch or iteration."""
    return float(recipe.teacher.early.rstrip("%")) / 100 * (recipe.epochs or recipe.iterations)


@pytest.mark.parametrize("name", BUILT)
def test_a_pair_has_the_settings_of_the_text(name: str) -> None:
    pair, recipe = PAIRS[name], PAIRS[name].recipe()
    optim, data = recipe.optim, recipe.data
    actual = {"epochs": recipe.epochs, "lr": optim.lr, "batch": optim.batch, "early": early_at(recipe)}
    assert actual | {"of": f"{data.name} {data.augment}"} == TEXT[pair.data]
    assert (optim.name, optim.momentum, optim.weight_decay, optim.schedule) == ("sgd", 0.9, 5e-4, "cosine")
    assert (optim.nesterov, optim.warmup, optim.label_smoothing, optim.clip) == (False, 0, 0, 0)
    assert (data.train_limit, data.test_limit, data.augmentation_cycle, data.image_size) == (None,) * 4
    assert data.val_fraction == 0
    assert (recipe.teacher.early, recipe.teacher.epochs, recipe.teacher.lr) == ("15%", None, None)
    for network, word in ((recipe.teacher.name, pair.teacher), (recipe.student.name, pair.student)):
        plain = network.removeprefix("timm:").removesuffix("_100").removesuffix("_patch16_224")
        assert plain.replace("-", "").replace("_", "") == word.lower().replace("-", "")
    own = method_options("asd", recipe.methods.get("asd", {}))
    assert {key: own[key] for key in ASD_TEXT} == {
        key: find("S-Sec. A.5", "protocol", "all", measure).mean for key, measure in ASD_TEXT.items()
    }


@pytest.mark.parametrize("name", DENSE)
def test_segmentation_has_the_settings_of_the_text(name: str) -> None:
    """Sec. 5.5; what it leaves to its citation is CIRKD's."""
    pair, recipe = PAIRS[name], PAIRS[name].recipe()
    optim, data = recipe.optim, recipe.data
    assert (recipe.iterations, recipe.epochs, data.image_size, data.augment) == (40_000, 0, 512, "scale-crop-flip")
    assert (optim.name, optim.lr, optim.momentum, optim.weight_decay) == ("sgd", 0.02, 0.9, 1e-4)
    assert (optim.batch, optim.schedule, recipe.task.aux, pair.data) == (16, "poly", 0.4, ADE)
    assert early_at(recipe) == 6_000
    own = method_options("asd", recipe.methods["asd"])
    assert round(float(own["warmup"]) / recipe.iterations * 240) == 20
    message = {n.measure: n.mean for n in PRINTED if n.row == "protocol" and n.column == ADE}
    printed = [message[name] for name in ("image size", "iterations", "momentum", "rate")]
    assert printed == [512, 40_000, 0.9, 0.02]
    assert recipe.teacher.name.endswith(pair.teacher.lower().replace("-", ""))
    assert recipe.student.name.endswith(pair.student.lower().replace("-", ""))
    assert recipe.teacher.pretrained
    assert recipe.student.pretrained


# --- The command ---


def show(*words: str) -> str:
    return invoke("suite", "show", *words).stdout


def test_show_prints_the_papers_hours() -> None:
    assert "540 A100-hours" in show("table1")
    assert "A100" not in show("table6", "--scale", "desk")
    assert "A100" not in show("table6", "--set", "epochs=3")
    assert "A100" not in show("beyond-cifar")
    assert "left out" not in show("table6")
    message = " ".join(show("paper").split())  # 336 × 4.5 h and 72 × 75 / 9 h
    assert "2,112 A100-hours as the paper counts (" in message
    assert "not counted; 36 runs that it gives no hours for are left out)" in message
    assert "batch=32" in show("s-table8")
    assert "rewind" in show("rewind", "--only", "asd-rewind")


def test_list_and_status_at_desk_scale(tmp_path: Path) -> None:
    listed = {row["name"]: row for row in asd("suite", "list", "--scale", "desk")}
    assert {name: row["students"] for name, row in listed.items()} == RUNS
    assert all("desk scale" in row["what"] for row in listed.values())
    message = asd("suite", "status", "table6", "--scale", "desk", "--runs", str(tmp_path))
    assert set(message) == {
        f"P1-desk/{name}-s{s}" for name in ("kd", "asd-no-ss", "asd-no-tc", "asd") for s in (1, 2, 3)
    }


# --- Desk scale ---


def test_desk_scale_changes_only_sizes() -> None:
    for name in RUNS:
        for whole, cut in zip(opened(name).jobs, opened(name, "desk").jobs, strict=True):
            assert cut.suite == whole.suite + "-desk"
            assert "desk scale" in cut.recipe.title
            saved = ("name", "seed", "method", "early", "on")
            assert [getattr(cut, key) for key in saved] == [getattr(whole, key) for key in saved]
            assert cut.recipe.optim == whole.recipe.optim
            assert cut.recipe.teacher.early == whole.recipe.teacher.early
            assert cut.recipe.data.name == whole.recipe.data.name
            assert (cut.recipe.epochs, cut.recipe.iterations) in ((DESK_EPOCHS, 0), (0, DESK_ITERATIONS))
            assert bool(cut.recipe.epochs) == bool(whole.recipe.epochs)
            assert not cut.recipe.teacher.pretrained
            assert cut.recipe.data.train_limit is not None
            same = {key: value for key, value in settings(whole).items() if key != "warmup"}
            assert {key: value for key, value in settings(cut).items() if key != "warmup"} == same


def test_desk_shortens_what_counts_epochs() -> None:
    for job in opened("paper").jobs:
        dense = job.recipe.iterations
        share, cut = DESK_ITERATIONS / dense if dense else DESK_EPOCHS / job.recipe.epochs, desk(job)
        assert ("warmup" in settings(job)) == (job.method in WARMED)
        if job.method in WARMED:
            assert method_options(job.method, {})["warmup"] == WARMED[job.method]
            assert settings(cut)["warmup"] == pytest.approx(settings(job)["warmup"] * share)
    teacher = desk_recipe(PAIRS["P1"].recipe()).teacher
    assert teacher.rewind_epochs == 1
    assert teacher.keep[-1] == "epoch:10.5"  # 210 of 240


def test_settings_come_after_the_scale() -> None:
    jobs = open_suite("table6", ["epochs=2", "data.train_limit=500"], scale="desk").jobs
    assert {(job.recipe.epochs, job.recipe.data.train_limit) for job in jobs} == {(2, 500)}
    assert {job.recipe.epochs for job in open_suite("table1", ["epochs=2"]).jobs} == {2}


@cache
def parameters(name: str, classes: int) -> int:
    with torch.device("cpu" if ":" in name else "meta"):
        network = build(name, classes, image_size=32)
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", PAIRS)
def test_students_are_smaller_than_their_teachers(name: str) -> None:
    """At either size."""
    whole = PAIRS[name].recipe()
    assert {whole.teacher.name, whole.student.name} <= set(STAND_INS)
    for recipe in (whole, desk_recipe(whole)):
        classes = known_sizes()[recipe.data.name].classes
        assert parameters(recipe.student.name, classes) < 0.8 * parameters(recipe.teacher.name, classes)
