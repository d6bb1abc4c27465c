"""What runs of a suite share and need: one training of a teacher, their own folders, images, devices."""

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from antishortcut.api.scoring import teacher_scores
from antishortcut.config.recipe import Execution, Recipe, Run, load_recipe, rewind_run
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS, evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.experiments.jobs import Job
from antishortcut.experiments.launcher import check_images, mismatch, scored, share_gpus, state
from antishortcut.experiments.suites import open_suite
from antishortcut.experiments.worker import WORK, Command, Place, run_item, without_ranks
from antishortcut.run_dir import InUse, RunDir
from antishortcut.teachers import selection
from antishortcut.teachers.trajectory import Trajectory
from antishortcut.training.pipeline import Session, distill, rewind, teach
from tests.conftest import asd, invoke

SMALL = (
    "epochs=1", "teacher.name=cnn-4-16", "student.name=cnn-2-16", "data.name=cues", "data.augment=crop",
    "data.options.count=128", "data.options.test_count=50",
)  # fmt: skip


# --- One training of a teacher ---


@contextmanager
def busy(path: Path, seconds: float = 0.3) -> Iterator[list[str]]:
    """A folder that another process holds for a while; says when it let go."""
    text, inside = list[str](), threading.Event()

    def hold() -> None:
        with RunDir(path).locked():
            inside.set()
            time.sleep(seconds)
            text.append("free")

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    yield text
    thread.join()


def test_a_teacher_that_is_being_trained_is_waited_for(recipe: Recipe, session: Session) -> None:
    short = recipe.model_copy(update={"epochs": 1})
    teacher = teach(short, session)
    with busy(rewind_run(teacher, 1, 0.05).folder(session.runs)) as text:
        again = rewind(teacher, 1, 0.05, session)
        assert text == ["free"]
    assert RunDir(again.folder(session.runs)).finished
    via = distill(short, session, method="kd", seed=1, suite="s", via=["cnn-3-12"])
    other = Session(session.runs.parent / "other", execution=session.execution, quiet=True)
    with busy(other.runs / "teachers" / str(via.teacher)) as text:  # an assistant
        assert distill(short, other, method="kd", seed=1, suite="s", via=["cnn-3-12"]).hash == via.hash
        assert text == ["free"]


def test_a_student_that_is_being_trained_is_an_error(recipe: Recipe, session: Session) -> None:
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    RunDir(run.folder(session.runs)).path.joinpath("result.json").unlink()
    with busy(run.folder(session.runs)), pytest.raises(InUse):
        session.fit(run)


def test_a_state_chosen_by_another_run_is_reused(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = teach(recipe.model_copy(update={"epochs": 1}), session)
    folder, inside = RunDir(teacher.folder(session.runs)), threading.Event()
    late = Trajectory(folder)  # opened before the other has written

    def estimate() -> None:
        with folder.locked():
            inside.set()
            time.sleep(0.5)
            own = Trajectory(folder)
            for number, entry in enumerate(own.entries):
                entry["information"] = {"image": 0.0, "label": 0.0, "total": float(number == 1)}
            own.write()

    def never(*_: Any) -> None:
        raise AssertionError("estimated twice")

    monkeypatch.setattr(selection, "_estimate", never)
    thread = threading.Thread(target=estimate)
    thread.start()
    inside.wait()
    assert selection.select_state(late, session.sets(recipe.data), lambda text: None) == late.entries[1]["labels"][0]
    thread.join()


# --- Folders that hold another run ---

SUITES = {"kd": "beyond-cues", "other-network": "beyond-cues", "ckptkd": "beyond-cues", "asd-rewind": "rewind"}
KEPT = ("teacher.keep=[5, 15, 30, 50]", "teacher.rewind_epochs=1")


def job(name: str, *more: str) -> Job:
    return open_suite(SUITES[name], [*SMALL, *KEPT, *more], [name], [1]).jobs[0]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each of the suites' rows, as an engine makes it."""
    runs = tmp_path_factory.mktemp("learned")
    session = Session(runs, execution=Execution(accelerator="cpu", threads=1), quiet=True, reuse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "STEPS", 2)
        patch.setattr(selection, "IMAGES", 128)
        for name in SUITES:
            run_item(job(name).model_copy(update={"on": ("clean",)}), session, {})
    return runs


def test_a_suite_scores_teachers_on_the_sets_of_their_students(learned: Path) -> None:
    run, _ = RunDir(learned / "beyond-cues" / "kd-s1").read()
    for saved in ("final", run.early):
        assert set(teacher_scores(run, learned, saved)) == {"iid", "conflict", "uncorrelated"}


@pytest.mark.parametrize("name", SUITES)
def test_a_run_of_the_same_settings_is_recognised(learned: Path, name: str) -> None:
    assert mismatch(job(name), learned) == ""
    assert state(job(name), learned) == "finished"
    saved = job(name, "teacher.keep=[15]")
    assert state(saved, learned) == "finished"  # which states are kept changes no result


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("kd", "teacher.epochs=2", "teacher: "),
        ("kd", "teacher.seed=7", "teacher: "),
        ("other-network", "teacher.lr=0.01", "teacher: "),
        ("kd", "teacher.early=30%", "early: '15%' there, '30%' here"),
        ("kd", "student.stem=imagenet", "model.stem: 'cifar' there, 'imagenet' here"),
        ("kd", "methods.kd.temperature=9.0", "options.temperature: 4.0 there, 9.0 here"),
        ("kd", "task.aux=0.1", "task.aux: 0.4 there, 0.1 here"),
        ("asd-rewind", "teacher.rewind_epochs=2", "/final' here"),
        ("asd-rewind", "teacher.rewind_lr=0.1", "/final' here"),
    ],
)
def test_a_run_with_other_settings_is_another(learned: Path, name: str, setting: str, message: str) -> None:
    assert f"{job(name).title} holds another run" in mismatch(job(name, setting), learned)
    assert message in mismatch(job(name, setting), learned)
    assert state(job(name, setting), learned) == "another"


