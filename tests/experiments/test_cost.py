"""What a suite costs: steps are counted as the loader counts them, each kind is measured once, sums are as by hand."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from antishortcut.config.recipe import (
    DataSettings,
    Execution,
    ModelSettings,
    Run,
    TaskSettings,
    distill_run,
    rewind_run,
    teach_run,
)
from antishortcut.data import DATASETS, open_sets
from antishortcut.data.datasets import WITH_PATH, TrainingSize
from antishortcut.data.loader import _ends
from antishortcut.data.readers import class_list
from antishortcut.errors import UserError
from antishortcut.experiments import benchmark as bench
from antishortcut.experiments.benchmark import Stopwatch
from antishortcut.experiments.cost import StepGroup, known_sizes, measured_cost, size_of, steps_of, trainings
from antishortcut.experiments.jobs import Job, teacher_key
from antishortcut.experiments.suites import open_suite
from antishortcut.methods import method_options
from antishortcut.run_dir import RunDir
from antishortcut.types import is_dense
from tests.conftest import asd, invoke
from tests.data.official import make_ade, make_camvid, make_cifar, make_folder, make_masked


@dataclass
class Fake:
    """A clock that knows beforehand what a step takes: students one millisecond, teachers ten."""

    broken: str = ""  # a method that fails
    machine: str = "an abacus"
    groups: list[StepGroup] = field(default_factory=list)

    def seconds(self, group: StepGroup) -> float:
        self.groups.append(group)
        if group.method == self.broken:
            raise RuntimeError("out of memory\nand much more")
        return 0.001 if group.teacher else 0.01


# --- Sizes and numbers of steps ---


@pytest.mark.parametrize("batch", [1, 2, 7, 32])
def test_steps_are_counted_as_the_loader_counts_them(batch: int) -> None:
    for images in range(1, 70):
        assert steps_of(images, batch) == len(_ends(images, batch, 1, True, False))


@pytest.mark.parametrize("name", ["cues", "cues-seg"])
@pytest.mark.parametrize("change", [{"image_size": 48}, {"val_fraction": 0.33, "train_limit": 20}])
def test_sizes_of_embedded_images_are_those_of_the_data(name: str, change: dict[str, Any]) -> None:
    data = DataSettings(name=name, options={"count": 41, "test_count": 10}, **change)
    sets = open_sets(name, None, options=data.options, **change)
    size = {"images": len(sets.train), "classes": len(sets.classes), "side": sets.image_size}
    assert size_of(data) == TrainingSize(**size, dense=is_dense(sets.train))


def test_sizes_of_known_sets_are_those_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(known_sizes()) == DATASETS.keys() - set(WITH_PATH)
    assert known_sizes()["imagenet100"].classes == len(class_list("imagenet100"))
    camvid = make_camvid(tmp_path / "camvid", size=(480, 360))
    for name, root in (("ade20k", make_ade(tmp_path)), ("camvid", camvid.parent)):
        known, sets = known_sizes()[name], open_sets(name, root)
        assert (known.classes, known.side, known.dense) == (len(sets.classes), sets.image_size, is_dense(sets.train))
    split = {"val_fraction": 0.2, "train_limit": 7}
    sets = open_sets("cifar100", make_cifar(tmp_path), **split)  # type: ignore[arg-type]
    sizes = {"cifar100": TrainingSize(images=15, classes=3, side=32)}
    monkeypatch.setattr("antishortcut.experiments.cost.known_sizes", lambda: sizes)
    result = size_of(DataSettings.model_validate({"name": "cifar100"} | split))
    assert result == TrainingSize(images=len(sets.train), classes=len(sets.classes), side=32)


@pytest.fixture(scope="module")
def clock() -> Stopwatch:
    return Stopwatch(Execution(accelerator="cpu", threads=1))


@pytest.mark.parametrize("make", [make_folder, make_masked])
def test_images_of_a_folder_are_counted(tmp_path: Path, make: Any) -> None:
    data = DataSettings(name=f"folder:{make(tmp_path)}", image_size=16)
    sets = open_sets(data.name, None, image_size=16)
    assert size_of(data) == (len(sets.train), len(sets.classes), 16, is_dense(sets.train))
    with pytest.raises(UserError, match="nowhere"):
        measured_cost(open_suite("beyond-groups", ["data.name=groups:nowhere"]).jobs, tmp_path, Fake())


# --- Which trainings ---


def test_table_1_has_forty_kinds_of_students_and_each_teacher_once(tmp_path: Path) -> None:
    jobs = open_suite("table1").jobs
    result = trainings(jobs, tmp_path)
    students, teachers = ([training for training in result if training.teacher is kind] for kind in (False, True))
    assert [training.title for training in students] == [job.title for job in jobs]
    assert len({str(training.group.model_dump()) for training in students}) == 5 * 8
    assert len(teachers) == len({teacher_key(job.recipe) for job in jobs}) == 4  # P2 and P4 share WRN-40-2
    assert {training.suite for training in teachers} == {"P1", "P2", "P3", "P5"}
    assert {training.steps for training in result} == {240 * 782}  # 781 batches of 64, and one of 16


def test_steps_of_equal_cost_are_one_group(tmp_path: Path) -> None:
    jobs = [job for job in open_suite("beyond-cues", seeds=[1]).jobs if job.suite == "beyond-cues"]
    result = {t.title.split("/")[-1][:-3]: t for t in trainings(jobs, tmp_path) if not t.teacher}
    group = result["contrast-1"].group
    assert all(result[name].group == group for name in ("other-seed", "early-2", "untrained"))
    other = result["other-network"].group
    assert other.other is not None
    assert (other.other.name, other == group) == ("cnn-8-64", False)
    assert result["contrast-1"].steps == 12 * 113  # 7,200 of 8,000 images


def test_a_teacher_has_its_own_epochs_and_batch(tmp_path: Path) -> None:
    result = trainings(open_suite("s-table8", only=["asd-b256"], seeds=[1]).jobs, tmp_path)
    expected = {(True, 240 * 782, 64), (False, 240 * 196, 256)}
    assert {(training.teacher, training.steps, training.group.batch) for training in result} == expected
    result = trainings(open_suite("desk-cues", only=["kd"], seeds=[1]).jobs, tmp_path)
    assert {(training.teacher, training.steps) for training in result} == {(True, 14 * 113), (False, 12 * 113)}


def test_rewinding_and_iterations_are_counted(tmp_path: Path) -> None:
    result = trainings(open_suite("rewind").jobs, tmp_path)
    assert [(training.title, training.steps) for training in result if training.teacher] == [
        ("teacher resnet34 s0 of P1", 240 * 782),
        ("teacher resnet34 s0 of P1, rewound", 10 * 782),
    ]
    (job,) = open_suite("desk-cues", only=["kd"], seeds=[1]).jobs
    teacher = job.recipe.teacher.model_copy(update={"epochs": None, "early": "rewind", "rewind_epochs": 30})
    recipe = job.recipe.model_copy(update={"epochs": 0, "iterations": 700, "teacher": teacher})
    result = trainings([job.model_copy(update={"recipe": recipe})], tmp_path)
    assert [training.steps for training in result] == [700, 30, 700]


def finish(run: Run, runs: Path) -> None:
    folder = RunDir(run.folder(runs))
    folder.begin(run, {}, {})
    scores = {"accuracy": 0.5, "epoch": 1.0}
    result = {"set": "test", "primary_metric": "accuracy", "last": scores, "best": scores}
    folder.finish({"seconds": 1.0, "steps": 1} | result)


def student_of(job: Job, teacher: Run) -> Run:
    names = {"suite": job.suite, "name": job.name, "seed": job.seed, "method": job.method}
    states = {"roles": {"final": "final"}, "early": "15%", "teacher": teacher.hash}
    options = method_options(job.method, {})
    return distill_run(job.recipe, "some images", options=options, **names, **states)  # type: ignore[arg-type]


def test_finished_trainings_are_not_counted(tmp_path: Path) -> None:
    jobs = open_suite("rewind").jobs
    before = [training.title for training in trainings(jobs, tmp_path)]
    rewound = next(job for job in jobs if job.name == "asd-rewind")
    teacher = teach_run(rewound.recipe, "some images")
    finish(teacher, tmp_path)
    finish(rewind_run(teacher, 10, 0.05), tmp_path)
    finish(student_of(jobs[0], teacher), tmp_path)
    finish(teach_run(open_suite("table2").jobs[0].recipe, "some images"), tmp_path)  # of another suite
    (tmp_path / "teachers" / "damaged").mkdir()
    (tmp_path / "teachers" / "damaged" / "result.json").write_text("{}")
    after = [training.title for training in trainings(jobs, tmp_path)]
    name = "teacher resnet34 s0 of P1"
    assert set(before) - set(after) == {name, f"{name}, rewound", jobs[0].title}


# --- Sums ---


def test_hours_equal_those_computed_by_hand(tmp_path: Path) -> None:
    clock = Fake()
    cost = measured_cost(open_suite("table1").jobs, tmp_path, clock)
    assert len(clock.groups) == 40 + 4
    assert [(row.suite, row.students, row.teachers) for row in cost.rows] == [
        (f"P{number}", 24, int(number != 4)) for number in range(1, 6)
    ]
    assert cost.rows[0].student_hours == pytest.approx(24 * 240 * 782 * 0.001 / 3600)
    assert cost.rows[0].teacher_hours == pytest.approx(240 * 782 * 0.01 / 3600)
    assert cost.hours == pytest.approx((120 * 0.001 + 4 * 0.01) * 240 * 782 / 3600)
    assert cost.left_out == ()


def test_a_group_that_fails_is_left_out(tmp_path: Path) -> None:
    jobs = open_suite("table6").jobs
    cost = measured_cost(jobs, tmp_path, Fake(broken="kd"))
    assert cost.left_out == tuple((f"P1/kd-s{seed}", "out of memory") for seed in (1, 2, 3))
    assert cost.rows[0].students == len(jobs) - 3


# --- A real measurement ---

TINY = {
    "network": ModelSettings(name="cnn-2-16"),
    "teacher": ModelSettings(name="cnn-4-16"),
    "method": "kd",
    "optimizer": "sgd",
    "batch": 4,
    "augment": "none",
    "size": TrainingSize(images=50, classes=5, side=16),
}
DENSE = {
    "network": ModelSettings(name="dense-2"),
    "teacher": ModelSettings(name="dense-4"),
    "size": TrainingSize(images=50, classes=5, side=32, dense=True),
    "task": TaskSettings(samples=20),
}


@pytest.mark.parametrize(
    "change",
    [
        {"method": "ce", "teacher": None, "optimizer": "adamw"},
        {"method": "asd", "options": {"subspace": "dataset", "queue": 16}},
        {"method": "contrast", "other": ModelSettings(name="cnn-8-16")},
        {"method": "contrast+tc", "other": ModelSettings(name="cnn-2-8"), "weak": True},
        {"method": "asd", "other": ModelSettings(name="cnn-2-8"), "weak": True},
        {"method": "crd+kd", "accumulate": 2, "augment": "crop-flip"},
        {"augment": "imagenet", "size": TrainingSize(images=50, classes=5, side=40)},
        DENSE | {"method": "ce", "teacher": None, "optimizer": "adamw", "augment": "crop"},
        DENSE | {"method": "asd", "options": {"subspace": "dataset", "queue": 16}, "augment": "scale-crop-flip"},
        DENSE | {"method": "afdcd"},
    ],
)
def test_every_kind_of_step_can_be_measured(clock: Stopwatch, change: dict[str, Any]) -> None:
    assert clock.seconds(StepGroup.model_validate(TINY | change)) > 0


# --- The command ---


def test_show_measures_on_request(tmp_path: Path) -> None:
    small = [word for text in ("data.options.count=64", "optim.batch=8") for word in ("--set", text)]
    words = ["suite", "show", "desk-cues", *small, "--only", "kd", "--runs", str(tmp_path)]
    assert "add --measure for the hours on this machine" in invoke(*words).stdout
    assert isinstance(asd(*words), list)
    printed = invoke(*words, "--measure", "--device", "cpu", "--threads", "1").stdout
    assert "one after the other" in printed
    assert "evaluation is not counted" in printed


def test_json_has_the_papers_hours_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "Stopwatch", lambda execution: Fake())
    words = ["suite", "show", "table6", "--runs", str(tmp_path)]
    result = asd(*words, "--measure")
    assert result["paper"] == {"a100_hours": 54.0, "left_out": 0}
    assert result["runs"] == asd(*words)
    cost = result["cost"]
    assert (cost["estimate"], cost["machine"], [row["suite"] for row in cost["pairs"]]) == (True, "an abacus", ["P1"])
    assert cost["hours"] == pytest.approx(cost["pairs"][0]["student_hours"] + cost["pairs"][0]["teacher_hours"])
