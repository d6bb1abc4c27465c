"""What a suite costs: steps are counted as the loader counts them, groups measured once, sums as by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antishortcut.cli import app
from antishortcut.cost import Cost, Group, Machine, Measured, Size, known_cost, measured_cost, pieces, read_book
from antishortcut.cost import groups as sizes
from antishortcut.cost import measure as stopwatch
from antishortcut.cost.groups import size_of, steps_of
from antishortcut.cost.measure import Stopwatch
from antishortcut.data import DATASETS, open_sets
from antishortcut.data.layouts import class_list
from antishortcut.data.loading import _ends
from antishortcut.data.sources import WITH_PATH
from antishortcut.errors import UserError
from antishortcut.folder import Folder
from antishortcut.run import (
    DataSettings,
    Execution,
    ModelSettings,
    Run,
    TaskSettings,
    distill_run,
    rewind_run,
    teach_run,
)
from antishortcut.suites import Job, open_suite, teacher_key
from antishortcut.tasks import Segmentation
from antishortcut.types import Batch, Features, ImageSet, Task, is_dense
from tests.data.official import make_ade, make_camvid, make_cifar, make_folder, make_masked

MACHINE = Machine(device="an abacus", threads=3, precision="32-true", torch="0.0")
OTHER = MACHINE.model_copy(update={"device": "a slide rule"})


@dataclass
class Fake:
    """A clock that knows beforehand what a step takes: students one millisecond, teachers ten."""

    machine: Machine = MACHINE
    broken: str = ""  # a method that fails
    factor: float = 1.0
    share: float = 1.0
    asked: list[Group] = field(default_factory=list)

    def step(self, group: Group) -> Measured:
        self.asked.append(group)
        if group.method == self.broken:
            raise RuntimeError("out of memory\nand much more")
        return Measured(self.factor * (0.001 if group.teacher else 0.01), 5, self.share)

    def count(self, data: DataSettings) -> Size:
        if not data.name.endswith("there"):
            raise UserError(f"{data.name}: no such folder")
        return Size(images=1000, classes=7, side=224)


# --- how many steps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 7, 32])
def test_steps_are_the_loaders(batch: int) -> None:
    for images in range(1, 70):
        assert steps_of(images, batch) == len(_ends(images, batch, 1, True, False))


@pytest.mark.parametrize(
    "change", [{}, {"val_fraction": 0.1}, {"train_limit": 50}, {"val_fraction": 0.33, "train_limit": 80}]
)
@pytest.mark.parametrize("more", [{}, {"image_size": 16}])
def test_sizes_of_cues_are_the_sources(change: dict[str, Any], more: dict[str, Any]) -> None:
    data = DataSettings(name="cues", options={"count": 101, "test_count": 10}, **change, **more)
    sets = open_sets("cues", None, options=data.options, **change, **more)
    assert size_of(data, {}) == Size(images=len(sets.train), classes=len(sets.classes), side=sets.image_size)


def test_sizes_of_scenes_are_the_sources(tmp_path: Path) -> None:
    options = {"count": 41, "test_count": 3}
    changes: list[dict[str, Any]] = [{"image_size": 48}, {"train_limit": 9}]
    for more in changes:
        sets = open_sets("cues-seg", None, options=options, **more)
        found = size_of(DataSettings(name="cues-seg", options=options, **more), {})
        size = {"images": len(sets.train), "classes": len(sets.classes), "side": sets.image_size}
        assert found == Size(**size, dense=is_dense(sets.train))
    camvid = make_camvid(tmp_path / "camvid", size=(480, 360))
    for name, root in (("ade20k", make_ade(tmp_path)), ("camvid", camvid.parent)):
        known, sets = sizes.KNOWN[name], open_sets(name, root)
        assert (known.classes, known.side, known.dense) == (len(sets.classes), sets.image_size, is_dense(sets.train))


@pytest.mark.parametrize(
    ("name", "make", "size"),
    [
        ("cues", "cues.make_cues", {"classes": 10, "side": 32}),
        ("cues-seg", "cues_seg.make_scenes", {"classes": 11, "side": 64, "dense": True}),
    ],
)
def test_cues_have_the_sources_default(
    monkeypatch: pytest.MonkeyPatch, name: str, make: str, size: dict[str, Any]
) -> None:
    asked = []
    monkeypatch.setattr(f"antishortcut.data.{make}", lambda split, count, **_: asked.append(count))
    with pytest.raises(AttributeError):  # nothing was made
        open_sets(name, None)
    assert size_of(DataSettings(name=name), {}) == Size(images=asked[0], **size)


@pytest.mark.parametrize("change", [{}, {"val_fraction": 0.1}, {"val_fraction": 0.2, "train_limit": 7}])
def test_splits_of_cifar_are_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """Of a made-up one; the real one has 500 images of each of 100 classes."""
    sets = open_sets("cifar100", make_cifar(tmp_path), **change)
    assert sizes.KNOWN["cifar100"] == Size(images=100 * 500, classes=100, side=sets.image_size)
    monkeypatch.setitem(sizes.KNOWN, "cifar100", Size(images=15, classes=3, side=32))
    found = size_of(DataSettings(name="cifar100", **change), {})
    assert found == Size(images=len(sets.train), classes=len(sets.classes), side=32)


def test_known_sources_are_there() -> None:
    assert set(sizes.KNOWN) == DATASETS.keys() - set(WITH_PATH)
    assert sizes.KNOWN["imagenet100"].classes == len(class_list("imagenet100"))
    assert size_of(DataSettings(name="folder:here"), {}) is None
    small = size_of(DataSettings(name="tiny-imagenet", image_size=32), {})
    assert small == Size(images=100_000, classes=200, side=32)


@pytest.mark.parametrize("held", ["val", None])
def test_a_folder_is_counted(tmp_path: Path, held: str | None) -> None:
    data = DataSettings(name=f"folder:{make_folder(tmp_path, held, 7)}", val_fraction=0.2, image_size=16)
    sets = open_sets(data.name, None, val_fraction=0.2, image_size=16)
    counted = Stopwatch(Execution(accelerator="cpu", threads=1)).count(data)
    found = size_of(data, {data.name: counted})
    assert found == Size(images=len(sets.train), classes=len(sets.classes), side=16)


def test_a_folder_of_scenes_is_counted(tmp_path: Path, quick: Stopwatch) -> None:
    data = DataSettings(name=f"folder:{make_masked(tmp_path)}", image_size=16)
    counted = quick.count(data)
    assert counted == Size(images=4, classes=3, side=16 * (30 // 16), dense=True)
    assert size_of(data, {data.name: counted}) == counted.model_copy(update={"side": 16})


# --- groups ------------------------------------------------------------------------------------------------------


def test_table_1_has_forty_kinds_of_students_and_each_teacher_once(tmp_path: Path) -> None:
    jobs = open_suite("table1").jobs
    found = pieces(jobs, {}, tmp_path)
    students, teachers = ([piece for piece in found if piece.teaches is kind] for kind in (False, True))
    assert [piece.title for piece in students] == [job.title for job in jobs]
    assert len({piece.group.key for piece in students if piece.group}) == 5 * 8
    assert len(teachers) == len({teacher_key(job.recipe) for job in jobs}) == 4  # P2 and P4 share WRN-40-2
    assert {piece.suite for piece in teachers} == {"P1", "P2", "P3", "P5"}
    assert {piece.steps for piece in found} == {240 * 782}  # 781 batches of 64, and one of 16
    assert not any(piece.done for piece in found)


def test_what_costs_the_same_is_one_group(tmp_path: Path) -> None:
    jobs = {job.name: job for job in open_suite("beyond-cues", seeds=[1]).jobs if job.suite == "beyond-cues"}
    one = {p.title.split("/")[-1][:-3]: p for p in pieces(jobs.values(), {}, tmp_path) if not p.teaches and p.group}
    same = [one[name].group for name in ("contrast-1", "other-seed", "early-2", "untrained")]
    assert all(group == same[0] for group in same)
    other = one["other-network"].group
    assert other is not None
    assert other.other is not None
    assert (other.other.name, other == same[0]) == ("cnn-8-64", False)
    assert one["contrast-1"].steps == 12 * 113  # 7,200 of 8,000 images


def test_a_teacher_has_its_own_epochs_and_batch(tmp_path: Path) -> None:
    found = pieces(open_suite("s-table8", only=["asd-b256"], seeds=[1]).jobs, {}, tmp_path)
    assert {(p.teaches, p.steps, p.group.batch) for p in found if p.group} == {
        (True, 240 * 782, 64),
        (False, 240 * 196, 256),
    }
    found = pieces(open_suite("desk-cues", only=["kd"], seeds=[1]).jobs, {}, tmp_path)
    assert {(p.teaches, p.steps) for p in found} == {(True, 14 * 113), (False, 12 * 113)}


def test_rewinding_is_a_teachers_training_too(tmp_path: Path) -> None:
    found = pieces(open_suite("rewind").jobs, {}, tmp_path)
    assert [(p.title, p.steps) for p in found if p.teaches] == [
        ("teacher resnet34 s0 of P1", 240 * 782),
        ("teacher resnet34 s0 of P1, rewound", 10 * 782),
    ]


def test_iterations_are_steps(tmp_path: Path) -> None:
    (job,) = open_suite("desk-cues", only=["kd"], seeds=[1]).jobs
    teacher = job.recipe.teacher.model_copy(update={"epochs": None, "early": "rewind", "rewind_epochs": 30})
    recipe = job.recipe.model_copy(update={"epochs": 0, "iterations": 700, "teacher": teacher})
    found = pieces([job.model_copy(update={"recipe": recipe})], {}, tmp_path)
    assert [piece.steps for piece in found] == [700, 30, 700]


def test_what_is_not_measured_yet_is_left_out(tmp_path: Path, quick: Stopwatch) -> None:
    cost = measured_cost(open_suite("desk-cues", ["data.name=elsewhere"], ["kd"], [1]).jobs, tmp_path, quick)
    assert [title for title, _ in cost.left_out] == ["teacher cnn-32-64 s1 of desk-cues", "desk-cues/kd-s1"]
    assert {why.partition(";")[0] for _, why in cost.left_out} == {"steps on elsewhere are not measured yet"}


@pytest.mark.parametrize("suite", ["table4", "desk-dense"])
def test_steps_of_scenes_are_counted(tmp_path: Path, suite: str) -> None:
    jobs, clock = open_suite(suite).jobs, Fake()
    cost = measured_cost(jobs, tmp_path, clock)
    assert cost.left_out == ()
    assert (cost.all.students, cost.all.teachers) == ((30, 1) if suite == "table4" else (36, 4))
    assert all(group.size.dense and group.task is not None for group in clock.asked)
    assert cost.all.student_hours == pytest.approx(sum(job.recipe.iterations for job in jobs) * 0.001 / 3600)


def test_another_number_of_locations_is_another_group(tmp_path: Path) -> None:
    one, two = (
        pieces(open_suite("desk-dense", [f"task.rows={rows}"], ["desk-camvid/kd"], [1]).jobs, {}, tmp_path)[-1].group
        for rows in (8, 16)
    )
    assert one is not None
    assert two is not None
    assert one.key != two.key
    (plain,) = pieces(open_suite("desk-cues", only=["kd"], seeds=[1]).jobs, {}, tmp_path)[1:]
    assert plain.group is not None
    assert plain.group.task is None  # where there are no locations, they make no difference


# --- sums --------------------------------------------------------------------------------------------------------


def test_hours_as_by_hand(tmp_path: Path) -> None:
    clock = Fake()
    cost = measured_cost(open_suite("table1").jobs, tmp_path, clock)
    assert len(clock.asked) == 40 + 4
    whole = cost.all
    assert (whole.students, whole.teachers, whole.done) == (120, 4, 0)
    assert whole.student_hours == pytest.approx(120 * 240 * 782 * 0.001 / 3600)
    assert whole.teacher_hours == pytest.approx(4 * 240 * 782 * 0.01 / 3600)
    assert [row.suite for row in cost.rows] == ["P1", "P2", "P3", "P4", "P5"]
    assert [row.teacher_hours for row in cost.rows] == pytest.approx([0.52133, 0.52133, 0.52133, 0, 0.52133], abs=1e-5)
    assert {round(row.student_hours, 5) for row in cost.rows} == {1.2512}
    assert cost.left_out == ()


def test_what_was_measured_is_kept_and_used(tmp_path: Path) -> None:
    jobs = open_suite("desk", seeds=[1]).jobs
    assert known_cost(jobs, tmp_path) is None
    first = measured_cost(jobs, tmp_path, Fake())
    assert known_cost(jobs, tmp_path) == first
    measured_cost(open_suite("table6").jobs, tmp_path, Fake(OTHER))
    assert known_cost(jobs, tmp_path) == first  # the machine measured last knows nothing of these
    second = measured_cost(jobs, tmp_path, Fake(OTHER, factor=2.0))
    third = known_cost(jobs, tmp_path)
    assert third == second
    assert third is not None
    assert third.machine == OTHER
    assert third.all.hours == pytest.approx(2 * first.all.hours)
    count = len(read_book(tmp_path).timings)
    measured_cost(jobs, tmp_path, Fake(OTHER))
    assert len(read_book(tmp_path).timings) == count  # in place of the older ones


def test_a_part_that_is_not_measured_is_left_out(tmp_path: Path) -> None:
    measured_cost(open_suite("desk", only=["kd"], seeds=[1]).jobs, tmp_path, Fake())
    cost = known_cost(open_suite("desk", only=["kd", "dkd"], seeds=[1]).jobs, tmp_path)
    assert cost is not None
    assert cost.all.students == 2
    assert [title for title, _ in cost.left_out] == ["desk/dkd-s1", "desk-cross/dkd-s1"]


def test_a_group_that_fails_is_said_and_left_out(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    jobs = open_suite("table6").jobs
    cost = measured_cost(jobs, tmp_path, Fake(broken="kd"), lambda *words: told.append(words))
    assert cost.left_out == tuple((f"P1/kd-s{seed}", "out of memory") for seed in (1, 2, 3))
    assert cost.all.students == len(jobs) - 3
    assert [words[:2] for words in told] == [(number, 5) for number in range(6)]
    assert [words[2] for words in told if words[2]] == ["kd, resnet34 → resnet18: out of memory"]


def test_a_failure_now_is_not_hidden_by_a_number_from_before(tmp_path: Path) -> None:
    jobs = open_suite("table6", only=["kd"]).jobs
    measured_cost(jobs, tmp_path, Fake())
    assert measured_cost(jobs, tmp_path, Fake(broken="kd")).all.students == 0


@pytest.mark.parametrize(("place", "known"), [("there", True), ("nowhere", False)])
def test_folders_are_counted_when_measuring(tmp_path: Path, place: str, known: bool) -> None:
    jobs = open_suite("beyond-groups", [f"data.name=groups:{place}"]).jobs
    cost = measured_cost(jobs, tmp_path, Fake())
    assert bool(cost.rows) is known
    assert {why for _, why in cost.left_out} == (set() if known else {"groups:nowhere: no such folder"})
    later = known_cost(jobs, tmp_path)
    assert later == (cost if known else None)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '{"timings": 3, "sizes": 4}', '{"timings": [1, {}], "sizes": {"x": {}}}', "\x00\xff"],
)
def test_a_damaged_file_is_made_again(tmp_path: Path, content: str) -> None:
    path, jobs = tmp_path / "steps.json", open_suite("desk", only=["kd"], seeds=[1]).jobs
    path.write_bytes(content.encode("latin-1"))
    assert known_cost(jobs, tmp_path) is None
    cost = measured_cost(jobs, tmp_path, Fake())
    assert known_cost(jobs, tmp_path) == cost
    tree = json.loads(path.read_text())
    tree["timings"][0]["seconds"] = -1  # one that cannot be
    path.write_text(json.dumps(tree))
    assert len(read_book(tmp_path).timings) == len(tree["timings"]) - 1


# --- what is done ------------------------------------------------------------------------------------------------


def finish(run: Run, runs: Path) -> None:
    folder = Folder(run.folder(runs))
    folder.begin(run, {}, {})
    folder.finish({"seconds": 1.0, "steps": 1})


def student_of(job: Job, teacher: Run) -> Run:
    names = {"suite": job.suite, "name": job.name, "seed": job.seed, "method": job.method}
    more = {"options": job.options, "roles": {}, "early": "15%", "teacher": teacher.hash}
    return distill_run(job.recipe, "some images", **names, **more)  # type: ignore[arg-type]


def test_finished_runs_are_done(tmp_path: Path) -> None:
    jobs = open_suite("rewind").jobs
    before = measured_cost(jobs, tmp_path, Fake()).all
    rewound = next(job for job in jobs if job.name == "asd-rewind")
    teacher = teach_run(rewound.recipe, "some images")
    finish(teacher, tmp_path)
    finish(rewind_run(teacher, 10, 0.05), tmp_path)
    finish(student_of(jobs[0], teacher), tmp_path)
    finish(teach_run(open_suite("table2").jobs[0].recipe, "some images"), tmp_path)  # of another suite
    (tmp_path / "teachers" / "damaged").mkdir()
    (tmp_path / "teachers" / "damaged" / "result.json").write_text("{}")
    cost = known_cost(jobs, tmp_path)
    assert cost is not None
    assert (before.done, cost.all.done) == (0, 3)
    assert cost.all.hours == pytest.approx(before.hours)
    by_hand = (240 * 782 * 0.01 + 10 * 782 * 0.01 + 240 * 782 * 0.001) / 3600
    assert cost.all.done_hours == pytest.approx(by_hand)


# --- a real measurement ------------------------------------------------------------------------------------------

SMALL = ("data.options.count=64", "optim.batch=8", "methods.asd.queue=16")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    monkeypatch.setattr(stopwatch, "STEPS", 2)
    return Stopwatch(Execution(accelerator="cpu", threads=1))


def test_steps_are_measured_kept_and_used_again(tmp_path: Path, quick: Stopwatch) -> None:
    jobs = open_suite("desk-cues", SMALL, ["kd", "asd"], [1]).jobs
    assert {job.recipe.student.name for job in jobs} == {"cnn-8-64"}
    cost = measured_cost(jobs, tmp_path, quick)
    assert cost.left_out == ()
    assert (cost.all.students, cost.all.teachers) == (2, 1)
    assert cost.all.student_hours > 0
    assert cost.all.teacher_hours > 0
    assert known_cost(jobs, tmp_path) == cost
    assert {timing.steps for timing in read_book(tmp_path).timings} == {2}


def group(**change: Any) -> Group:
    tiny = {"network": ModelSettings(name="cnn-2-16"), "teacher": ModelSettings(name="cnn-4-16"), "batch": 4}
    return Group.model_validate(tiny | {"method": "kd", "size": Size(images=50, classes=5, side=16)} | change)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "ce", "teacher": None, "optimizer": "adamw"},
        {"method": "asd", "options": {"subspace": "dataset", "queue": 16}},
        {"method": "contrast", "other": ModelSettings(name="cnn-8-16")},
        {"method": "crd+kd", "accumulate": 2, "augment": "crop-flip"},
        {"augment": "imagenet", "size": Size(images=50, classes=5, side=40)},
    ],
)
def test_every_kind_of_step_can_be_measured(quick: Stopwatch, change: dict[str, Any]) -> None:
    found = quick.step(group(**change))
    assert found.seconds > 0
    assert found.steps in (1, 2)
    assert 0 <= found.share <= 1


DENSE = {
    "network": ModelSettings(name="dense-2"),
    "teacher": ModelSettings(name="dense-4"),
    "size": Size(images=50, classes=5, side=32, dense=True),
    "task": TaskSettings(rows=20),
}


@pytest.mark.parametrize(
    "change",
    [
        {"method": "ce", "teacher": None, "optimizer": "adamw", "augment": "crop"},
        {"method": "kd", "augment": "scale-crop-flip"},
        {"method": "asd", "options": {"subspace": "dataset", "queue": 16}, "augment": "scale-crop-flip"},
        {"method": "afdcd"},
        {"method": "ufd"},
    ],
)
def test_a_step_on_scenes_is_a_dense_one(
    quick: Stopwatch, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    seen: list[tuple[Any, ...]] = []
    rows = Segmentation.rows

    def told(self: Segmentation, student: Features, teachers: Any, batch: Batch) -> Any:
        found = rows(self, student, teachers, batch)
        seen.append((batch.image.shape, batch.label.shape, len(found[2].label)))
        return found

    monkeypatch.setattr(Segmentation, "rows", told)
    assert quick.step(group(**DENSE | change)).seconds > 0
    assert {words[:2] for words in seen} == {((4, 3, 32, 32), (4, 32, 32))}
    assert {words[2] for words in seen} == {20}


def test_locations_are_measured_in_part_with_their_images(quick: Stopwatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "DENSE_PIXELS", 2 * 32 * 32)
    tasks = []
    whole = quick._bench
    monkeypatch.setattr(quick, "_bench", lambda of, batch, task: tasks.append(task) or whole(of, batch, task))  # type: ignore[func-returns-value]
    quick.step(group(**DENSE | {"batch": 8}))
    assert [task.count for task in tasks] == [5]


def test_large_batches_are_measured_in_part(quick: Stopwatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "PIXELS", 3 * 16 * 16)
    seen = []
    whole = quick._batches

    def told(of: Group, drawn: ImageSet, images: int, task: Task) -> Iterator[Batch]:
        seen.append(images)
        return whole(of, drawn, images, task)

    monkeypatch.setattr(quick, "_batches", told)
    quick.step(group(batch=64))
    quick.step(group(batch=4, accumulate=2))
    assert seen == [3, 2]


def test_half_precision_is_another_machine() -> None:
    clock = Stopwatch(Execution(accelerator="cpu", threads=1, precision="bf16-mixed"))
    assert clock.machine.precision == "bf16-mixed"
    assert clock.step(group()).seconds > 0


@pytest.mark.parametrize("change", [{"method": "kdd"}, {"network": ModelSettings(name="cnnn")}])
def test_what_cannot_be_trained_says_so(quick: Stopwatch, change: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        quick.step(group(**change))


# --- the command -------------------------------------------------------------------------------------------------


def show(*words: str) -> str:
    result = CliRunner().invoke(app, ["suite", "show", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "STEPS", 1)
    words = ["desk-cues", *(w for s in SMALL for w in ("--set", s)), "--only", "kd", "--runs", str(tmp_path)]
    assert "hours on this machine: asd suite show desk-cues --measure" in show(*words)
    assert isinstance(json.loads(show(*words, "--json")), list)
    told = json.loads(show(*words, "--json", "--measure", "--device", "cpu", "--threads", "1"))
    assert len(told["runs"]) == 5
    assert told["cost"]["hours"] == pytest.approx(told["cost"]["student_hours"] + told["cost"]["teacher_hours"])
    assert told["cost"]["machine"]["threads"] == 1
    assert told["paper"] is None  # no run of the paper's
    assert isinstance(json.loads(show(*words, "--json")), list)
    later = show(*words)
    assert "one run after the other" in later
    assert "evaluation is not counted" in later
    assert "hours on this machine" not in later


def test_the_papers_hours_are_in_the_object_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "Stopwatch", lambda execution: Fake())
    words = ["table6", "--runs", str(tmp_path), "--json"]
    told = json.loads(show(*words, "--measure"))
    assert set(told) == {"runs", "paper", "cost"}
    assert told["paper"] == {"a100_hours": 54.0, "each": [{"hours": 4.5, "runs": 12}], "left_out": {}}
    assert told["runs"] == json.loads(show(*words))


def test_it_says_how_much_is_done(tmp_path: Path) -> None:
    jobs = open_suite("table6").jobs
    measured_cost(jobs, tmp_path, Fake())
    finish(teach_run(jobs[0].recipe, "some images"), tmp_path)
    told = " ".join(show("table6", "--runs", str(tmp_path)).split())
    assert "of which 0.52 h are done (1 of 13 trainings), 0.63 h are left" in told
    assert "an abacus, 3 threads" in told
    assert "540" not in told


def test_a_busy_machine_is_said(tmp_path: Path) -> None:
    jobs = open_suite("table6").jobs
    assert "busy" not in show("table6", "--runs", str(tmp_path))
    cost = measured_cost(jobs, tmp_path, Fake(share=0.25))
    assert cost.share == 0.25
    assert cost.alone == pytest.approx(cost.all.hours / 4)
    told = " ".join(show("table6", "--runs", str(tmp_path)).split())
    assert "a core worked 25% of the time on these steps; had it worked all of it, 0.29 h" in told


def test_no_such_device() -> None:
    for words in (["--device", "tpu"], ["--threads", "-1"], ["--precision", "16-mixed", "--device", "cpu"]):
        result = CliRunner().invoke(app, ["suite", "show", "desk", "--measure", *words])
        assert isinstance(result.exception, UserError), words


def test_without_measuring_torch_is_not_loaded(tmp_path: Path) -> None:
    measured_cost(open_suite("table6").jobs, tmp_path, Fake())
    code = (
        "import sys; from antishortcut.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    words = ["suite", "show", "table6", "--runs", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "one run after the other" in done.stdout


def test_json_says_it_is_an_estimate(tmp_path: Path) -> None:
    cost: Cost = measured_cost(open_suite("table6").jobs, tmp_path, Fake())
    told = cost.as_json()
    assert told["estimate"] is True
    assert told["machine"] == MACHINE.model_dump()
    assert [row["suite"] for row in told["pairs"]] == ["P1"]