def test_settings_of_the_folder_are_compared(learned: Path, tmp_path: Path) -> None:
    run, execution = RunDir(learned / "beyond-cues" / "kd-s1").read()

    def there(**change: Any) -> str:
        shutil.rmtree(tmp_path / "beyond-cues", ignore_errors=True)
        other = Run.model_validate(run.model_dump() | change)
        RunDir(tmp_path / "beyond-cues" / "kd-s1").begin(other, execution, {})
        return mismatch(job("kd"), tmp_path)

    assert there() == ""
    assert "options.temperature: 9.0 there, 4.0 here" in there(options=run.options | {"temperature": 9.0})
    assert "roles.final: '15%' there, 'final' here" in there(roles={"final": "15%"})
    assert there(fingerprint="0" * 16) != ""  # its teacher saw those images too


# --- Images to score on ---


def test_missing_images_are_reported_before_training(tmp_path: Path) -> None:
    jobs = open_suite("s-table3").jobs
    with pytest.raises(UserError, match="images to score on are not there") as caught:
        check_images(jobs, Place(tmp_path / "runs", tmp_path))
    for name in ("imagenet-r", "imagenet-a", "stylized"):
        assert f"--at {name}=FOLDER" in str(caught.value)
    assert f"no folder {tmp_path / 'imagenet100-stylized'}; 9 runs" in str(caught.value)
    for name in ("imagenet-r", "imagenet-a"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=r"stylized \(no folder"):
        check_images(jobs, Place(tmp_path / "runs", tmp_path))
    check_images(jobs, Place(tmp_path / "runs", tmp_path, at={"stylized": tmp_path}))
    check_images(open_suite("table5").jobs, Place(tmp_path / "runs", tmp_path))  # corrupted copies are made


