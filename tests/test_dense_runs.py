"""Segmentation from recipe to pictures: the same loop, in iterations."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import antishortcut.train as loop
from antishortcut.errors import UserError
from antishortcut.evaluate import Bench, evaluate
from antishortcut.folder import Folder
from antishortcut.run import Execution, Recipe, load_recipe
from antishortcut.teachers import Trajectory
from antishortcut.types import Batch
from antishortcut.workflow import Workshop, distill, teach

from .data.official import make_ade

SMALL = [
    "iterations=11", "data.image_size=32", "data.options.count=40", "data.options.test_count=20", "optim.batch=8",
    "teacher.name=dense-4-8", "student.name=dense-2-8", "methods.asd.warmup=4", "task.rows=64",
    'teacher.keep=["0%", 15, 50]',
]  # fmt: skip


@pytest.fixture
def dense() -> Recipe:
    return load_recipe("cues-seg", SMALL)


def test_a_recipe_in_iterations_is_trained_and_scored(dense: Recipe, shop: Workshop) -> None:
    teacher = teach(dense, shop)
    states = {
        label: entry for entry in Trajectory(Folder(teacher.folder(shop.runs))).entries for label in entry["labels"]
    }
    assert {label: entry["step"] for label, entry in states.items()} == {"0%": 0, "15%": 2, "50%": 6, "100%": 11}
    assert all({"accuracy", "miou", "images"} <= set(entry) for entry in states.values())
    run = distill(dense, shop, method="asd", seed=1, suite="s")
    folder = Folder(run.folder(shop.runs))
    result, rows = folder.result(), folder.history()
    assert (result["steps"], result["headline"], result["set"]) == (11, "miou", "iid")
    assert result["last"]["epoch"] == 2.2  # of five batches
    assert result["best"]["miou"] >= result["last"]["miou"]
    assert [row["step"] for row in rows if "scores" in row] == [5, 10, 11]  # ends of epochs, and the end
    assert folder.headline() == ("miou", result["last"]["miou"])
    warm = [row["terms"]["tc"] for row in rows if "terms" in row]
    assert warm[0] == 0
    assert all(value > 0 for value in warm[1:])  # it counts steps, not epochs
    scores = evaluate(folder, Bench(shop.sets(run.data), shop.runs), ["clean", "scenes"])
    assert scores["iid"]["values"]["miou"] == pytest.approx(result["last"]["miou"])
    assert set(scores["iid"]["classes"]) == set(shop.sets(run.data).classes)
    assert {"by_shape", "by_texture"} <= set(scores["conflict"]["values"])
    assert 0 <= scores["scenes"]["values"]["agreement"] <= 1


@pytest.mark.parametrize("method", ["ce", "kd", "afdcd", "ufd", "contrast+tc", "at+kd", "fitnets+kd", "rkd"])
def test_methods_learn_from_maps_and_rows(dense: Recipe, shop: Workshop, method: str) -> None:
    run = distill(dense, shop, method=method, seed=1, suite="s")
    assert Folder(run.folder(shop.runs)).result()["steps"] == 11


def test_what_needs_labels_of_images_is_refused(dense: Recipe, shop: Workshop) -> None:
    with pytest.raises(UserError, match="needs the training labels"):
        distill(dense, shop, method="crd+kd", seed=1, suite="s")
    run = distill(dense, shop, method="kd", seed=1, suite="s")
    folder, bench = Folder(run.folder(shop.runs)), Bench(shop.sets(run.data), shop.runs)
    for name in ("hard", "mechanism", "corruptions"):
        with pytest.raises(UserError):
            evaluate(folder, bench, [name])
    assert set(folder.scores()) == set()


def test_scenes_show_what_was_predicted(dense: Recipe, shop: Workshop) -> None:
    run = distill(dense, shop, method="kd", seed=1, suite="s")
    folder, sets = Folder(run.folder(shop.runs)), shop.sets(run.data)
    evaluate(folder, Bench(sets, shop.runs), ["scenes"])
    made = json.loads((folder.path / "artifacts" / "scenes.json").read_text())
    place = folder.path / "artifacts" / "scenes"
    assert made["scenes"] == 16
    assert len(list(place.iterdir())) == 64
    assert len(set(made["colours"])) == len(made["classes"]) == 11
    shown = torch.linspace(0, 19, 16).round().long()
    truth = torch.stack([torch.tensor(np.asarray(Image.open(place / f"{n:02d}-truth.png"))) for n in range(16)])
    assert torch.equal(truth.long(), sets.tests["iid"].label[shown].long())
    planes = made["embedding"]
    if planes is not None:
        assert len(planes["label"]) == len(planes["teacher"]) == len(planes["student"])


def test_stopped_and_resumed_equals_uninterrupted(
    dense: Recipe, shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = distill(dense, shop, method="asd", seed=1, suite="s")
    whole = Folder(run.folder(shop.runs))
    other = Workshop(tmp_path / "parts", execution=shop.execution, quiet=True)
    shutil.copytree(shop.runs / "teachers", other.runs / "teachers")
    step = loop.Training._step

    def stopping(self: loop.Training, batch: Batch) -> float:
        rate = step(self, batch)
        if self.done in (3, 10):  # inside an epoch, at the end of one
            signal.raise_signal(signal.SIGTERM)
        return rate

    monkeypatch.setattr(loop.Training, "_step", stopping)
    for _ in range(2):
        with pytest.raises(loop.Stopped):
            distill(dense, other, method="asd", seed=1, suite="s")
    distill(dense, other, method="asd", seed=1, suite="s")
    again = Folder(run.folder(other.runs))
    one, two = load_file(whole.student), load_file(again.student)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert whole.history() == again.history()


@pytest.mark.slow
def test_two_processes_share_the_batch(tmp_path: Path) -> None:
    """Statistics of batches differ between one and two, so only that it runs, and that scores count every pixel."""
    words = [word for text in SMALL for word in ("--set", text)]
    command = [sys.executable, "-m", "antishortcut", "distill", "cues-seg", "--method", "asd", *words, "--json"]
    how = ["--device", "cpu", "--devices", "2", "--threads", "1", "--runs", str(tmp_path / "runs")]
    done = subprocess.run(
        [*command, *how], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["steps"], result["last"]["images"]) == (11, 20)
    run = Folder(tmp_path / "runs" / "cues-seg" / "asd-s1")
    sets = Workshop(tmp_path / "runs").sets(run.read()[0].data)
    scores = evaluate(run, Bench(sets, tmp_path / "runs"), ["clean"])
    assert scores["iid"]["values"]["miou"] == pytest.approx(result["last"]["miou"], abs=1e-6)


def test_ade20k_in_its_official_layout(tmp_path: Path) -> None:
    """Images of different sizes on disk, a test set called val, 150 classes, an auxiliary head."""
    make_ade(tmp_path / "data")
    small = [
        "iterations=3", "data.image_size=48", "optim.batch=2", "teacher.name=dense-4", "teacher.pretrained=false",
        "student.name=deeplabv3-mobilenetv2", "student.pretrained=false", "methods.asd.warmup=1",
    ]  # fmt: skip
    shop = Workshop(tmp_path / "runs", tmp_path / "data", execution=Execution(accelerator="cpu", threads=1), quiet=True)
    run = distill(load_recipe("ade20k-mobilenetv2", small), shop, method="asd", seed=1, suite="s")
    folder = Folder(run.folder(shop.runs))
    assert folder.result()["set"] == "val"
    scores = evaluate(folder, Bench(shop.sets(run.data), shop.runs), ["clean", "scenes"])
    assert scores["val"]["values"]["miou"] == pytest.approx(folder.result()["last"]["miou"])
    assert len(scores["val"]["classes"]) == 150
