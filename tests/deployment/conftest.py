"""A student, one of timm, one of scenes, and their teachers, trained once."""

import pytest
import torch

from antishortcut.config.recipe import Execution, load_recipe
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill
from tests.deployment.subjects import TIMM, small
from tests.training.test_segmentation_runs import SMALL


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    torch.set_num_threads(1)
    execution = Execution(accelerator="cpu", threads=1, save_every=1e9)
    return Session(tmp_path_factory.mktemp("export") / "runs", execution=execution, quiet=True)


@pytest.fixture(scope="session")
def student(session: Session) -> RunDir:
    """A student and its teacher, scored."""
    run = distill(small(), session, method="kd", seed=3, suite="s")
    folder = RunDir(run.folder(session.runs))
    evaluate(folder, EvalContext(session.sets(run.data), session.runs), ["clean", "mechanism", "cost"])
    return folder


@pytest.fixture(scope="session")
def of_timm(session: Session) -> RunDir:
    """A timm student that leans on nobody: its weights are as they began, its batch norm's means are not."""
    run = distill(small(f"student.name={TIMM}", "data.image_size=40"), session, method="ce", seed=1, suite="timm")
    return RunDir(run.folder(session.runs))


@pytest.fixture(scope="session")
def dense(session: Session) -> RunDir:
    run = distill(load_recipe("cues-seg", [*SMALL, "iterations=2"]), session, method="kd", seed=1, suite="dense")
    return RunDir(run.folder(session.runs))
