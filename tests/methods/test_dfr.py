"""DFR: the refitted layer against its objective, scikit-learn and a planted shortcut; and runs that end with it."""
# N images, D embedding, C classes

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn

import antishortcut.methods.dfr as dfr
from antishortcut.config.recipe import Recipe, with_settings
from antishortcut.data import open_sets
from antishortcut.errors import UserError
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext
from antishortcut.methods.dfr import DFR, balanced, halves, l1_regression, logistic, refit, worst_group
from antishortcut.models import Network
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Trajectory
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.types import DataSplits, Features, ImageSet, Shape, Sizes
from tests.conftest import CPU, assert_same_run, same_weights, stop_after
from tests.data.test_groups import make_birds
from tests.processes import asd

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def planted(count: int, agree: float, seed: int) -> tuple[Floats, Ints, Ints]:
    """Embeddings (N, 4): the class with noise, a shortcut without, two of nothing; labels and groups (N,)."""
    draw = np.random.default_rng(seed)
    label = draw.integers(2, size=count)
    shortcut = np.where(draw.random(count) < agree, label, 1 - label)
    x = draw.normal(size=(count, 4))
    x[:, 0] = 0.8 * x[:, 0] + 2 * label
    x[:, 1] = 0.1 * x[:, 1] + 3 * shortcut + 5
    return x, label, 2 * label + shortcut


def test_a_planted_shortcut_is_ignored() -> None:
    train, label, group = planted(2000, 0.95, 0)
    plain = logistic(train, label, 2, 1.0)
    layer = refit(train, *planted(400, 0.9, 1), classes=2, refits=20, seed=0)
    test, answer, place = planted(4000, 0.5, 2)

    def worst(weight: Floats, bias: Floats) -> float:
        return worst_group((test @ weight.T + bias).argmax(axis=1) == answer, place)

    def shortcut_share(weight: Floats) -> float:
        return float(abs(weight[1, 1]) / abs(weight[1]).sum())

    assert worst(*plain) < 0.75
    assert worst(layer.weight, layer.bias) > 0.85
    assert shortcut_share(layer.weight) < 0.1 < 0.3 < shortcut_share(plain[0])
    assert layer.strength in dfr.STRENGTHS
    assert 0.7 < layer.worst <= 1
    again = refit(train, label=label, x=train, group=group, classes=2, refits=10, seed=0)  # the training images alone
    assert worst(again.weight, again.bias) > 0.85


def slow_l1(x: Floats, label: Ints, strength: float) -> tuple[list[float], float]:
    """min |w| + |b| + C Σ log(1 + exp(−y (w·x + b))), y = ±1, by proximal gradient steps in Python's floats."""
    rows = [[*row, 1.0] for row in x.tolist()]
    signs = [1.0 if y else -1.0 for y in label.tolist()]
    step = 4 / (strength * sum(value * value for row in rows for value in row))
    w = [0.0] * len(rows[0])
    for _ in range(3000):
        gradient = [0.0] * len(w)
        for row, sign in zip(rows, signs, strict=True):
            pull = -strength * sign / (1 + math.exp(sign * sum(a * b for a, b in zip(w, row, strict=True))))
            gradient = [g + pull * value for g, value in zip(gradient, row, strict=True)]
        moved = [a - step * g for a, g in zip(w, gradient, strict=True)]
        w = [math.copysign(max(abs(a) - step, 0.0), a) for a in moved]
    return w[:-1], w[-1]


@pytest.mark.parametrize("strength", [1.0, 0.1])
def test_the_regression_agrees_with_its_objective(strength: float) -> None:
    x, label, _ = planted(30, 0.8, 3)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    weight, bias = logistic(x, label, 2, strength)
    slow_weight, slow_bias = slow_l1(x, label, strength)
    np.testing.assert_allclose(2 * weight[1], slow_weight, atol=0.01)
    assert 2 * bias[1] == pytest.approx(slow_bias, abs=0.01)
    np.testing.assert_array_equal(weight[0], -weight[1])


def test_the_layer_is_the_regression_on_standardised_embeddings() -> None:
    """One fit to groups that are balanced already: the same predictions and probabilities as scikit-learn's."""
    train, *_ = planted(500, 0.9, 4)
    x, label, group = planted(400, 0.5, 5)
    rows = balanced(group, np.random.default_rng(0))
    x, label, group = x[rows], label[rows], group[rows]
    layer = refit(train, x, label, group, classes=2, refits=1, seed=0)
    scaler = StandardScaler().fit(train)
    model = l1_regression(layer.strength).set_params(tol=1e-8)
    model.fit(scaler.transform(x), label)
    test, *_ = planted(1000, 0.5, 6)
    logits = torch.from_numpy(test @ layer.weight.T + layer.bias)
    np.testing.assert_allclose(logits.softmax(1)[:, 1], model.predict_proba(scaler.transform(test))[:, 1], atol=2e-3)
    decided = abs((logits[:, 1] - logits[:, 0]).numpy()) > 0.01
    np.testing.assert_array_equal(logits.argmax(1)[decided], model.predict(scaler.transform(test))[decided])
    assert decided.mean() > 0.99


