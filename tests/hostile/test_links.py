"""Nothing is written through a link inside a run folder: it may lead anywhere."""

from pathlib import Path

import pytest

from antishortcut.config.recipe import Recipe
from antishortcut.deployment import export
from antishortcut.errors import UserError
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.report import build
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill, teach
from tests.conftest import CPU, stop_after


def linked(link: Path, target: Path, exists: bool = True) -> None:
    if exists:
        target.mkdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


@pytest.mark.parametrize("name", ["resume", "metrics.jsonl", "tensorboard", "artifacts"])
@pytest.mark.parametrize("exists", [True, False], ids=["a folder", "dangling"])
def test_training_refuses_links(recipe: Recipe, session: Session, tmp_path: Path, name: str, exists: bool) -> None:
    linked(session.runs / "s" / "ce-s1" / name, tmp_path / "elsewhere", exists)
    with pytest.raises(UserError, match=rf"ce-s1/{name} is a link; nothing is written through links"):
        distill(recipe, session, method="ce", seed=1, suite="s")
    assert not exists or not list((tmp_path / "elsewhere").iterdir())
    assert exists or not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["s", "s/kd-s1", "s/kd-s1/resume"])
def test_a_place_that_cannot_be_written_is_refused_before_a_teacher_is_trained(
    recipe: Recipe, session: Session, tmp_path: Path, name: str
) -> None:
    path = session.runs / name
    path.parent.mkdir(parents=True)
    if name.endswith("resume"):
        path.symlink_to(tmp_path)
    else:
        path.write_text("mine")
    with pytest.raises(UserError, match=rf"{path} is (no folder, but the run goes there; move it|a link)"):
        distill(recipe, session, method="kd", seed=1, suite="s")
    assert not (session.runs / "teachers").exists()


def test_scores_cache_and_figures_refuse_links(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    run = distill(recipe, session, method="kd", seed=1, suite="s")
    folder, elsewhere = RunDir(run.folder(session.runs)), tmp_path / "elsewhere"
    context = EvalContext(session.sets(recipe.data), session.runs, tmp_path)
    teacher = session.runs / "teachers" / str(run.teacher)
    linked(folder.path / "scores", elsewhere)
    with pytest.raises(UserError, match="scores is a link"):
        evaluate(folder, context, ["clean"])
    (folder.path / "scores").unlink()
    (folder.path.parent / "figures").symlink_to(elsewhere)
    with pytest.raises(UserError, match="figures is a link"):
        build(folder.path.parent)
    (teacher / "cache").symlink_to(elsewhere)
    session.execution = CPU.model_copy(update={"cache_teachers": True})
    with pytest.raises(UserError, match="cache is a link"):
        distill(recipe, session, method="kd", seed=2, suite="s")
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("name", ["export", "export/safetensors"])
@pytest.mark.parametrize("exists", [True, False], ids=["a folder", "dangling"])
def test_an_export_refuses_links(recipe: Recipe, session: Session, tmp_path: Path, name: str, exists: bool) -> None:
    run = distill(recipe, session, method="ce", seed=1, suite="s")
    folder, elsewhere = RunDir(run.folder(session.runs)), tmp_path / "elsewhere"
    linked(folder.path / name, elsewhere, exists)
    with pytest.raises(UserError, match=rf"ce-s1/{name} is a link; nothing is written through links"):
        export(folder, "safetensors", None)
    assert not exists or not list(elsewhere.iterdir())
    assert exists or not elsewhere.exists()


def test_a_copy_of_a_finished_run_refuses_links(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    session.reuse = True
    distill(recipe, session, method="ce", seed=1, suite="first", name="ce")
    (tmp_path / "precious").write_text("mine")
    linked(session.runs / "second" / "ce-s1" / "scores" / "iid.json", tmp_path / "precious", exists=False)
    with pytest.raises(UserError, match=r"scores/iid.json is a link"):
        distill(recipe, session, method="ce", seed=1, suite="second", name="ce")
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_folder_of_runs_may_be_a_link(recipe: Recipe, session: Session, tmp_path: Path) -> None:
    """Runs on a larger disk: the links lie above the run folder."""
    linked(session.runs, tmp_path / "large disk")
    with stop_after(2):
        teach(recipe, session)
    assert list((tmp_path / "large disk" / "teachers").glob("*/run.json"))
