"""Suites: what they are made of, and the command that runs them, resumes, reports failures and can be stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torture.forks import descendants
from torture.kills import wait_until_ended

from antishortcut.cli import suite as command
from antishortcut.data.synthetic import CLASSES
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS
from antishortcut.experiments.jobs import Job, Suite, teacher_key
from antishortcut.experiments.launcher import Outcome
from antishortcut.experiments.suites import FEWER, KEPT, RHOS, SEEDS, SUITES, open_suite
from antishortcut.experiments.worker import Item, Place, eval_device, run_item
from antishortcut.methods import method_options, method_roles
from antishortcut.run_dir import RunDir, find_twin
from antishortcut.teachers.trajectory import snapshot_steps
from antishortcut.training.pipeline import Session
from tests.conftest import Refusal, asd, invoke, same_weights

NEEDS = {"beyond-groups": ["data.name=groups:somewhere"]}
OWN = [
    name for name in SUITES if name.startswith(("beyond", "desk", "natural", "ablation"))
]  # the paper's are in test_paper


@pytest.fixture(params=OWN)
def suite(request: pytest.FixtureRequest) -> Suite:
    return open_suite(request.param, NEEDS.get(request.param, ()))


def settings(job: Job) -> dict[str, Any]:
    """A job's method with every setting, as a run has it."""
    return method_options(job.method, job.recipe.methods.get(job.method, {}) | job.options)


# --- What they are made of ---


def test_every_run_has_its_own_folder_and_valid_settings(suite: Suite) -> None:
    assert len({job.title for job in suite.jobs}) == len(suite.jobs)  # their folders
    contents: dict[str, str] = {}
    for job in suite.jobs:
        assert not set("/\\\0") & set(job.name + job.suite)
        assert "teachers" not in (job.suite, job.name)
        assert set(job.on) <= set(EVALUATIONS)
        assert len(set(job.on)) == len(job.on)
        if "hard" in job.on:  # without validation images, `hard` would look at test images
            assert job.recipe.data.val_fraction > 0
        roles = method_roles(job.method, settings(job))
        assert job.early is None or "early" in roles, f"{job.title}: {job.method} would not use {job.early}"
        assert job.other is None or job.early is not None
        keep = (job.other or job.recipe.teacher).keep
        saved = {label for labels in snapshot_steps(keep, 10, 1000).values() for label in labels} | {"final"}
        assert {job.early or job.recipe.teacher.early, job.recipe.teacher.early} <= saved
        source = None if job.other is None else job.other.model_dump_json()
        state = job.early or job.recipe.teacher.early if "early" in roles else None
        how = [job.method, settings(job), job.budget, state, source]
        content = json.dumps([job.suite, job.seed, *how], sort_keys=True)
        assert contents.setdefault(content, job.title) == job.title  # no run has two names


def test_rows_are_complete_over_the_seeds(suite: Suite) -> None:
    seeds: dict[tuple[str, str], set[int]] = {}
    for job in suite.jobs:
        seeds.setdefault((job.suite, job.name), set()).add(job.seed)
    for (folder, _), numbers in seeds.items():
        main = folder == suite.name or suite.name == "desk"  # the main comparison has all
        assert numbers == set(FEWER if not main or folder == "ablation" else SEEDS), folder
    assert len(suite.jobs) == sum(map(len, seeds.values()))


