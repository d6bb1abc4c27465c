"""A run that is stopped and started again ends in the same bits as one that was not."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import antishortcut.teachers.selection as selection
from antishortcut.config.recipe import Recipe, load_recipe, with_settings
from antishortcut.errors import UserError
from antishortcut.methods import METHODS
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill, teach
from tests.conftest import CPU, assert_same_run, stop_after, tiny_session
from tests.methods.test_contract import EQUAL_CHANNELS
from tests.training.test_segmentation_runs import SMALL

TINY_SETTINGS = ["data.options.count=128", "data.options.test_count=32"]  # 4 steps an epoch, 8 in all
EVERYTHING = ["optim.ema=0.9", "optim.mixup=0.4", "optim.cutmix=1.0", "optim.accumulate=3"]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Session]:
    """A recipe of eight steps, and a session that has its teacher."""
    recipe, session = tiny_session(tmp_path_factory.mktemp("taught"), *TINY_SETTINGS)
    teach(recipe, session)
    return recipe, session


def assert_resumes(recipe: Recipe, session: Session, method: str, stops: tuple[int, ...]) -> None:
    """Stopped at these steps and resumed, a student is the one that was never stopped."""

    def student(suite: str) -> RunDir:
        return RunDir(distill(recipe, session, method=method, seed=1, suite=suite).folder(session.runs))

    for step in stops:
        with stop_after(step):
            student("parts")
    resumed = student("parts")
    assert not (resumed.path / "resume").exists()
    assert_same_run(resumed, student("whole"))


@pytest.mark.parametrize("method", METHODS)
def test_resume_is_bit_identical_for_every_method(
    taught: tuple[Recipe, Session], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "STEPS", 5)
    recipe, session = taught
    if method in EQUAL_CHANNELS:
        recipe = with_settings(recipe, [f"student.name={recipe.teacher.name}"])
    assert_resumes(recipe, session, method, (3, 4, 6))  # inside an epoch, at its end, inside the next


@pytest.mark.parametrize(
    ("source", "settings", "method", "execution", "stops"),
    [
        ("tiny", [*TINY_SETTINGS, *EVERYTHING], "asd", {}, (3, 4, 8)),  # the last: at the very end
        ("tiny", [*TINY_SETTINGS, "optim.accumulate=3"], "asd", {"cache_teachers": True}, (5,)),
        ("tiny", [], "kd", {"precision": "bf16-mixed", "teacher_precision": "bfloat16"}, (5,)),
        ("cues-seg", SMALL, "asd", {}, (3, 10)),
    ],
    ids=["ema-mixup-accumulation", "cached-teachers", "bfloat16", "segmentation"],
)
def test_resume_is_bit_identical(
    tiny: Path, session: Session, source: str, settings: list[str], method: str, execution: dict[str, Any],
    stops: tuple[int, ...],
) -> None:  # fmt: skip
    recipe = load_recipe(str(tiny) if source == "tiny" else source, settings)
    teach(recipe, session)
    session.execution = CPU.model_copy(update=execution)
    assert_resumes(recipe, session, method, stops)


@pytest.mark.parametrize("settings", [[], EVERYTHING], ids=["plain", "ema-mixup-accumulation"])
def test_a_teacher_resumes_with_its_trajectory(tiny: Path, tmp_path: Path, settings: list[str]) -> None:
    recipe, manifests = load_recipe(str(tiny), [*TINY_SETTINGS, *settings]), []
    for name in ("whole", "parts"):
        session = Session(tmp_path / name, execution=CPU, quiet=True)
        if name == "parts":
            with stop_after(5, signal.SIGINT):
                teach(recipe, session)
        manifests.append((teach(recipe, session).folder(session.runs) / "manifest.json").read_text())
    assert manifests[0] == manifests[1]  # with the sha256 of every state


def test_a_resumed_run_keeps_its_execution_settings_and_says_so(
    recipe: Recipe, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    teach(recipe, session)
    with stop_after(3):
        distill(recipe, session, method="kd", seed=1, suite="s")
    session.quiet = False
    session.execution = CPU.model_copy(update={"cache_teachers": True})
    run = distill(recipe, session, method="kd", seed=1, suite="s")
    assert RunDir(run.folder(session.runs)).read()[1]["cache_teachers"] is False
    message = capsys.readouterr().err
    assert "cache_teachers False, not True" in " ".join(message.split())
    assert "workers" not in message  # nobody asked for others


def test_a_run_whose_log_is_gone_resumes(recipe: Recipe, session: Session) -> None:
    with stop_after(6):
        distill(recipe, session, method="ce", seed=1, suite="s")
    log = session.runs / "s" / "ce-s1" / "metrics.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]) + '{"step": 4, "ter')
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    steps = [row["step"] for row in RunDir(run.folder(session.runs)).history() if "terms" in row]
    assert steps == [1, 2, 3, *range(7, 17)]


def test_checkpoints_of_another_run_are_refused(recipe: Recipe, session: Session) -> None:
    for seed in (1, 2):  # of the same shapes
        with stop_after(1):
            distill(recipe, session, method="ce", seed=seed, suite="s")
    own, other = (session.runs / "s" / f"ce-s{seed}" for seed in (1, 2))
    shutil.rmtree(own / "resume")
    shutil.copytree(other / "resume", own / "resume")
    with pytest.raises(UserError, match="a state of another run"):
        distill(recipe, session, method="ce", seed=1, suite="s")


def test_a_taken_name_is_refused_before_a_teacher_is_trained(recipe: Recipe, session: Session) -> None:
    distill(recipe, session, method="kd", seed=1, suite="s")
    teachers = sorted((session.runs / "teachers").iterdir())
    longer = recipe.model_copy(update={"epochs": 3})
    with pytest.raises(UserError, match=r"kd-s1 holds another run \(epochs: 2 there, 3 here"):
        distill(longer, session, method="kd", seed=1, suite="s")
    assert sorted((session.runs / "teachers").iterdir()) == teachers


def test_a_resumed_run_says_so(recipe: Recipe, session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    session.quiet = False
    with stop_after(3):
        distill(recipe, session, method="ce", seed=1, suite="s")
    assert "resuming" not in capfd.readouterr().err
    session.execution = CPU.model_copy(update={"threads": 2})
    distill(recipe, session, method="ce", seed=1, suite="s")
    lines = capfd.readouterr().err
    assert "ce s1: resuming from step 3 of 16" in lines
    assert "resumes as it was started: threads 1, not 2" in lines