def test_evaluations_look_into_the_folder_of_the_table(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    bench = EvalContext(session.sets(recipe.data), session.runs, tmp_path)
    for name in ("stylized", "cue-conflict", "imagenet-r", "imagenet-a"):
        folder = tmp_path / EVALUATIONS[name].folder_of(recipe.data.name)
        with pytest.raises(UserError, match=rf"^no folder {folder}; .*, or add --at {name}=FOLDER"):
            list(EVALUATIONS[name].run(bench))
        folder.mkdir()
        with pytest.raises(UserError, match=r"^(?!no folder)"):  # now it is looked into
            list(EVALUATIONS[name].run(bench))


def test_one_evaluation_that_fails_stops_no_other(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    run = distill(recipe, session, method="kd", seed=1, suite="s")
    bench = EvalContext(session.sets(recipe.data), session.runs, tmp_path)
    with pytest.raises(UserError, match=r"no folder .*cues-stylized; .*; no folder .*imagenet-r"):
        evaluate(RunDir(run.folder(session.runs)), bench, ["stylized", "clean", "imagenet-r", "hard"])
    assert set(RunDir(run.folder(session.runs)).scores()) == {"iid", "conflict", "uncorrelated", "hard"}


def test_status_shows_what_is_not_scored(learned: Path) -> None:
    words = ["suite", "status", "beyond-cues", "--only", "beyond-cues/kd", "--seeds", "1", "--runs", str(learned)]
    words += [word for text in (*SMALL, *KEPT) for word in ("--set", text)]
    assert asd(*words) == {"beyond-cues/kd-s1": "not scored"}  # hard is not there
    shown = invoke(*words).stdout
    assert "not scored" in shown
    assert "1 of 1 students are trained" in shown
    only = job("kd").model_copy(update={"on": ("clean",)})
    assert scored(only, learned)
    assert not scored(only.model_copy(update={"on": ("clean", "attack")}), learned)
    assert not scored(only, learned / "nowhere")


# --- Several devices ---


@pytest.mark.parametrize("name", ["beyond-cues", "s-table8", "rewind", "desk-dense"])
def test_a_run_reaches_its_process_unchanged(name: str, tmp_path: Path) -> None:
    place = Place(tmp_path, None, {"stylized": tmp_path}, Execution(accelerator="cpu", threads=3), download=True)
    for job in open_suite(name).jobs:
        for item in (job, job.recipe):
            result = WORK.validate_json(WORK.dump_json((place, item, 7)))
            assert result == (place, item, 7)
            assert result[1].model_dump_json() == item.model_dump_json()  # 1 is not 1.0


def test_an_error_in_the_process_of_a_run_is_returned(tmp_path: Path) -> None:
    place = Place(tmp_path / "runs", tmp_path / "nowhere", execution=Execution(accelerator="cpu"))
    assert "nowhere" in Command(place, load_recipe("P2")).result()["error"]


def test_a_run_imports_nothing_of_the_current_folder_by_chance(tmp_path: Path) -> None:
    place = Place(tmp_path / "runs", tmp_path / "nowhere", execution=Execution(accelerator="cpu"))
    (tmp_path / "copy.py").write_text("raise SystemExit('not of the standard library')")
    assert "nowhere" in Command(place, load_recipe("P2"), directory=tmp_path).result()["error"]


def test_runs_do_not_inherit_ranks_and_share_gpus(tmp_path: Path) -> None:
    environ = {"PATH": "here", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "SLURM_NTASKS": "4", "CUDA_VISIBLE_DEVICES": "0"}
    assert without_ranks(environ) == {"PATH": "here", "CUDA_VISIBLE_DEVICES": "0"}
    none, two = tmp_path / "none", tmp_path / "two"
    for name in "ab":
        (two / name).mkdir(parents=True)
    assert share_gpus(3, "auto", {}, two) == ["0", "1", "0"]
    assert share_gpus(3, "cuda", {"CUDA_VISIBLE_DEVICES": "4, GPU-7"}, two) == ["4", "GPU-7", "4"]
    assert share_gpus(3, "auto", {"CUDA_VISIBLE_DEVICES": ""}, two) == []
    assert share_gpus(3, "auto", {}, none) == share_gpus(3, "cpu", {}, two) == []
    four = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert share_gpus(3, "cuda", four, two, each=2) == ["0,1", "2,3", "0,1"]
    assert share_gpus(1, "cuda", four, two, each=8) == ["0,1,2,3"]  # Fabric says what is missing


@pytest.mark.slow
def test_a_suite_over_two_devices_resumes_with_two(tmp_path: Path) -> None:
    runs, student = tmp_path / "runs", tmp_path / "runs" / "beyond-cues" / "kd-s1"
    words = [sys.executable, "-m", "antishortcut", "suite", "run", "beyond-cues", "--only", "beyond-cues/kd"]
    words += ["--seeds", "1", "--device", "cpu", "--threads", "1", "--runs", str(runs)]
    words += [word for text in (*SMALL, "epochs=200", "teacher.epochs=1") for word in ("--set", text)]

    def begin(devices: int) -> subprocess.Popen[str]:
        return subprocess.Popen([*words, "--devices", str(devices)], stderr=subprocess.PIPE, text=True)

    first, end = begin(2), time.monotonic() + 500
    while not RunDir(student).history():
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < end, "no student begins"
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    message = first.communicate(timeout=300)[1]
    assert first.returncode == 143, message
    assert list(student.glob("resume/*.pt"))
    assert RunDir(student).read()[1]["devices"] == 2
    other = begin(1)
    message = other.communicate(timeout=300)[1]
    assert (other.returncode, "was started with --devices 2 --nodes 1" in message) == (2, True), message
    again = begin(2)
    message = again.communicate(timeout=900)[1]
    assert again.returncode == 0, message
    assert set(RunDir(student).scores()) == {"iid", "conflict", "uncorrelated", "hard"}
    assert not (student / "resume").exists()