def test_desk_suites_have_the_methods_of_the_paper_and_the_ablation() -> None:
    cut = {"asd-no-ss": {"ss": 0.0}, "asd-no-tc": {"tc": 0.0}, "asd-no-temporal": {"temporal": False}}
    names = ("ce", "kd", "fitnets+kd", "at+kd", "dkd", "crd+kd", "ckptkd", "asd", "contrast+tc")
    rows = {name: name for name in names} | dict.fromkeys(cut, "asd")
    for name, folders in (("desk", ("desk", "desk-cross")), ("desk-cues", ("desk-cues",))):
        jobs = open_suite(name).jobs
        assert len(jobs) == len(folders) * len(rows) * 5
        for folder in folders:
            own = [job for job in jobs if job.suite == folder]
            assert {job.name: job.method for job in own} == rows
            assert len({teacher_key(job.recipe) for job in own}) == (5 if name == "desk-cues" else 1)
        assert {(job.on, job.images) for job in jobs} == {(("clean", "corruptions", "mechanism"), 2000)}
        for job in jobs:
            assert name == "desk" or job.recipe.teacher.seed == job.seed
            assert job.options == cut.get(job.name, {})
            warmup = job.recipe.methods.get(job.method, {}).get("warmup")
            assert (warmup == 1.0) == ("warmup" in settings(job))  # 20 of 240 epochs, as 1 of 12
    jobs = open_suite("desk-dense").jobs
    rows_dense = {"ce", "kd", "af-dcd", "ufd-kd", "asd", "contrast+tc"}
    folders = ("desk-camvid", "desk-cues-seg")
    assert {(job.suite, job.name) for job in jobs} == {(folder, row) for folder in folders for row in rows_dense}
    teachers = {folder: {teacher_key(job.recipe) for job in jobs if job.suite == folder} for folder in folders}
    assert {folder: len(keys) for folder, keys in teachers.items()} == {"desk-camvid": 1, "desk-cues-seg": 3}


def test_standard_has_its_rows_in_order_seed_by_seed() -> None:
    jobs = open_suite("standard").jobs
    names = ["kd", "contrast+hint", "asd", "ce", "fitnets+kd", "dkd", "asd-no-ss", "asd-no-temporal", "crd+kd"]
    expected = [(seed, name) for seed in SEEDS for name in ([*names, "reviewkd"] if seed <= 3 else names[:3])]
    assert [(job.seed, job.name) for job in jobs] == expected
    assert [job.budget for job in jobs[:3]] == [None, 0.0, None]
    assert {job.on for job in jobs} == {("clean", "corruptions", "stylized", "probes", "mechanism")}
    assert len({teacher_key(job.recipe) for job in jobs}) == 1
    for job in jobs:
        data = job.recipe.data
        assert (data.name, data.train_limit, data.val_fraction, job.recipe.epochs) == ("cifar100", None, 0.1, 30)
        assert settings(job).get("warmup", 2.5) == 2.5  # 20 of 240 epochs
    assert settings(jobs[5])["beta"] == 2.0


def test_the_ablation_changes_one_thing_in_every_row() -> None:
    jobs = {job.name: job for job in open_suite("ablation", (), (), [1]).jobs}
    full, others = settings(jobs["full"]), ("untrained", "other-seed", "other-network")
    changed = {
        name: {k for k, v in settings(job).items() if v != full[k]} for name, job in jobs.items() if name != "kd"
    }
    parts = {"no-hint": {"hint"}, "no-beta": {"beta"}, "no-contrast": {"strength"}, "hint-alone": {"strength", "beta"}}
    parts |= {"contrast-alone": {"hint", "beta"}, "guard": {"guard"}, "tc": {"tc"}, "sharp": {"reference"}}
    assert changed == {"full": set()} | parts | {name: set() for name in others}
    assert {name for name, job in jobs.items() if job.early or job.other} == set(others)


def test_natural_sets_have_no_planted_cue_and_the_default_method() -> None:
    jobs = open_suite("natural").jobs
    names = {"cifar100", "cifar100-coarse", "tiny-imagenet"}
    assert {(job.recipe.data.name, job.recipe.data.val_fraction) for job in jobs} == {(name, 0.1) for name in names}
    assert {(job.name, job.budget) for job in jobs} == {("kd", None), ("contrast+hint", 0.0), ("contrast+hint-5", 0.05)}
    assert not any(job.recipe.data.options for job in jobs)
    assert len({teacher_key(job.recipe) for job in jobs}) == 4 * len(FEWER)
    with pytest.raises(UserError, match="has its own data"):
        open_suite("natural", ["data.name=cues"])


