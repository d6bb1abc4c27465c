"""Segmentation from recipe to scores: the same loop, in iterations."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from antishortcut.config.recipe import Recipe, load_recipe, with_settings
from antishortcut.errors import UserError
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.evaluation.stylize import write_stylized
from antishortcut.experiments.dial import measure
from antishortcut.methods import METHODS
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.types import VOID
from tests.conftest import CPU
from tests.data.official import make_ade
from tests.methods.test_contract import EQUAL_CHANNELS
from tests.processes import asd

SMALL = [
    "iterations=11", "data.image_size=32", "data.options.count=40", "data.options.test_count=20", "optim.batch=8",
    "teacher.name=dense-4-8", "student.name=dense-2-8", "methods.asd.warmup=4", "task.samples=64",
    "methods.ab.init=1", "methods.fsp.init=1", "methods.ft.init=1",
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
    warmup = [row["terms"]["tc"] for row in rows if "terms" in row]
    assert warmup[0] == 0
    assert all(value > 0 for value in warmup[1:])  # in steps, not epochs
    scores = evaluate(folder, EvalContext(session.sets(run.data), session.runs), ["clean", "scenes"])
    assert scores["iid"]["values"]["miou"] == pytest.approx(result["last"]["miou"])
    assert set(scores["iid"]["classes"]) == set(session.sets(run.data).classes)
    assert {"by_shape", "by_texture"} <= set(scores["conflict"]["values"])
    assert 0 <= scores["scenes"]["values"]["agreement"] <= 1


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Session]:
    """A recipe of two steps, and a session that has its teacher."""
    session = Session(tmp_path_factory.mktemp("runs"), execution=CPU, quiet=True)
    recipe = load_recipe("cues-seg", [*SMALL, "iterations=2", 'teacher.keep=["0%", 15, 50, 75]'])
    teach(recipe, session)
    return recipe, session


REFUSED = {
    "byot", "ckptkd", "crd", "crd+kd", "crd-queue", "dfr+kd", "groupdro+kd", "mlld", "mlld+ls", "simkd", "transplant",
}  # fmt: skip


def test_the_docs_name_the_refused_methods() -> None:
    page = (Path(__file__).parents[2] / "docs" / "segmentation.md").read_text()
    assert all(f"`{method}`" in page for method in REFUSED)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in REFUSED])
def test_a_method_trains(taught: tuple[Recipe, Session], method: str) -> None:
    recipe, session = taught
    if method in EQUAL_CHANNELS:
        recipe = with_settings(recipe, [f"student.name={recipe.teacher.name}"])
    run = distill(recipe, session, method=method, seed=1, suite="s")
    assert RunDir(run.folder(session.runs)).result()["steps"] == 2


@pytest.mark.parametrize("method", sorted(REFUSED))
def test_a_method_that_needs_whole_images_is_refused(
    dense: Recipe, session: Session, taught: tuple[Recipe, Session], method: str
) -> None:
    for recipe, here in ((dense, session), taught):  # before its teacher is trained, and afterwards
        with pytest.raises(UserError, match="needs") as caught:
            distill(recipe, here, method=method, seed=1, suite="s")
        assert "\n" not in str(caught.value)
        assert not (here.runs / "s" / f"{method}-s1").exists()
    assert not session.runs.exists()


def test_evaluations_that_need_labels_of_images_are_refused(taught: tuple[Recipe, Session], tmp_path: Path) -> None:
    recipe, session = taught
    run = distill(recipe, session, method="kd", seed=1, suite="s")
    folder, sets = RunDir(run.folder(session.runs)), session.sets(run.data)
    for name in ("hard", "mechanism", "attack", "groups", "corruptions"):
        with pytest.raises(UserError, match=r"one label for (every|an) image"):
            evaluate(folder, EvalContext(sets, session.runs), [name])
    assert not folder.scores()
    with pytest.raises(UserError, match="one label for every image"):
        measure(RunDir(teach(recipe, session).folder(session.runs)), sets, [], [0.5])
    for styles in (None, tmp_path):
        with pytest.raises(UserError, match="one label for every image"):
            write_stylized(None, sets, tmp_path / "out", styles=styles)  # type: ignore[arg-type]


@pytest.mark.slow
def test_two_processes_train_and_score_every_pixel(tmp_path: Path) -> None:
    """Batch statistics differ between one process and two, so the results do."""
    words = [word for text in SMALL for word in ("--set", text)]
    runs = tmp_path / "runs"
    result = json.loads(asd(tmp_path, "distill", "cues-seg", "--method", "asd", *words, "--devices", "2"))
    assert (result["steps"], result["last"]["images"]) == (11, 20)
    run = RunDir(runs / "cues-seg" / "asd-s1")
    scores = evaluate(run, EvalContext(Session(runs).sets(run.read()[0].data), runs), ["clean"])
    assert scores["iid"]["values"]["miou"] == pytest.approx(result["last"]["miou"], abs=1e-6)


def test_ade20k_in_its_official_layout(tmp_path: Path) -> None:
    """Images of different sizes on disk, a test set called val, 150 classes, an auxiliary head."""
    make_ade(tmp_path / "data")
    small = [
        "iterations=3", "data.image_size=48", "optim.batch=2", "teacher.name=dense-4", "teacher.pretrained=false",
        "student.name=deeplabv3-mobilenetv2", "student.pretrained=false", "methods.asd.warmup=1",
    ]  # fmt: skip
    session = Session(tmp_path / "runs", tmp_path / "data", execution=CPU, quiet=True)
    run = distill(load_recipe("ade20k-mobilenetv2", small), session, method="asd", seed=1, suite="s")
    folder = RunDir(run.folder(session.runs))
    assert folder.result()["set"] == "val"
    scores = evaluate(folder, EvalContext(session.sets(run.data), session.runs), ["clean", "scenes"])
    assert scores["val"]["values"]["miou"] == pytest.approx(folder.result()["last"]["miou"])
    assert len(scores["val"]["classes"]) == 150


@pytest.mark.parametrize(
    ("source", "setting", "message"),
    [
        ("cues-seg", "student.name=cnn-2-8", "every pixel, but the student network gives one vector"),
        ("cues-seg", "teacher.name=cnn-2-8", "every pixel, but the final network gives one vector"),
        ("cues", "student.name=dense-2-8", "every image, but the student network gives maps"),
    ],
)
def test_networks_of_the_other_task_are_refused_before_training(
    session: Session, source: str, setting: str, message: str
) -> None:
    small = [word for word in SMALL if source == "cues-seg" or "option" in word]
    with pytest.raises(UserError, match=message):
        distill(load_recipe(source, [*small, setting]), session, method="kd", seed=1, suite="s")
    assert not list(session.runs.rglob("run.json"))


def test_batches_without_a_labelled_pixel_change_no_weight(dense: Recipe, session: Session) -> None:
    """Every pixel void: weights stay as they were built, whatever decays or has momentum."""
    teach(dense, session)
    session.sets(dense.data).train.label.fill_(VOID)
    runs = [
        distill(with_settings(dense, [f"iterations={n}", "teacher.epochs=11"]), session, method="asd", seed=1, suite=n)
        for n in "15"
    ]
    one, many = (load_file(RunDir(run.folder(session.runs)).student) for run in runs)
    assert all(torch.equal(one[key], many[key]) for key in one if "running_" not in key and "batches" not in key)
    assert any(not torch.equal(one[key], many[key]) for key in one)  # batch statistics moved
