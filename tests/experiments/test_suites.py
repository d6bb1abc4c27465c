"""Suites: what they are made of, and the command that carries them out, goes on, tells failures and can be stopped."""

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
from safetensors.torch import load_file
from torture.forks import descendants
from typer.testing import CliRunner, Result

from antishortcut.cli import app, main
from antishortcut.config.recipe import Execution
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS
from antishortcut.experiments.launcher import Outcome, Place, Worker
from antishortcut.experiments.suites import (
    BASE,
    FEWER,
    KEPT,
    RHOS,
    RIVALS,
    SEEDS,
    STRENGTHS,
    SUITES,
    VARIANTS,
    Job,
    Suite,
    controls,
    folder_of,
    open_suite,
    teacher_key,
)
from antishortcut.methods import method_options, method_roles
from antishortcut.run_dir import RunDir, find_twin
from antishortcut.teachers.trajectory import snapshot_steps
from antishortcut.training.pipeline import Session

NEEDS = {"beyond-groups": ["data.name=groups:somewhere"]}  # what a suite must be told


@pytest.fixture(
    params=[name for name in SUITES if name.startswith(("beyond", "desk"))]
)  # the paper's are in test_paper
def suite(request: pytest.FixtureRequest) -> Suite:
    return open_suite(request.param, NEEDS.get(request.param, ()))


def settings(job: Job) -> dict[str, Any]:
    """A job's method with every setting, as a run has it."""
    return method_options(job.method, job.recipe.methods.get(job.method, {}) | job.options)


# --- what they are made of ---------------------------------------------------------------------------------------


def test_every_run_has_a_folder_of_its_own(suite: Suite) -> None:
    titles = [job.title for job in suite.jobs]
    assert len(set(titles)) == len(titles)
    assert len({folder_of(job, Path("runs")) for job in suite.jobs}) == len(titles)
    for job in suite.jobs:
        assert folder_of(job, Path("runs")) == Path("runs") / job.title
        assert not set("/\\\0") & set(job.name + job.suite)
        assert "teachers" not in (job.suite, job.name)


def test_every_run_can_be_made(suite: Suite) -> None:
    for job in suite.jobs:
        assert settings(job)  # names and types of all settings are the method's
        assert set(job.on) <= set(EVALUATIONS)
        assert len(set(job.on)) == len(job.on)


def test_every_early_state_is_kept_by_the_teacher_it_belongs_to(suite: Suite) -> None:
    for job in suite.jobs:
        roles = method_roles(job.method, settings(job))
        assert job.early is None or "early" in roles, f"{job.title}: {job.method} would not look at {job.early}"
        assert job.other is None or job.early is not None
        teacher = job.other or job.recipe.teacher
        saved = {label for labels in snapshot_steps(teacher.keep, 10, 1000).values() for label in labels} | {"final"}
        assert (job.early or job.recipe.teacher.early) in saved
        assert job.recipe.teacher.early in saved  # every student is compared with it


def test_no_run_has_two_names(suite: Suite) -> None:
    """Two rows of one suite and seed differ in more than their name."""
    outputs: dict[str, str] = {}
    for job in suite.jobs:
        source = None if job.other is None else job.other.model_dump_json()
        state = job.early or job.recipe.teacher.early if "early" in method_roles(job.method, settings(job)) else None
        what = json.dumps([job.suite, job.seed, job.method, settings(job), state, source], sort_keys=True)
        assert outputs.setdefault(what, job.title) == job.title


def test_rows_are_complete_over_the_seeds(suite: Suite) -> None:
    seeds: dict[tuple[str, str], set[int]] = {}
    for job in suite.jobs:
        seeds.setdefault((job.suite, job.name), set()).add(job.seed)
    for (place, _), result in seeds.items():
        main = place == suite.name or suite.name == "desk"  # the main comparison has all
        assert result == set(SEEDS if main else FEWER), place
    assert len(suite.jobs) == sum(map(len, seeds.values()))