def test_beyond_cues_pairs_seeds_and_teachers() -> None:
    jobs = open_suite("beyond-cues").jobs
    assert len(jobs) == 5 * 28 + 3 * 3 * 7
    assert len({teacher_key(recipe) for job in jobs for recipe in job.teachers}) == 2 * len(SEEDS) + len(RHOS)
    for job in jobs:
        assert (job.recipe.data.val_fraction, job.recipe.teacher.keep) == (0.1, KEPT)
        if job.suite == "beyond-cues":
            assert job.recipe.teacher.seed == job.seed
            assert "rho" not in job.recipe.data.options
        else:
            rho = {f"beyond-cues-rho{round(100 * value)}": value for value in RHOS}[job.suite]
            assert (job.recipe.data.options["rho"], job.recipe.teacher.seed) == (rho, 0)
    own = {teacher_key(job.recipe) for job in jobs if job.suite == "beyond-cues"}
    apart = [job for job in jobs if job.name == "other-seed"]
    for job in apart:  # another seed's teacher is one that is trained anyway
        first, second = (teacher_key(recipe) for recipe in job.teachers)
        assert first != second
        assert second in own
    assert len({job.other.seed for job in apart if job.other is not None}) == len(SEEDS)
    for seed in (0, *SEEDS):
        changed = open_suite("beyond-cues", [f"teacher.seed={seed}"], ["other-seed"]).jobs
        assert all(job.other is not None and job.other.seed != seed for job in changed)
    networks = {job.other.name for job in jobs if job.name.startswith("other-network") and job.other is not None}
    assert networks.isdisjoint({job.recipe.teacher.name for job in jobs})


def test_overrides_reach_every_run() -> None:
    jobs = open_suite("beyond-cues", ["epochs=3", "teacher.keep=[0, 2, 5, 15, 30, 50, 75]"]).jobs
    assert {(job.recipe.epochs, job.recipe.teacher.keep) for job in jobs} == {(3, (0, 2, 5, 15, 30, 50, 75))}
    with pytest.raises(UserError, match="has its own ρ"):
        open_suite("beyond-cues", ["data.options.rho=0.7"])
    assert {job.recipe.optim.batch for job in open_suite("s-table8", ["optim.batch=128"], ["asd"]).jobs} == {128}
    jobs = open_suite("s-table8", ["teacher.batch=32", "epochs=3"]).jobs
    assert {job.recipe.optim.batch for job in jobs} == {32, 64, 128, 256}
    assert len({teacher_key(job.recipe) for job in jobs}) == 1
    jobs = open_suite("rewind", ["teacher.early=30%"], ["kd", "asd"]).jobs
    assert {job.recipe.teacher.early for job in jobs} == {"30%"}


def test_the_early_state_does_not_make_another_teacher() -> None:
    one, early, saved, longer = (
        open_suite("beyond-cifar", [f"teacher.{text}"]).jobs[0].recipe
        for text in ("early=15%", "early=50%", "keep=[15]", "epochs=3")
    )
    assert teacher_key(one) == teacher_key(early) == teacher_key(saved) != teacher_key(longer)


def test_only_takes_names_patterns_and_folders() -> None:
    whole = open_suite("beyond-cues")

    def titles(*only: str, seeds: tuple[int, ...] = ()) -> set[str]:
        return {job.title for job in open_suite("beyond-cues", (), only, seeds).jobs}

    assert titles() == {job.title for job in whole.jobs}
    assert titles("kd", seeds=(2,)) == {"beyond-cues/kd-s2", *(f"beyond-cues-rho{r}/kd-s2" for r in (80, 95, 99))}
    assert titles("beyond-cues/early-*", "beyond-cues/ce", seeds=(1,)) == {
        "beyond-cues/ce-s1",
        *(f"beyond-cues/early-{share}-s1" for share in (2, 5, 30, 50, 75)),
    }
    assert titles("*-rho80/*") == {job.title for job in whole.jobs if job.suite == "beyond-cues-rho80"}
    assert titles(seeds=(3,)) == {job.title for job in whole.jobs if job.seed == 3}


