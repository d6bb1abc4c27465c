"""Checkpoints: whole or not there, the one before if the newest is damaged, one line if there is none left."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from antishortcut.config.recipe import Recipe
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir
from antishortcut.training.checkpoint import require_disk
from antishortcut.training.pipeline import Session, distill
from tests.conftest import CPU, assert_same_run, stop_after, tiny_session

SAVING = CPU.model_copy(update={"save_every": 0.0})  # after every step; the newest two are left


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """A student stopped after step 5, and one that was not."""
    recipe, session = tiny_session(tmp_path_factory.mktemp("stopped"), "data.options.count=128")
    session.execution = SAVING
    distill(recipe, session, method="ce", seed=1, suite="whole")
    with stop_after(5):
        distill(recipe, session, method="ce", seed=1, suite="s")
    return recipe, session.runs


@pytest.fixture
def resume(stopped: tuple[Recipe, Path], tmp_path: Path) -> tuple[Path, Callable[[], None]]:
    """The checkpoints of a copy, and a function that resumes it and compares it with the uninterrupted run."""
    recipe, runs = stopped
    shutil.copytree(runs, tmp_path / "runs")
    session = Session(tmp_path / "runs", execution=SAVING, quiet=True)

    def resumes() -> None:
        distill(recipe, session, method="ce", seed=1, suite="s")
        assert_same_run(*(RunDir(session.runs / suite / "ce-s1") for suite in ("s", "whole")))

    return session.runs / "s" / "ce-s1" / "resume", resumes


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]


@pytest.mark.parametrize("damage", [flipped, lambda data: data[:-10], lambda data: b""], ids=["flip", "cut", "empty"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    resume: tuple[Path, Callable[[], None]], damage: Callable[[bytes], bytes]
) -> None:
    folder, resumes = resume
    assert sorted(path.name[:9] for path in folder.glob("*.pt")) == ["000000004", "000000005"]
    newest = max(folder.iterdir())
    newest.write_bytes(damage(newest.read_bytes()))
    resumes()


def test_a_checkpoint_under_the_name_of_another_step_is_ignored(resume: tuple[Path, Callable[[], None]]) -> None:
    folder, resumes = resume
    newest = max(folder.iterdir())
    newest.rename(folder / newest.name.replace("000000005", "000000007"))
    resumes()


def test_if_every_checkpoint_is_damaged_one_line_says_so(resume: tuple[Path, Callable[[], None]]) -> None:
    folder, resumes = resume
    for path in folder.iterdir():
        path.write_bytes(flipped(path.read_bytes()))
    with pytest.raises(UserError, match="every saved state is damaged") as caught:
        resumes()
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(resume: tuple[Path, Callable[[], None]]) -> None:
    folder, resumes = resume
    for path in folder.iterdir():
        path.unlink()
        path.symlink_to("/proc/self/mem")  # opens, and gives an I/O error
    with pytest.raises(UserError, match=r"\.pt: cannot be read \("):
        resumes()


def test_a_full_disk_costs_a_line_and_a_later_step_tries_again(
    recipe: Recipe, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stands where the folder of checkpoints should be."""
    session.execution, session.quiet = SAVING, False
    folder = session.runs / "s" / "ce-s1"
    folder.mkdir(parents=True)
    (folder / "resume").write_text("no folder")
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    assert RunDir(run.folder(session.runs)).finished
    assert "step 2 could not be saved (" in " ".join(capsys.readouterr().err.split())


def test_a_run_folder_that_is_gone_is_not_created_again(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    with folder.locked():
        folder.log({"step": 1})
        folder.path.rename(tmp_path / "elsewhere")
        folder.log({"step": 2})  # waits in memory
        with pytest.raises(UserError, match="No such file"), require_disk(folder):
            pytest.fail("nothing may be written")
        assert not folder.path.exists()
        (tmp_path / "elsewhere").rename(folder.path)
        folder.settle()
    assert [row["step"] for row in folder.history()] == [1, 2]