def test_the_standing_benchmark_is_the_one_asked_for() -> None:
    """Two pairs or the embedded images; the paper's eight methods, ASD three times cut, ours; five paired seeds."""
    rows = {
        "ce": "ce", "kd": "kd", "fitnets+kd": "fitnets+kd", "at+kd": "at+kd", "dkd": "dkd", "crd+kd": "crd+kd",
        "ckptkd": "ckptkd", "asd": "asd", "asd-no-ss": "asd", "asd-no-tc": "asd", "asd-no-temporal": "asd",
        "contrast+tc": "contrast+tc",
    }  # fmt: skip
    for name, places in (("desk", ("desk", "desk-cross")), ("desk-cues", ("desk-cues",))):
        jobs = open_suite(name).jobs
        assert len(jobs) == len(places) * len(rows) * 5
        for place in places:
            own = [job for job in jobs if job.suite == place]
            assert {job.name: job.method for job in own} == rows
            assert len({teacher_key(job.recipe) for job in own}) == (5 if name == "desk-cues" else 1)
        assert {job.on for job in jobs} == {("clean", "corruptions", "mechanism")}
        for job in jobs:
            assert name == "desk" or job.recipe.teacher.seed == job.seed
            cut = {"asd-no-ss": {"ss": 0.0}, "asd-no-tc": {"tc": 0.0}, "asd-no-temporal": {"temporal": False}}
            assert job.options == cut.get(job.name, {})
            warmed = job.recipe.methods.get(job.method, {}).get("warmup")
            assert (warmed == 1.0) == ("warmup" in settings(job))  # 20 of 240 epochs, as 1 of 12
    one, two = (open_suite("desk", (), [f"{place}/kd"], [1]).jobs[0].recipe for place in ("desk", "desk-cross"))
    assert one.data == two.data
    assert one.data.name == "cifar100"


def test_the_dense_benchmark_is_the_one_asked_for() -> None:
    jobs = open_suite("desk-dense").jobs
    rows = {"ce", "kd", "af-dcd", "ufd-kd", "asd", "contrast+tc"}
    assert {(job.suite, job.name) for job in jobs} == {(s, r) for s in ("desk-camvid", "desk-cues-seg") for r in rows}
    assert {job.on for job in jobs} == {("clean", "scenes")}
    teachers = {place: {teacher_key(j.recipe) for j in jobs if j.suite == place} for place in {j.suite for j in jobs}}
    assert {place: len(keys) for place, keys in teachers.items()} == {"desk-camvid": 1, "desk-cues-seg": 3}


def test_beyond_cues_has_every_row_its_lists_name() -> None:
    jobs = open_suite("beyond-cues").jobs
    swept = len(BASE) + len(STRENGTHS)
    rows = swept + len(VARIANTS) + len(RIVALS) + len(controls("other"))
    count = len(SEEDS) * rows + len(FEWER) * len(RHOS) * swept
    print(f"beyond-cues: {rows} rows at rho 0.9 and {swept} at each of {RHOS}, {count} students")
    assert len(jobs) == count
    names = {job.name for job in jobs if job.suite == "beyond-cues"}
    assert names >= {row.name for row in (*BASE, *VARIANTS, *RIVALS, *controls("other"))}
    assert names >= {f"contrast-{value:g}" for value in STRENGTHS}
    assert len(names) == rows
    teachers = {teacher_key(recipe) for job in jobs for recipe in job.teachers}
    assert len(teachers) == 2 * len(SEEDS) + len(RHOS)  # a pair for each seed at 0.9, one for each other rho


def test_beyond_cues_pairs_seeds_and_holds_images_out() -> None:
    for job in open_suite("beyond-cues").jobs:
        assert job.recipe.data.val_fraction == 0.1
        assert job.recipe.teacher.keep == KEPT
        if job.suite == "beyond-cues":
            assert job.recipe.teacher.seed == job.seed
            assert "rho" not in job.recipe.data.options
        else:
            rho = {f"beyond-cues-rho{round(100 * value)}": value for value in RHOS}[job.suite]
            assert (job.recipe.data.options["rho"], job.recipe.teacher.seed) == (rho, 0)