# --- The command ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "beyond-cuse"], "no suite 'beyond-cuse'; did you mean 'beyond-cues'"),
        (["show", "nothing-like-it"], "known: desk, desk-cues, desk-dense, beyond-cues"),
        (["run", "beyond-cues", "--only", "kd", "--only", "residul-1"], "did you mean 'residual-1'"),
        (["show", "beyond-cues", "--seeds", "9"], "has no seed 9; it has 1, 2, 3, 4, 5"),
        (["run", "beyond-cues", "--seeds", "one"], "write numbers with commas"),
        (["status", "beyond-cues", "--seeds", ","], "write numbers with commas"),
        (["status", "beyond-cues", "--seeds", "1" * 5000], "write numbers with commas"),
        (["run", "beyond-cues", "--set", "epoch=1"], "did you mean 'epochs'"),
        (["run", "beyond-cues", "--precision", "64"], "--precision"),
        (["run", "beyond-cues", "--at", "corruption=here"], "did you mean 'corruptions'"),
        (["run", "beyond-cues", "--at", "stylized=nowhere"], "--at stylized=nowhere: no such folder"),
        (["run", "beyond-cues", "--only", "beyond-cues-rho80/*", "--seeds", "5"], "no run fits --only and --seeds"),
        (["run", "beyond-groups"], "add --set data.name=groups:PATH"),
        (["list", "--scale", "foo"], "--scale 'foo'"),
        (["run", "beyond-cues", "--jobs", "0"], "'--jobs'"),
        (["run", "beyond-cues", "--engine", "rey"], "--engine 'rey'; did you mean 'ray'?"),
        (["run", "beyond-cues", "--engine", "ray", "--cards", "-1"], "'--cards'"),
        (["run", "beyond-cues", "--devices", "0"], "--devices"),
        (["runn", "beyond-cues"], "No such command 'runn'"),
        (["run", "beyond-cues", "--cards", "0"], "--cards do nothing without --engine ray"),
        (["show", "beyond-cues", "--device", "cuda"], "do nothing without --measure"),
        (["run", "figure3", "--data-root", "here"], "stylized (no folder here/cifar100-stylized"),
        (["show", "s-table8", "--set", "optim.batch=128"], "asd-b32 has its own optim.batch"),
        (["show", "s-table8", "--scale", "desk", "--set", "optim={batch=128}"], "asd-b32 has its own optim.batch"),
        (["run", "paper", "--set", "teacher.early=15%"], "asd-rewind has its own teacher.early"),
        (["run", "beyond-cues", "--set", "teacher.name=cnn-8-64"], "the other teacher of other-network"),
        (["show", "table1", "--scale", "desc"], "did you mean 'desk'"),
        (["show", "ablation-loses"], "'ablation-losses'"),
        (["show", "beyond-cues", "--scale", "desk"], "has one size only"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words: list[str], message: str, refusal: Refusal) -> None:
    assert message in refusal("suite", *words)


def test_list_and_show() -> None:
    listed = {row["name"]: row for row in asd("suite", "list")}
    assert list(listed) == list(SUITES)
    assert listed["beyond-cues"]["students"] == len(open_suite("beyond-cues").jobs)
    assert listed["beyond-groups"]["students"] is None
    assert "data.name=groups:PATH" in listed["beyond-groups"]["what"]
    assert "beyond-cues" in invoke("suite", "list").stdout
    shown = asd("suite", "show", "beyond-cues", "--only", "other-*", "--seeds", "1")
    assert [job["name"] for job in shown] == ["other-seed", "other-network", "other-network-final"]
    (job,) = open_suite("beyond-cues", (), ["beyond-cues/other-network"], [1]).jobs
    assert shown[1].pop("resolved") == settings(job)
    assert Job.model_validate(shown[1]) == job
    printed = invoke("suite", "show", "beyond-cues", "--only", "beyond-cues/other-*").stdout
    for words in ("15% of another seed", "final of cnn-8-64", "15 students"):
        assert words in printed


