"""A student, one of timm, one of scenes, and their teachers, trained once."""

from __future__ import annotations

import pytest
import torch

from antishortcut.config.recipe import Execution, load_recipe
from antishortcut.evaluation import Bench, evaluate
from antishortcut.run_dir import Folder
from antishortcut.training.pipeline import Workshop, distill
from tests.export.subjects import TIMM, small
from tests.training.test_segmentation_runs import SMALL


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    torch.set_num_threads(1)
    execution = Execution(accelerator="cpu", threads=1, save_every=1e9)
    return Workshop(tmp_path_factory.mktemp("export") / "runs", execution=execution, quiet=True)


@pytest.fixture(scope="session")
def student(shop: Workshop) -> Folder:
    """A student and its teacher, scored."""
    run = distill(small(), shop, method="kd", seed=3, suite="s")
    folder = Folder(run.folder(shop.runs))
    evaluate(folder, Bench(shop.sets(run.data), shop.runs), ["clean", "mechanism", "cost"])
    return folder


@pytest.fixture(scope="session")
def of_timm(shop: Workshop) -> Folder:
    """A timm student that leans on nobody: its weights are as they began, its batch norm's means are not."""
    run = distill(small(f"student.name={TIMM}", "data.image_size=40"), shop, method="ce", seed=1, suite="timm")
    return Folder(run.folder(shop.runs))


@pytest.fixture(scope="session")
def dense(shop: Workshop) -> Folder:
    run = distill(load_recipe("cues-seg", [*SMALL, "iterations=2"]), shop, method="kd", seed=1, suite="dense")
    return Folder(run.folder(shop.runs))