def test_another_seeds_teacher_is_one_that_is_trained_anyway() -> None:
    jobs = open_suite("beyond-cues").jobs
    own = {teacher_key(job.recipe) for job in jobs if job.suite == "beyond-cues"}
    apart = [job for job in jobs if job.name == "other-seed"]
    for job in apart:
        first, reference = (teacher_key(recipe) for recipe in job.teachers)
        assert first != reference
        assert reference in own
    assert len({job.other.seed for job in apart if job.other is not None}) == len(SEEDS)
    for seed in (0, *SEEDS):  # one teacher for all students: another is another still
        message = open_suite("beyond-cues", [f"teacher.seed={seed}"], ["other-seed"]).jobs
        assert all(job.other is not None and job.other.seed != seed for job in message)
    networks = {job.other.name for job in jobs if job.name.startswith("other-network") and job.other is not None}
    assert networks.isdisjoint({job.recipe.teacher.name for job in jobs})


def test_images_to_choose_by_are_held_out_of_training(suite: Suite) -> None:
    """Without them `hard`, which λ may be chosen by, would look at test images."""
    assert all(job.recipe.data.val_fraction > 0 for job in suite.jobs if "hard" in job.on)


def test_settings_reach_every_run_and_come_last() -> None:
    jobs = open_suite("beyond-cues", ["epochs=3", "teacher.keep=[0, 2, 5, 15, 30, 50, 75]"]).jobs
    assert {job.recipe.epochs for job in jobs} == {3}
    with pytest.raises(UserError, match="has its own ρ"):
        open_suite("beyond-cues", ["data.options.rho=0.7"])
    assert {job.recipe.teacher.keep for job in jobs} == {(0, 2, 5, 15, 30, 50, 75)}
    with pytest.raises(UserError, match=r"unknown setting 'epoch'.*'epochs'"):
        open_suite("beyond-cues", ["epoch=3"])


def test_settings_that_leave_every_row_what_it_is_are_taken() -> None:
    assert {job.recipe.optim.batch for job in open_suite("s-table8", ["optim.batch=128"], ["asd"]).jobs} == {128}
    jobs = open_suite("s-table8", ["teacher.batch=32", "epochs=3"]).jobs
    assert {job.recipe.optim.batch for job in jobs} == {32, 64, 128, 256}
    assert len({teacher_key(job.recipe) for job in jobs}) == 1
    assert {job.recipe.teacher.early for job in open_suite("rewind", ["teacher.early=30%"], ["kd", "asd"]).jobs} == {
        "30%"
    }


def test_which_early_state_does_not_make_another_teacher() -> None:
    one, early, saved, longer = (
        open_suite("beyond-cifar", [f"teacher.{text}"]).jobs[0].recipe
        for text in ("early=15%", "early=50%", "keep=[15]", "epochs=3")
    )
    assert teacher_key(one) == teacher_key(early) == teacher_key(saved) != teacher_key(longer)


# --- a part of one -----------------------------------------------------------------------------------------------


