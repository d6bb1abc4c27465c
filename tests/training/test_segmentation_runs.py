"""Segmentation from recipe to pictures: the same loop, in iterations."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import antishortcut.training.trainer as loop
from antishortcut.analysis.contrast_targets import measure
from antishortcut.config.recipe import Execution, Recipe, load_recipe
from antishortcut.errors import UserError
from antishortcut.evaluation import EvalContext, evaluate
from antishortcut.evaluation.stylize import write_stylized
from antishortcut.methods import METHODS
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.training.signals import Stopped
from antishortcut.types import Batch
from tests.data.official import make_ade

SMALL = [
    "iterations=11", "data.image_size=32", "data.options.count=40", "data.options.test_count=20", "optim.batch=8",
    "teacher.name=dense-4-8", "student.name=dense-2-8", "methods.asd.warmup=4", "task.samples=64",
    'teacher.keep=["0%", 15, 50]',
]  # fmt: skip


@pytest.fixture
def dense() -> Recipe:
    return load_recipe("cues-seg", SMALL)


def test_a_recipe_in_iterations_is_trained_and_scored(dense: Recipe, session: Session) -> None:
    teacher = teach(dense, session)
    states = {
        label: entry for entry in Trajectory(RunDir(teacher.folder(session.runs))).entries for label in entry["labels"]
    }
    assert {label: entry["step"] for label, entry in states.items()} == {"0%": 0, "15%": 2, "50%": 6, "100%": 11}
    assert all({"accuracy", "miou", "images"} <= set(entry) for entry in states.values())
    run = distill(dense, session, method="asd", seed=1, suite="s")
    folder = RunDir(run.folder(session.runs))
    result, rows = folder.result(), folder.history()
    assert (result["steps"], result["primary_metric"], result["set"]) == (11, "miou", "iid")
    assert result["last"]["epoch"] == 2.2  # of five batches
    assert result["best"]["miou"] >= result["last"]["miou"]
    assert [row["step"] for row in rows if "scores" in row] == [5, 10, 11]  # ends of epochs, and the end
    assert folder.primary_metric() == ("miou", result["last"]["miou"])
    warm = [row["terms"]["tc"] for row in rows if "terms" in row]
    assert warm[0] == 0
    assert all(value > 0 for value in warm[1:])  # it counts steps, not epochs
    scores = evaluate(folder, EvalContext(session.sets(run.data), session.runs), ["clean", "scenes"])
    assert scores["iid"]["values"]["miou"] == pytest.approx(result["last"]["miou"])
    assert set(scores["iid"]["classes"]) == set(session.sets(run.data).classes)
    assert {"by_shape", "by_texture"} <= set(scores["conflict"]["values"])
    assert 0 <= scores["scenes"]["values"]["agreement"] <= 1


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Session]:
    """A recipe of two steps, and where its teacher is."""
    execution = Execution(accelerator="cpu", threads=1, save_every=1e9)
    session = Session(tmp_path_factory.mktemp("runs"), execution=execution, quiet=True)
    recipe = load_recipe("cues-seg", [*SMALL, "iterations=2", 'teacher.keep=["0%", 15, 50, 75]'])
    teach(recipe, session)
    return recipe, session


REFUSED = {"byot", "ckptkd", "crd", "crd+kd", "crd-queue"}


def test_the_docs_name_the_refused_methods() -> None:
    page = (Path(__file__).parents[2] / "docs" / "segmentation.md").read_text()
    assert all(f"`{method}`" in page for method in REFUSED)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_learns_from_maps_and_rows_or_is_refused(taught: tuple[Recipe, Session], method: str) -> None:
    recipe, session = taught
    if method not in REFUSED:
        run = distill(recipe, session, method=method, seed=1, suite="s")
        assert RunDir(run.folder(session.runs)).result()["steps"] == 2
        return
    with pytest.raises(UserError, match="needs one label for every image") as message:
        distill(recipe, session, method=method, seed=1, suite="s")
    assert "\n" not in str(message.value)
    assert not list(session.runs.glob(f"s/{method}-s1/history*"))


@pytest.mark.parametrize("method", sorted(REFUSED - {"byot"}))  # which has no teacher
def test_a_method_is_refused_before_its_teacher_is_trained(dense: Recipe, session: Session, method: str) -> None:
    with pytest.raises(UserError, match="needs"):
        distill(dense, session, method=method, seed=1, suite="s")
    assert not session.runs.exists()


def test_what_needs_labels_of_images_is_refused(taught: tuple[Recipe, Session], tmp_path: Path) -> None:
    recipe, session = taught
    run = distill(recipe, session, method="kd", seed=1, suite="s")
    folder, sets = RunDir(run.folder(session.runs)), session.sets(run.data)
    for name in ("hard", "mechanism", "attack", "groups"):
        with pytest.raises(UserError, match="needs one label for every image; here there is one for every pixel"):
            evaluate(folder, EvalContext(sets, session.runs), [name])
    with pytest.raises(UserError, match="one label for an image"):
        evaluate(folder, EvalContext(sets, session.runs), ["corruptions"])
    assert set(folder.scores()) == set()
    with pytest.raises(UserError, match="targets needs one label for every image"):
        measure(RunDir(teach(recipe, session).folder(session.runs)), sets, [], [0.5])
    for styles in (None, tmp_path):
        with pytest.raises(UserError, match="a stylised set needs one label for every image"):
            write_stylized(None, sets, tmp_path / "out", styles=styles)  # type: ignore[arg-type]


def test_stopped_and_resumed_equals_uninterrupted(
    dense: Recipe, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = distill(dense, session, method="asd", seed=1, suite="s")
    whole = RunDir(run.folder(session.runs))
    other = Session(tmp_path / "parts", execution=session.execution, quiet=True)
    shutil.copytree(session.runs / "teachers", other.runs / "teachers")
    step = loop.Trainer._step

    def stopping(self: loop.Trainer, batch: Batch) -> float:
        rate = step(self, batch)
        if self.done in (3, 10):  # inside an epoch, at the end of one
            signal.raise_signal(signal.SIGTERM)
        return rate

    monkeypatch.setattr(loop.Trainer, "_step", stopping)
    for _ in range(2):
        with pytest.raises(Stopped):
            distill(dense, other, method="asd", seed=1, suite="s")
    distill(dense, other, method="asd", seed=1, suite="s")
    again = RunDir(run.folder(other.runs))
    one, two = load_file(whole.student), load_file(again.student)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert whole.history() == again.history()


@pytest.mark.slow
def test_two_processes_share_the_batch(tmp_path: Path) -> None:
    """Statistics of batches differ between one and two, so only that it runs, and that scores count every pixel."""
    words = [word for text in SMALL for word in ("--set", text)]
    command = [sys.executable, "-m", "antishortcut", "distill", "cues-seg", "--method", "asd", *words, "--json"]
    settings = ["--device", "cpu", "--devices", "2", "--threads", "1", "--runs", str(tmp_path / "runs")]
    done = subprocess.run(
        [*command, *settings], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["steps"], result["last"]["images"]) == (11, 20)
    run = RunDir(tmp_path / "runs" / "cues-seg" / "asd-s1")
    sets = Session(tmp_path / "runs").sets(run.read()[0].data)
    scores = evaluate(run, EvalContext(sets, tmp_path / "runs"), ["clean"])
    assert scores["iid"]["values"]["miou"] == pytest.approx(result["last"]["miou"], abs=1e-6)


def test_ade20k_in_its_official_layout(tmp_path: Path) -> None:
    """Images of different sizes on disk, a test set called val, 150 classes, an auxiliary head."""
    make_ade(tmp_path / "data")
    small = [
        "iterations=3", "data.image_size=48", "optim.batch=2", "teacher.name=dense-4", "teacher.pretrained=false",
        "student.name=deeplabv3-mobilenetv2", "student.pretrained=false", "methods.asd.warmup=1",
    ]  # fmt: skip
    session = Session(
        tmp_path / "runs", tmp_path / "data", execution=Execution(accelerator="cpu", threads=1), quiet=True
    )
    run = distill(load_recipe("ade20k-mobilenetv2", small), session, method="asd", seed=1, suite="s")
    folder = RunDir(run.folder(session.runs))
    assert folder.result()["set"] == "val"
    scores = evaluate(folder, EvalContext(session.sets(run.data), session.runs), ["clean", "scenes"])
    assert scores["val"]["values"]["miou"] == pytest.approx(folder.result()["last"]["miou"])
    assert len(scores["val"]["classes"]) == 150


@pytest.mark.parametrize(
    ("source", "words", "said"),
    [
        ("cues-seg", ["student.name=cnn-2-8"], "a class for every pixel, but the student network gives one vector"),
        ("cues-seg", ["teacher.name=cnn-2-8"], "a class for every pixel, but the final network gives one vector"),
        ("cues", ["student.name=dense-2-8"], "a class for every image, but the student network gives maps"),
    ],
)
def test_networks_of_the_other_task_are_refused_before_training(
    session: Session, source: str, words: list[str], said: str
) -> None:
    small = [word for word in SMALL if source == "cues-seg" or "option" in word]
    recipe = load_recipe(source, [*small, *words])
    with pytest.raises(UserError, match=said):
        distill(recipe, session, method="kd", seed=1, suite="s")
    assert not list(session.runs.rglob("run.json"))


def test_a_batch_of_void_pixels_changes_no_weight(
    dense: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch void: the student ends with the weights it began with, whatever decays or has momentum."""
    outputs: list[dict[str, torch.Tensor]] = []
    step = loop.Trainer._step

    def void(self: loop.Trainer, batch: Batch) -> float:
        outputs.append({key: value.clone() for key, value in self.student.named_parameters()})
        return step(self, Batch(batch.image, torch.full_like(batch.label, 255), batch.index))

    teach(dense, session)
    monkeypatch.setattr(loop.Trainer, "_step", void)
    run = distill(dense, session, method="asd", seed=1, suite="s")
    after = load_file(RunDir(run.folder(session.runs)).student)
    assert len(outputs) == 11
    assert all(torch.equal(after[key], value) for key, value in outputs[0].items())


def test_a_rewind_counts_as_its_recipe_does(dense: Recipe) -> None:
    assert dense.teacher.rewind_epochs == 1  # of 11 iterations
    assert load_recipe("ade20k-resnet18").teacher.rewind_epochs == 1667  # 10 of 240 epochs, as a share
    assert load_recipe("cues-seg", ["teacher.rewind_epochs=7"]).teacher.rewind_epochs == 7
