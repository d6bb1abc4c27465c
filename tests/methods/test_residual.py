"""Residual training against a loop and by hand, and that what training sees is not what is used afterwards."""
# B batch, C classes

import math
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.config.recipe import Recipe
from antishortcut.data import Loader
from antishortcut.evaluation import evaluate
from antishortcut.evaluation.context import EvalContext, EvaluatedRun
from antishortcut.methods.residual import ResidualKD
from antishortcut.run_dir import RunDir
from antishortcut.tasks import Classification
from antishortcut.training.pipeline import Session, distill
from antishortcut.training.step import DistillationStep
from antishortcut.types import Batch, Features
from tests.methods.test_asd import double, sizes
from tests.methods.test_contrast import slow_log_softmax
from tests.methods.test_fitnets import numbered
from tests.methods.test_kd import logits_only, slow_kd
from tests.test_subspace import close, normal, seeds, several

SIZES = sizes(8, 8, 100)


def slow_view(student: Tensor, early: Tensor, strength: float, floor: float) -> Tensor:
    """student + λ max(log p_E, floor), class by class."""
    rows = []
    for own, before in zip(student.tolist(), early.tolist(), strict=True):
        rows.append([s + strength * max(e, floor) for s, e in zip(own, slow_log_softmax(before), strict=True)])
    return double(rows)


@several
@given(strength=st.sampled_from([0.0, 0.5, 2.0]), floor=st.sampled_from([-0.5, -8.0]), seed=seeds)
def test_agrees_with_the_loop(strength: float, floor: float, seed: int) -> None:
    rows, temperature = 1 + seed % 5, 2.0
    student, final, early = (3 * normal(rows, 4, seed=seed + i) for i in range(3))
    method = ResidualKD(SIZES, strength=strength, floor=floor, weight=0.5, temperature=temperature)
    teachers = {"final": logits_only(final), "early": logits_only(early)}
    outputs = logits_only(student)
    view = method.view(outputs, teachers)
    slow = slow_view(student, early, strength, floor)
    close(view.logits, slow)
    assert view.embedding is outputs.embedding  # only the answer is seen otherwise
    assert outputs.logits is student
    terms = method.terms(view, teachers, numbered(rows), epoch=0.0)
    assert list(terms) == ["kd"]
    close(terms["kd"], 0.5 * slow_kd(slow, final, temperature))


def test_two_classes_by_hand() -> None:
    """p_E = (3/4, 1/4) beside an undecided student: together they say 3/4 at λ = 1, 9/10 at λ = 2."""
    teachers = {"early": logits_only(double([[math.log(3), 0]]))}
    undecided = logits_only(double([[5, 5]]))
    close(ResidualKD(SIZES, strength=1.0).view(undecided, teachers).logits.softmax(1), [[3 / 4, 1 / 4]], 1e-12)
    close(ResidualKD(SIZES, strength=2.0).view(undecided, teachers).logits.softmax(1), [[9 / 10, 1 / 10]], 1e-12)
    cut = ResidualKD(SIZES, strength=1.0, floor=math.log(3 / 8)).view(undecided, teachers)  # 3/4 to 3/8
    close(cut.logits.softmax(1), [[2 / 3, 1 / 3]], 1e-12)


# --- through the step --------------------------------------------------------------------------------------------


class Fixed(nn.Module):
    """A student whose logits are parameters, one row an image."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.float())

    def forward(self, image: Tensor) -> Features:
        return Features(self.logits[: len(image)] * 1.0, torch.zeros(len(image), 8))


def given_batch(rows: int = 6) -> tuple[Batch, Mapping[str, Features]]:
    batch = Batch(torch.zeros(rows, 3, 8, 8), torch.arange(rows) % 5, torch.arange(rows))
    teachers = {name: logits_only(3 * normal(rows, 5, seed=at).float()) for at, name in enumerate(("final", "early"))}
    return batch, teachers


def test_the_tasks_loss_sees_the_view() -> None:
    student, (batch, teachers) = Fixed(normal(6, 5, seed=9)), given_batch()
    method = ResidualKD(SIZES, strength=0.7, floor=-2.0, weight=0.5, temperature=2.0, task_weight=0.3)
    terms = DistillationStep(student, method, Classification(label_smoothing=0.1))(batch, teachers, 0.0)
    view = slow_view(student.logits, teachers["early"].logits, 0.7, -2.0)
    assert (view - student.logits).abs().max() > 0.5
    close(terms["task"], 0.3 * F.cross_entropy(view, batch.label, label_smoothing=0.1), 1e-6)
    close(terms["kd"], 0.5 * slow_kd(view, teachers["final"].logits, 2.0), 1e-5)


def test_a_trained_student_is_scored_without_the_early_state(recipe: Recipe, session: Session) -> None:
    run = distill(recipe, session, method="residual", seed=1, suite="s", options={"strength": 2.0})
    folder, sets = RunDir(run.folder(session.runs)), session.sets(recipe.data)
    scores = evaluate(folder, EvalContext(sets, session.runs), ["clean"])
    network, images = EvaluatedRun(folder, EvalContext(sets, session.runs)).network, sets.tests["iid"]
    (batch,) = Loader(images, batch=100, seed=0, image_size=32, augment="none", shuffle=False).epoch(0)
    with torch.no_grad():
        plain = float((network(batch.image).logits.argmax(1) == batch.label).double().mean())
    assert scores["iid"]["values"]["accuracy"] == pytest.approx(plain)
    assert folder.result()["last"]["accuracy"] == pytest.approx(plain)  # the loop judges it so as well