def test_only_takes_names_patterns_and_places() -> None:
    whole = open_suite("beyond-cues")

    def titles(*only: str, seeds: tuple[int, ...] = ()) -> set[str]:
        return {job.title for job in open_suite("beyond-cues", (), only, seeds).jobs}

    assert titles() == {job.title for job in whole.jobs}
    assert titles("kd", seeds=(2,)) == {"beyond-cues/kd-s2", *(f"beyond-cues-rho{r}/kd-s2" for r in (80, 95, 99))}
    assert titles("beyond-cues/kd", seeds=(2, 4)) == {"beyond-cues/kd-s2", "beyond-cues/kd-s4"}
    assert titles("beyond-cues/early-*", "beyond-cues/ce", seeds=(1,)) == {
        "beyond-cues/ce-s1",
        *(f"beyond-cues/early-{share}-s1" for share in (2, 5, 30, 50, 75)),
    }
    assert titles("*-rho80/*") == {job.title for job in whole.jobs if job.suite == "beyond-cues-rho80"}
    assert titles(seeds=(3,)) == {job.title for job in whole.jobs if job.seed == 3}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "beyond-cuse"], "no suite 'beyond-cuse'; did you mean 'beyond-cues'"),
        (["show", "nothing-like-it"], "known: desk, desk-cues, desk-dense, beyond-cues"),
        (["run", "beyond-cues", "--only", "contrst-1"], "did you mean 'contrast-1'"),
        (["run", "beyond-cues", "--only", "kd", "--only", "residul-1"], "did you mean 'residual-1'"),
        (["status", "beyond-cues", "--only", "beyond-cues/untraned"], "untrained"),
        (["show", "beyond-cues", "--seeds", "9"], "has no seed 9; it has 1, 2, 3, 4, 5"),
        (["run", "beyond-cues", "--seeds", "one"], "write numbers with commas"),
        (["run", "beyond-cues", "--set", "epoch=1"], "did you mean 'epochs'"),
        (["run", "beyond-cues", "--precision", "64"], "--precision"),
        (["run", "beyond-cues", "--at", "corruption=here"], "did you mean 'corruptions'"),
        (["run", "beyond-cues", "--at", "stylized=nowhere"], "--at stylized=nowhere: no such folder"),
        (["run", "beyond-cues", "--only", "beyond-cues-rho80/*", "--seeds", "5"], "no run fits --only and --seeds"),
        (["run", "beyond-groups"], "add --set data.name=groups:PATH"),
        (["list", "--scale", "foo"], "--scale 'foo'"),
        (["run", "beyond-cues", "--jobs", "0"], "'--jobs'"),
        (["run", "beyond-cues", "--engine", "ray", "--cards", "-1"], "'--cards'"),
        (["run", "beyond-cues", "--devices", "0"], "--devices"),
        (["runn", "beyond-cues"], "No such command 'runn'"),
        (["run", "beyond-cues", "--address", "auto"], "--address without --engine ray would do nothing"),
        (["run", "beyond-cues", "--cards", "0"], "--cards without --engine ray would do nothing"),
        (["show", "beyond-cues", "--device", "cuda"], "--device without --measure would do nothing"),
        (["status", "beyond-cues", "--seeds", ","], "write numbers with commas"),
        (["run", "figure3", "--data-root", "here"], "stylized (no folder here/cifar100-stylized"),
        (["show", "s-table8", "--set", "optim.batch=128"], "asd-b32 has its own optim.batch"),
        (["show", "s-table8", "--scale", "desk", "--set", "optim={batch=128}"], "asd-b32 has its own optim.batch"),
        (["run", "rewind", "--set", "teacher.early=15%"], "asd-rewind has its own teacher.early"),
        (["run", "paper", "--set", "teacher.early=15%"], "asd-rewind has its own teacher.early"),
        (["run", "beyond-cues", "--set", "teacher.name=cnn-8-64"], "the other teacher of other-network"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    tmp_path: Path,
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asd", "suite", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("asd: ")
    assert said in line
    assert not any(tmp_path.iterdir())


def test_list_and_show() -> None:
    listed = {row["name"]: row for row in json.loads(invoke("list", "--json").stdout)}
    assert list(listed) == list(SUITES)
    for name in ("beyond-cues", "beyond-cifar"):
        assert listed[name]["students"] == len(open_suite(name).jobs)
    assert listed["beyond-groups"]["students"] is None
    assert "data.name=groups:PATH" in listed["beyond-groups"]["what"]  # it says what it needs instead
    assert "beyond-cues" in invoke("list").stdout
    shown = json.loads(invoke("show", "beyond-cues", "--only", "other-*", "--seeds", "1", "--json").stdout)
    assert [job["name"] for job in shown] == ["other-seed", "other-network", "other-network-final"]
    (job,) = open_suite("beyond-cues", (), ["beyond-cues/other-network"], [1]).jobs
    assert shown[1].pop("resolved") == settings(job)
    assert Job.model_validate(shown[1]) == job
    assert "Sec. 5.4" in listed["table3"]["what"]
    assert "Sec. 5.4, Beyond CIFAR-100, is table3" in listed["beyond-cifar"]["what"]
    message = invoke("show", "beyond-cues", "--only", "beyond-cues/other-*").stdout
    for words in ("15% of another seed", "final of cnn-8-64", "15 students"):
        assert words in message


def test_help_and_show_need_no_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from antishortcut.cli import app\n"
        "result = CliRunner().invoke(app, ['suite', 'show', 'beyond-cues'])\n"
        "assert result.exit_code == 0 and 'contrast-1' in result.output, result.output\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_students_are_scored_where_they_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(accelerator: str) -> str:
        return Worker(
            Session(Path("runs"), execution=Execution.model_validate({"accelerator": accelerator})), {}
        ).device

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (device("auto"), device("cpu"), device("mps")) == ("cpu", "cpu", "mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (device("auto"), device("cpu"), device("cuda")) == ("cuda", "cpu", "cuda")


# --- carried out -------------------------------------------------------------------------------------------------

SMALL = (
    "epochs=20", "teacher.epochs=1", "teacher.name=cnn-4-16", "student.name=cnn-2-16", "optim.batch=32",
    "data.options.count=256", "data.options.test_count=100",
)  # fmt: skip
THREE = ("kd", "contrast-1", "other-network")
SET = [word for text in SMALL for word in ("--set", text)]
PART = ["beyond-cues", *SET, *(word for name in THREE for word in ("--only", f"beyond-cues/{name}")), "--seeds", "1"]


def invoke(*words: str) -> Result:
    """A sub-command that must succeed."""
    result = CliRunner().invoke(app, ["suite", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def folders(runs: Path) -> dict[str, RunDir]:
    return {name: RunDir(runs / "beyond-cues" / f"{name}-s1") for name in THREE}


def same(one: RunDir, two: RunDir) -> None:
    """The same weights bit for bit, by the same steps."""
    weights, rest = load_file(one.student), load_file(two.student)
    assert weights.keys() == rest.keys()
    assert all(torch.equal(weights[key], rest[key]) for key in weights)
    assert one.history() == two.history()


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three students of a suite and the two teachers they need, two runs at a time. Tests only read it or copy it."""
    runs = tmp_path_factory.mktemp("suite") / "runs"
    message = invoke("run", *PART, "--runs", str(runs), "--jobs", "2", "--threads", "1")
    assert f"3 students are there; next: asd report {runs}/beyond-cues" in message.stdout
    for name in THREE:
        assert f"beyond-cues/{name}-s1: val accuracy" in message.stderr
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
        assert execution["cache_teachers"] is True  # unasked, there being room
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
        saved = [path for path in carried.rglob("*") if path.is_file() and path.name != ".lock"]
        return {str(path): path.stat().st_mtime_ns for path in saved}

    before = written()
    message = invoke("run", *PART, "--runs", str(carried), "--jobs", "1", "--threads", "1", "--json")
    assert json.loads(message.stdout) == {"done": 3, "failed": {}, "runs": 3}
    assert written() == before


def test_status_tells_how_far_it_is(carried: Path, tmp_path: Path) -> None:
    part = [*PART[:-1], "1,2", "--runs"]
    message = json.loads(invoke("status", *part, str(carried), "--json").stdout)
    assert {title for title, state in message.items() if state == "finished"} == {f"beyond-cues/{n}-s1" for n in THREE}
    assert {title for title, state in message.items() if state == "waiting"} == {f"beyond-cues/{n}-s2" for n in THREE}
    assert "3 of 6 students are trained" in invoke("status", *part, str(carried)).stdout
    half = tmp_path / "beyond-cues" / "kd-s1"
    half.mkdir(parents=True)
    shutil.copy(carried / "beyond-cues" / "kd-s1" / "run.json", half)
    assert json.loads(invoke("status", *part, str(tmp_path), "--json").stdout)["beyond-cues/kd-s1"] == "begun"


@pytest.mark.parametrize(("name", "method"), [("kd", []), ("contrast-1", ["--set", "method.strength=1.0"])])
def test_a_run_started_by_hand_is_the_same(carried: Path, tmp_path: Path, name: str, method: list[str]) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(carried / "teachers", runs / "teachers")
    held = ["data.val_fraction=0.1", f"teacher.keep={list(KEPT)}", "teacher.seed=1"]
    words = ["distill", "cues", "--method", name.partition("-")[0], *method, *(w for s in held for w in ("--set", s))]
    options = ["--seed", "1", "--suite", "by-hand", "--name", name, "--runs", str(runs), "--threads", "1", "--json"]
    options += ["--cache-teachers"]  # as suites do unasked
    result = CliRunner().invoke(app, [*words, *SET, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    folder = folders(carried)[name]
    assert json.loads(result.stdout)["hash"] == folder.read()[0].hash
    same(RunDir(runs / "by-hand" / f"{name}-s1"), folder)


@pytest.mark.parametrize(
    ("suite", "asked", "cached"),
    [
        ("table1", [], "auto"),
        ("table1", ["--no-cache-teachers"], False),
        ("complexity", [], False),  # its seconds are compared
        ("complexity", ["--cache-teachers"], True),
    ],
)
def test_which_suites_share_what_teachers_say(
    suite: str, asked: list[str], cached: bool | str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outputs: list[Any] = []

    def carry_out(jobs: object, place: Place, *more: object) -> Outcome:
        outputs.append(place.execution.cache_teachers)
        return Outcome(0, {}, False)

    monkeypatch.setattr("antishortcut.experiments.launcher.carry_out", carry_out)
    monkeypatch.setattr("antishortcut.experiments.launcher.check_images", lambda *words: None)
    words = ["suite", "run", suite, "--scale", "desk", "--runs", str(tmp_path), *asked]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert outputs == [cached]


@pytest.mark.slow
def test_one_run_that_fails_stops_no_other(carried: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(carried, runs)
    there = folders(runs)
    shutil.rmtree(there["contrast-1"].path)
    shutil.rmtree(there["other-network"].path)
    shutil.copytree(there["kd"].path, there["contrast-1"].path)  # another run in its place
    words = [sys.executable, "-m", "antishortcut", "suite", "run", *PART, "--runs", str(runs), "--threads", "1"]
    message = subprocess.run([*words, "--json"], capture_output=True, text=True, check=False)
    assert message.returncode == 2, message.stderr
    outcome = json.loads(message.stdout)
    assert (outcome["done"], list(outcome["failed"])) == (2, ["beyond-cues/contrast-1-s1"])
    assert "holds another run (method kd there, contrast here" in outcome["failed"]["beyond-cues/contrast-1-s1"]
    assert "Traceback" not in message.stderr
    *_, last = message.stderr.strip().splitlines()
    assert last.startswith("asd: 1 of 3 runs failed; beyond-cues/contrast-1-s1: ")
    same(there["other-network"], folders(carried)["other-network"])
    assert "hard" in there["other-network"].scores()


@pytest.mark.slow
def test_a_run_that_another_suite_has_is_taken_from_there(carried: Path, tmp_path: Path) -> None:
    """By its hash: desk-cues has the same KD and ASD students as beyond-cues, if their settings are the same."""
    runs = tmp_path / "runs"
    shutil.copytree(carried, runs)
    source = folders(runs)["kd"]
    words = ["run", "desk-cues", *SET, "--seeds", "1", "--runs", str(runs), "--threads", "1", "--only"]
    message = invoke(*words, "kd", "--json")
    assert json.loads(message.stdout) == {"done": 1, "failed": {}, "runs": 1}
    copy = RunDir(runs / "desk-cues" / "kd-s1")
    same(copy, source)
    assert copy.result() == source.result() | {"copy_of": "beyond-cues/kd-s1"}
    assert (copy.read()[0].suite, copy.read()[0].name, copy.read()[0].hash) == (
        "desk-cues",
        "kd",
        source.read()[0].hash,
    )
    assert {"iid", "hard", "corruptions", "mechanism"} <= set(copy.scores())  # its own, with what it still lacked
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
    message = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], message
    (teacher,) = (runs / "teachers").iterdir()
    assert len(list((teacher / "tensorboard").iterdir())) == 1
    assert all((runs / "beyond-cues" / f"{name}-s1" / "result.json").exists() for name in ("kd", "asd"))


def test_scores_against_other_states_are_not_taken_along(carried: Path, tmp_path: Path) -> None:
    shutil.copytree(carried / "beyond-cues" / "kd-s1", tmp_path / "a" / "kd-s1")
    twin = RunDir(tmp_path / "a" / "kd-s1")
    run = twin.read()[0].model_copy(update={"suite": "b", "early": "30%"})
    assert run.hash == twin.read()[0].hash  # KD does not look at the early state, its scores do
    result = find_twin(run, tmp_path)
    assert result is not None
    assert result.path == twin.path
    RunDir(run.folder(tmp_path)).copy_of(result, run)
    assert RunDir(run.folder(tmp_path)).finished
    assert RunDir(run.folder(tmp_path)).scores() == {}
    assert find_twin(run.model_copy(update={"seed": 2}), tmp_path) is None
    assert find_twin(run.model_copy(update={"epochs": 3}), tmp_path) is None
    (twin.path / "run.json").write_text("{")
    (tmp_path / "b" / "kd-s1" / "result.json").unlink()
    assert find_twin(run.model_copy(update={"suite": "c"}), tmp_path) is None  # damaged, and not finished


def begun(runs: Path) -> list[Path]:
    return list(runs.glob("beyond-cues/*/run.json"))


def training(runs: Path) -> list[Path]:
    return [path for path in runs.glob("beyond-cues/*/metrics.jsonl") if path.stat().st_size > 0]


def start(runs: Path, *words: str) -> subprocess.Popen[bytes]:
    """The command in a session of its own, as at a terminal; what it says is in runs/../log."""
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
        (begun, os.kill, signal.SIGTERM),  # a scheduler speaks to one process
    ],
)
def test_interrupted_it_stops_in_good_order_and_goes_on(
    carried: Path, tmp_path: Path, moment: Callable[[Path], list[Path]], send: Callable[[int, int], None], number: int
) -> None:
    runs, log = tmp_path / "runs", tmp_path / "log"
    shutil.copytree(carried / "teachers", runs / "teachers")
    process = start(runs, "--jobs", "2")
    wait_for(moment, runs, process)
    send(process.pid, number)
    assert process.wait(timeout=300) == 128 + number, log.read_text()
    message = log.read_text()
    assert "stopping: runs save their state" in message
    assert "asd: stopped; the same command goes on from there" in message
    assert "Traceback" not in message
    assert len(begun(runs)) in (1, 2)  # those at work; the third was not begun
    assert not list(runs.glob("beyond-cues/*/result.json"))  # nor any trained to its end
    assert bool(list(runs.glob("beyond-cues/*/resume/*.pt"))) == bool(training(runs))
    assert start(runs).wait(timeout=600) == 0, log.read_text()  # one at a time now: no matter
    for name, folder in folders(runs).items():
        same(folder, folders(carried)[name])
        assert not (folder.path / "resume").exists()


def alive(number: int) -> bool:
    """Whether a process of that number is there and not only its remains."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_when_the_first_process_is_killed_the_others_stop_too(carried: Path, tmp_path: Path) -> None:
    """Or they would train on, hold their folders, and wait for ever."""
    runs = tmp_path / "runs"
    shutil.copytree(carried / "teachers", runs / "teachers")
    process = start(runs)
    wait_for(training, runs, process)
    (log,) = training(runs)
    workers = list(descendants(process.pid))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    end = time.monotonic() + 60
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < end, "it goes on alone"
        time.sleep(0.05)
    assert not list(runs.glob("beyond-cues/*/result.json"))
    assert list(log.parent.glob("resume/*.pt"))  # as if it had been asked to stop