def test_several_classes_are_one_against_the_rest() -> None:
    draw = np.random.default_rng(0)
    label = np.arange(90) % 3
    x = draw.normal(size=(90, 5)) + 2 * np.eye(5)[label]
    weight, bias = logistic(x, label, 3, 0.3)
    model = OneVsRestClassifier(l1_regression(0.3)).fit(x, label)
    np.testing.assert_allclose(x @ weight.T + bias, model.decision_function(x), atol=1e-12)
    np.testing.assert_array_equal((x @ weight.T + bias).argmax(axis=1), model.predict(x))


def test_refits_are_averaged_and_repeat() -> None:
    train, label, group = planted(300, 0.8, 7)
    first, again, other = (refit(train, train, label, group, 2, 5, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.weight, again.weight)
    np.testing.assert_array_equal(first.bias, again.bias)
    assert (first.weight != other.weight).any()


def test_dead_units_and_tiny_groups_stay_finite() -> None:
    x, label, _ = planted(40, 0.9, 8)
    x[:, 3] = 2.5  # a constant has no deviation to divide by
    group = label.copy()
    group[0] = 2  # a group of one: fitted, not scored
    layer = refit(x.astype(np.float32), x.astype(np.float32), label, group, 2, 3, 0)
    assert np.isfinite(layer.weight).all()
    assert np.isfinite(layer.bias).all()
    single = refit(x[:2], x[:2], np.arange(2), np.arange(2), 2, 1, 0)  # nothing to choose by
    assert (single.strength, single.worst) == (1.0, 0.0)


def test_balanced_subsets_and_halves() -> None:
    group = np.array([0] * 7 + [1] * 3 + [3] * 4)
    draw = np.random.default_rng(0)
    drawn = [balanced(group, draw) for _ in range(50)]
    for rows in drawn:
        assert np.bincount(group[rows]).tolist() == [3, 3, 0, 3]
        assert len(set(rows.tolist())) == 9
    assert {row for rows in drawn for row in rows.tolist()} == set(range(14))
    first, second = halves(group, draw)
    assert (np.bincount(group[first]).tolist(), np.bincount(group[second]).tolist()) == ([4, 2, 0, 2], [3, 1, 0, 2])
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(14))


# --- Networks and data that cannot work ---


class Toy(nn.Module):
    """A body with these layers, and features as `Network` wants them."""

    def __init__(self, head: nn.Module, before: bool = False) -> None:
        super().__init__()
        self.head, self.before = head, before

    def forward(self, x: torch.Tensor) -> Features:
        embedding = x.mean(dim=(2, 3))
        return Features(self.head(embedding), embedding if not self.before else embedding + 1)


def sets(val: bool = False) -> DataSplits:
    label = torch.arange(16) % 2
    images = ImageSet(torch.zeros(16, 3, 4, 4, dtype=torch.uint8), label, {"place": torch.arange(16) // 2 % 2})
    return DataSplits("toy", ("a", "b"), 4, images, images if val else None, {"test": images}, "f")


def method_of(**settings: Any) -> DFR:
    label = torch.arange(16) % 2
    return DFR(Sizes(2, 16, Shape(3), {"final": Shape(3)}, label, label), **settings)


@pytest.mark.parametrize(
    "body",
    [
        Toy(nn.Sequential(nn.Linear(3, 2), nn.Tanh())),
        Toy(nn.Linear(3, 2, bias=False)),
        Toy(nn.Linear(3, 2), before=True),
        Toy(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))),
    ],
    ids=["none", "no-bias", "named-elsewhere", "parametrised"],
)
def test_a_student_without_a_plain_last_layer_is_refused(body: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"refits the student's last layer, which must be an nn\.Linear"):
        method_of().check_finish(Network(body), sets())