@pytest.mark.parametrize(
    ("name", "flags", "cached"),
    [
        ("table1", [], "auto"),
        ("table1", ["--no-cache-teachers"], False),
        ("complexity", [], False),  # its seconds are compared
        ("complexity", ["--cache-teachers"], True),
    ],
)
def test_which_suites_cache_teacher_outputs(
    name: str, flags: list[str], cached: bool | str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    caches: list[Any] = []

    def run_jobs(jobs: object, place: Place, *more: object) -> Outcome:
        caches.append(place.execution.cache_teachers)
        return Outcome(0, {})

    monkeypatch.setattr("antishortcut.experiments.launcher.run_jobs", run_jobs)
    monkeypatch.setattr("antishortcut.experiments.launcher.check_images", lambda *words: None)
    invoke("suite", "run", name, "--scale", "desk", "--runs", str(tmp_path), *flags)
    assert caches == [cached]


def test_students_are_scored_where_they_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [eval_device(name) for name in ("auto", "cpu", "mps")] == ["cpu", "cpu", "mps"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [eval_device(name) for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]


# --- A suite that is run ---

SMALL = (
    "epochs=20", "teacher.epochs=1", "teacher.name=cnn-4-16", "student.name=cnn-2-16", "optim.batch=32",
    "data.options.count=256", "data.options.test_count=100",
)  # fmt: skip
THREE = ("kd", "contrast-1", "other-network")
SET = [word for text in SMALL for word in ("--set", text)]
PART = ["beyond-cues", *SET, *(word for name in THREE for word in ("--only", f"beyond-cues/{name}")), "--seeds", "1"]


class InProcess:
    """An engine that runs everything in this process, which starts faster than one process per run."""

    slots = 1

    def __init__(self, place: Place) -> None:
        self.place, self.items = place, dict[str, Item]()
        self.session = Session(place.runs, place.root, execution=place.execution, quiet=True, reuse=True)

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def submit(self, key: str, item: Item) -> None:
        self.items[key] = item

    def wait(self) -> dict[str, dict[str, Any]]:
        key, item = self.items.popitem()
        return {key: run_item(item, self.session, self.place.at)}

    def stop(self) -> None: ...


def folders(runs: Path) -> dict[str, RunDir]:
    return {name: RunDir(runs / "beyond-cues" / f"{name}-s1") for name in THREE}


def same(one: RunDir, two: RunDir) -> None:
    """The same weights bit for bit, by the same steps."""
    assert same_weights(one.student, two.student)
    assert one.history() == two.history()


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three students of a suite and the two teachers they need. Tests only read it or copy it."""
    runs = tmp_path_factory.mktemp("suite") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_engine", lambda name, place, *more: InProcess(place))
        result = invoke("suite", "run", *PART, "--runs", str(runs), "--threads", "1")
    assert f"3 students are there; next: asd report {runs}/beyond-cues" in result.stdout
    for name in THREE:
        assert f"beyond-cues/{name}-s1: val accuracy" in result.stderr
    return runs


def test_a_suite_leaves_finished_and_scored_runs(carried: Path) -> None:
    assert {path.name for path in (carried / "beyond-cues").iterdir()} == {f"{name}-s1" for name in THREE}
    jobs = {job.name: job for job in open_suite("beyond-cues", SMALL, [f"beyond-cues/{n}" for n in THREE], [1]).jobs}
    for name, folder in folders(carried).items():
        run, execution = folder.read()
        assert folder.finished
        assert (run.suite, run.name, run.seed, run.epochs) == ("beyond-cues", name, 1, 20)
        assert (run.method, run.options) == (jobs[name].method, settings(jobs[name]))
        assert execution["threads"] == 1
        assert execution["cache_teachers"] is True  # by default, if there is room
        assert set(folder.scores()) == {"iid", "conflict", "uncorrelated", "hard"}
        assert folder.scores()["hard"]["of"] == "val"
    teachers = {path.name: RunDir(path).read()[0] for path in (carried / "teachers").iterdir()}
    assert {run.model.name: run.seed for run in teachers.values()} == {"cnn-4-16": 1, "cnn-8-64": 1}
    runs = {name: folder.read()[0] for name, folder in folders(carried).items()}
    assert {str(run.teacher) for run in runs.values()} == {h for h, t in teachers.items() if t.model.name == "cnn-4-16"}
    (other,) = (h for h, t in teachers.items() if t.model.name == "cnn-8-64")
    assert (runs["other-network"].roles["early"], runs["other-network"].early) == (f"{other}/15%", "15%")
    assert runs["contrast-1"].roles["early"] == "15%"


def test_the_same_command_again_trains_nothing(carried: Path) -> None:
    def written() -> dict[str, int]:
        files = [path for path in carried.rglob("*") if path.is_file() and path.name != ".lock"]
        return {str(path): path.stat().st_mtime_ns for path in files}

    before = written()
    result = asd("suite", "run", *PART, "--runs", carried, "--jobs", "1", "--threads", "1")
    assert result == {"done": 3, "failed": {}, "runs": 3}
    assert written() == before


def again(runs: Path, monkeypatch: pytest.MonkeyPatch, *more: object) -> Any:
    """The same command once more, in this process; only what is left to do is submitted."""
    monkeypatch.setattr(command, "_engine", lambda name, place, *more: InProcess(place))
    return asd("suite", "run", *PART, "--runs", runs, "--threads", "1", *more)


@pytest.mark.parametrize("score", ["conflict", "hard"])
def test_a_damaged_score_is_computed_again(
    carried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, score: str
) -> None:
    runs = shutil.copytree(carried, tmp_path / "runs")
    path = runs / "beyond-cues" / "kd-s1" / "scores" / f"{score}.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    assert asd("suite", "status", *PART, "--runs", runs)["beyond-cues/kd-s1"] == "not scored"
    assert again(runs, monkeypatch)["done"] == 3
    assert path.read_bytes() == whole


def test_a_damaged_result_is_named_by_its_suite(carried: Path, tmp_path: Path, refusal: Refusal) -> None:
    runs = shutil.copytree(carried, tmp_path / "runs")
    path = runs / "beyond-cues" / "kd-s1" / "result.json"
    path.write_bytes(path.read_bytes()[:20])
    assert asd("suite", "status", *PART, "--runs", runs)["beyond-cues/kd-s1"] == "another"
    assert "kd-s1/result.json: cannot be read as JSON" in refusal("suite", "run", *PART, "--runs", runs)


def test_other_images_given_to_a_finished_suite_are_scored(
    carried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = shutil.copytree(carried, tmp_path / "runs")
    counts = []
    for name, count in (("one", 1), ("two", 2)):
        place = tmp_path / name
        place.mkdir()
        (place / "mapping.toml").write_text(f'airplane = ["{CLASSES[0]}"]\nbear = ["{CLASSES[1]}"]\n')
        for number in range(count):
            Image.new("RGB", (32, 32), (200, number, 0)).save(place / f"airplane{number}-bear1.png")
        again(runs, monkeypatch, "--at", f"cue-conflict={place}")
        counts.append([folder.scores()["cue-conflict"]["count"] for folder in folders(runs).values()])
    assert counts == [[1, 1, 1], [2, 2, 2]]


def test_status_counts_finished_and_waiting_runs(carried: Path, tmp_path: Path) -> None:
    part = [*PART[:-1], "1,2", "--runs"]
    states = asd("suite", "status", *part, str(carried))
    assert {title for title, state in states.items() if state == "finished"} == {f"beyond-cues/{n}-s1" for n in THREE}
    assert {title for title, state in states.items() if state == "waiting"} == {f"beyond-cues/{n}-s2" for n in THREE}
    assert "3 of 6 students are trained" in invoke("suite", "status", *part, str(carried)).stdout
    half = tmp_path / "beyond-cues" / "kd-s1"
    half.mkdir(parents=True)
    shutil.copy(carried / "beyond-cues" / "kd-s1" / "run.json", half)
    assert asd("suite", "status", *part, str(tmp_path))["beyond-cues/kd-s1"] == "begun"


def test_a_run_started_by_hand_is_the_same(carried: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(carried / "teachers", runs / "teachers")
    held = ["data.val_fraction=0.1", f"teacher.keep={list(KEPT)}", "teacher.seed=1", "method.strength=1.0"]
    words = ["distill", "cues", "--method", "contrast", *(w for s in held for w in ("--set", s)), *SET, "--seed", "1"]
    words += ["--suite", "by-hand", "--name", "contrast-1", "--runs", str(runs), "--threads", "1"]
    result = asd(*words, "--cache-teachers")  # as suites do
    folder = folders(carried)["contrast-1"]
    assert result["hash"] == folder.read()[0].hash
    same(RunDir(runs / "by-hand" / "contrast-1-s1"), folder)


def test_one_run_that_fails_stops_no_other_and_processes_give_the_same_runs(carried: Path, tmp_path: Path) -> None:
    """With the real command, one process per run."""
    runs = tmp_path / "runs"
    shutil.copytree(carried, runs)
    there = folders(runs)
    shutil.rmtree(there["contrast-1"].path)
    shutil.rmtree(there["other-network"].path)
    shutil.copytree(there["kd"].path, there["contrast-1"].path)  # another run in its place
    words = [sys.executable, "-m", "antishortcut", "suite", "run", *PART, "--runs", str(runs), "--threads", "1"]
    result = subprocess.run([*words, "--json", "--jobs", "2"], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    outcome = json.loads(result.stdout)
    assert (outcome["done"], list(outcome["failed"])) == (2, ["beyond-cues/contrast-1-s1"])
    assert "holds another run (name: 'kd' there, 'contrast-1' here; method: 'kd' there" in str(outcome["failed"])
    assert "Traceback" not in result.stderr
    *_, last = result.stderr.strip().splitlines()
    assert last.startswith("asd: 1 of 3 runs failed; beyond-cues/contrast-1-s1: ")
    same(there["other-network"], folders(carried)["other-network"])
    assert "hard" in there["other-network"].scores()


@pytest.mark.slow
def test_a_run_that_another_suite_has_is_copied(carried: Path, tmp_path: Path) -> None:
    """By its hash: desk-cues has the same KD students as beyond-cues, if their settings are the same."""
    runs = tmp_path / "runs"
    shutil.copytree(carried, runs)
    source = folders(runs)["kd"]
    words = ["run", "desk-cues", *SET, "--seeds", "1", "--runs", str(runs), "--threads", "1", "--only"]
    assert asd("suite", *words, "kd") == {"done": 1, "failed": {}, "runs": 1}
    copy = RunDir(runs / "desk-cues" / "kd-s1")
    same(copy, source)
    assert copy.result() == source.result() | {"copy_of": "beyond-cues/kd-s1"}
    assert (copy.read()[0].suite, copy.read()[0].hash) == ("desk-cues", source.read()[0].hash)
    assert {"iid", "hard", "corruptions", "mechanism"} <= set(copy.scores())
    assert copy.score("iid") == source.score("iid")
    assert copy.score("corruptions")["count"] == 100  # type: ignore[index]
    assert not list(runs.glob("desk-cues/.*"))  # no half copy


@pytest.mark.slow
def test_two_commands_that_need_one_teacher_train_it_once(tmp_path: Path) -> None:
    """As elements of a job array on a shared disk."""
    runs = tmp_path / "runs"
    words = [sys.executable, "-m", "antishortcut", "suite", "run", "beyond-cues", *SET, "--set", "epochs=1"]
    words += ["--set", "teacher.epochs=8", "--runs", str(runs), "--threads", "1", "--seeds", "1", "--only"]
    both = [
        subprocess.Popen([*words, f"beyond-cues/{name}"], stderr=subprocess.PIPE, text=True) for name in ("kd", "asd")
    ]
    errors = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    (teacher,) = (runs / "teachers").iterdir()
    assert len(list((teacher / "tensorboard").iterdir())) == 1
    assert all((runs / "beyond-cues" / f"{name}-s1" / "result.json").exists() for name in ("kd", "asd"))


def test_a_copied_run_leaves_scores_against_other_states_behind(carried: Path, tmp_path: Path) -> None:
    shutil.copytree(carried / "beyond-cues" / "kd-s1", tmp_path / "a" / "kd-s1")
    source = RunDir(tmp_path / "a" / "kd-s1")
    run = source.read()[0].model_copy(update={"suite": "b", "early": "30%"})
    assert run.hash == source.read()[0].hash  # KD does not use the early state, its scores do
    twin = find_twin(run, tmp_path)
    assert twin is not None
    assert twin.path == source.path
    RunDir(run.folder(tmp_path)).copy_of(twin, run)
    assert RunDir(run.folder(tmp_path)).finished
    assert RunDir(run.folder(tmp_path)).scores() == {}
    assert find_twin(run.model_copy(update={"seed": 2}), tmp_path) is None
    assert find_twin(run.model_copy(update={"epochs": 3}), tmp_path) is None
    (source.path / "run.json").write_text("{")
    (tmp_path / "b" / "kd-s1" / "result.json").unlink()
    assert find_twin(run.model_copy(update={"suite": "c"}), tmp_path) is None  # damaged, and not finished


# --- Interrupted ---


def begun(runs: Path) -> list[Path]:
    return list(runs.glob("beyond-cues/*/run.json"))


def training(runs: Path) -> list[Path]:
    return [path for path in runs.glob("beyond-cues/*/metrics.jsonl") if path.stat().st_size > 0]


def start(runs: Path, *words: str) -> subprocess.Popen[bytes]:
    """The command in a session of its own, as at a terminal; its output is in runs/../log."""
    command = [sys.executable, "-m", "antishortcut", "suite", "run", *PART, "--runs", str(runs), "--threads", "1"]
    with (runs.parent / "log").open("w") as out:
        return subprocess.Popen([*command, *words], stdout=out, stderr=out, start_new_session=True)


def wait_for(moment: Callable[[Path], list[Path]], runs: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while not moment(runs):
        assert process.poll() is None, (runs.parent / "log").read_text()
        assert time.monotonic() < end, "no student begins"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "send", "number"),
    [
        (training, os.killpg, signal.SIGINT),  # Ctrl-C reaches the whole group of a terminal
        (begun, os.kill, signal.SIGTERM),  # a scheduler signals one process
    ],
)
def test_an_interrupted_suite_resumes_bit_identically(
    carried: Path, tmp_path: Path, moment: Callable[[Path], list[Path]], send: Callable[[int, int], None], number: int
) -> None:
    runs, log = tmp_path / "runs", tmp_path / "log"
    shutil.copytree(carried / "teachers", runs / "teachers")
    process = start(runs, "--jobs", "2")
    wait_for(moment, runs, process)
    send(process.pid, number)
    assert process.wait(timeout=300) == 128 + number, log.read_text()
    text = log.read_text()
    assert "stopping: runs save their state" in text
    assert "asd: stopped; the same command goes on from there" in text
    assert "Traceback" not in text
    assert len(begun(runs)) in (1, 2)  # the third was not begun
    assert not list(runs.glob("beyond-cues/*/result.json"))
    assert bool(list(runs.glob("beyond-cues/*/resume/*.pt"))) == bool(training(runs))
    assert start(runs).wait(timeout=600) == 0, log.read_text()  # one at a time now
    for name, folder in folders(runs).items():
        same(folder, folders(carried)[name])
        assert not (folder.path / "resume").exists()


@pytest.mark.slow
def test_runs_stop_when_the_command_is_killed(carried: Path, tmp_path: Path) -> None:
    """Or they would train on and hold their folders."""
    runs = tmp_path / "runs"
    shutil.copytree(carried / "teachers", runs / "teachers")
    process = start(runs)
    wait_for(training, runs, process)
    (log,) = training(runs)
    workers = list(descendants(process.pid))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_until_ended(workers)
    assert not list(runs.glob("beyond-cues/*/result.json"))
    assert list(log.parent.glob("resume/*.pt"))