@pytest.mark.parametrize(
    ("split", "val", "message"),
    [("val", False, "no images are held out; set data.val_fraction"), ("validation", True, "no set of that name")],
)
def test_a_split_that_is_not_there_is_refused(split: str, val: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method_of(split=split).check_finish(Network(Toy(nn.Linear(3, 2))), sets(val))


def test_a_held_out_set_needs_every_group_and_two_classes() -> None:
    network, data = Network(Toy(nn.Linear(3, 2))), sets()
    some = ImageSet(data.train.image[:2], data.train.label[:2], {"place": torch.tensor([0, 0])})  # type: ignore[union-attr]
    method_of().check_finish(network, sets(val=True))
    with pytest.raises(ValueError, match=r"val has no image of the group 'a, place 1'"):
        method_of().check_finish(network, DataSplits("toy", ("a", "b"), 4, data.train, some, data.tests, "f"))
    one = ImageSet(some.image, torch.zeros(2, dtype=torch.int64), some.cues)
    with pytest.raises(ValueError, match="needs images of two or more classes"):
        method_of().check_finish(network, DataSplits("toy", ("a", "b"), 4, one, None, data.tests, "f"))


def test_a_missing_package_is_named_before_anything_is_trained(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        UserError, match=r"^method 'dfr\+kd': needs scikit-learn: pip install 'antishortcut\[report\]'$"
    ):
        student(recipe, session)
    assert not session.runs.exists()


# --- Runs ---


def student(recipe: Recipe, session: Session, method: str = "dfr+kd", suite: str = "s", **options: Any) -> RunDir:
    return RunDir(distill(recipe, session, method=method, seed=1, suite=suite, options=options).folder(session.runs))


def test_a_run_is_kd_with_another_last_layer_and_its_scores(recipe: Recipe, session: Session) -> None:
    ours, kd = student(recipe, session), student(recipe, session, "kd")
    one, two = load_file(ours.student), load_file(kd.student)
    assert {key for key in one if not torch.equal(one[key], two[key])} == {"body.head.weight", "body.head.bias"}
    first, second = ([row for row in run.history() if "terms" in row] for run in (ours, kd))
    assert first == second
    scores = evaluate(ours, EvalContext(session.sets(recipe.data), session.runs), ["clean"])
    assert ours.result()["last"]["accuracy"] == pytest.approx(scores["iid"]["values"]["accuracy"], abs=1e-6)
    assert ours.history()[-1]["scores"]["accuracy"] == ours.result()["last"]["accuracy"]


@pytest.mark.parametrize("settings", [[], ["optim.ema=0.9"]], ids=["plain", "ema"])
def test_resumes_from_the_end_and_from_a_kill_while_refitting(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch, settings: list[str]
) -> None:
    recipe = with_settings(recipe, settings)
    teach(recipe, session)
    whole = student(recipe, session, suite="whole")
    with stop_after(16):  # the last step: its checkpoint holds the refitted layer, which is not refitted again
        student(recipe, session, suite="end")
    with monkeypatch.context() as patch:
        patch.setattr(dfr, "refit", None)
        assert_same_run(student(recipe, session, suite="end"), whole)
    session.execution = CPU.model_copy(update={"save_every": 0.0})
    with monkeypatch.context() as patch:
        patch.setattr(dfr, "logistic", killed)
        with pytest.raises(KeyboardInterrupt):
            student(recipe, session, suite="killed")
    assert RunDir(session.runs / "killed" / "dfr+kd-s1").checkpoints
    assert_same_run(student(recipe, session, suite="killed"), whole)


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_the_averaged_network_is_refitted(recipe: Recipe, session: Session) -> None:
    averaged = with_settings(recipe, ["optim.ema=0.9"])
    ours, kd = student(averaged, session), student(averaged, session, "kd")
    one, two = load_file(ours.student), load_file(kd.student)
    assert {key for key in one if not torch.equal(one[key], two[key])} == {"body.head.weight", "body.head.bias"}
    assert ours.result()["raw"] == kd.result()["raw"]  # the weights that were averaged are left alone


def test_an_assistant_hands_on_what_was_refitted(recipe: Recipe, session: Session) -> None:
    run = distill(recipe, session, method="dfr+kd", seed=1, suite="s", via=["cnn-3-12"])
    assistant = RunDir(session.runs / "teachers" / str(run.teacher))
    saved, final = load_file(assistant.student), Trajectory(assistant).weights("final")
    assert all(torch.equal(saved[key], final[key]) for key in saved)


def test_held_out_images_are_used_if_there_are_any(
    recipe: Recipe, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[int, int, int]] = []

    def watched(train: Any, x: Any, label: Any, group: Any, classes: int, refits: int, seed: int) -> Any:
        used.append((len(train), len(x), refits))
        return refit(train, x, label, group, classes, 1, seed)

    monkeypatch.setattr(dfr, "refit", watched)
    student(recipe, session)
    held_out = with_settings(recipe, ["data.val_fraction=0.5", "data.options.rho=0.5"])
    student(held_out, session, suite="val")
    student(held_out, session, suite="train", split="train", refits=3)
    assert used == [(256, 256, 10), (128, 128, 20), (128, 128, 3)]


def test_the_validation_split_of_a_group_file(tmp_path: Path) -> None:
    data = open_sets(f"groups:{make_birds(tmp_path)}", None, image_size=4)
    network = Network(Toy(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match="validation has no image of the group '0, place 1'"):
        method_of(split="validation").check_finish(network, data)
    name, images = method_of(split="validation")._images(data)
    assert images is data.tests[name]


@pytest.mark.slow
def test_two_processes_save_and_score_the_same_layer(tmp_path: Path, tiny: Path) -> None:
    words = ["distill", str(tiny), "--method", "dfr+kd", "--devices", "2"]
    result = json.loads(asd(tmp_path, *words))
    run = RunDir(tmp_path / "runs" / "tiny" / "dfr+kd-s1")
    session = Session(tmp_path / "runs")
    scores = evaluate(run, EvalContext(session.sets(run.read()[0].data), session.runs), ["clean"])
    assert result["last"]["accuracy"] == pytest.approx(scores["iid"]["values"]["accuracy"], abs=1e-6)
    kd = json.loads(asd(tmp_path, "distill", str(tiny), "--method", "kd", "--devices", "2"))
    assert not same_weights(run.student, tmp_path / "runs" / "tiny" / "kd-s1" / "student.safetensors")
    assert kd["steps"] == result["steps"]
