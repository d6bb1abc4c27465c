"""Knowledge distillation against a loop and by hand; the settings of methods and what is said when they are wrong."""
# B batch, C classes

import math
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.errors import UserError
from antishortcut.methods import build_method, method_options
from antishortcut.methods.ce import CE
from antishortcut.methods.kd import KD, kd_loss
from antishortcut.types import Features, Shape, Sizes
from tests.methods.test_fitnets import numbered
from tests.test_subspace import close, normal, seeds, several

SIZES = Sizes(classes=5, examples=100, student=Shape(8), teachers={"final": Shape(8), "early": Shape(8)})


def softened(logits: Tensor, temperature: float) -> list[list[float]]:
    rows = []
    for row in logits.tolist():
        powers = [math.exp(v / temperature) for v in row]
        rows.append([v / sum(powers) for v in powers])
    return rows


def slow_kd(student: Tensor, teacher: Tensor, temperature: float) -> float:
    """τ² times the mean over rows of Σ q log(q / p), as Hinton et al. write it."""
    total = 0.0
    for s, t in zip(softened(student, temperature), softened(teacher, temperature), strict=True):
        total += sum(q * math.log(q / p) for p, q in zip(s, t, strict=True))
    return temperature**2 * total / len(student)


def logits_only(logits: Tensor) -> Features:
    return Features(logits=logits, embedding=torch.zeros(len(logits), 8))


@several
@given(b=st.integers(1, 5), c=st.integers(2, 6), temperature=st.sampled_from([0.5, 1.0, 4.0]), seed=seeds)
def test_agrees_with_the_loop(b: int, c: int, temperature: float, seed: int) -> None:
    student, teacher = 3 * normal(b, c, seed=seed), 3 * normal(b, c, seed=seed + 1)
    loss = kd_loss(student, teacher, temperature)
    close(loss, slow_kd(student, teacher, temperature))
    assert loss >= 0
    close(kd_loss(student + 7.0, teacher - 5.0, temperature), loss)  # only differences of logits matter
    close(kd_loss(teacher, teacher, temperature), 0.0, 1e-14)


def test_a_learned_temperature_is_a_tensor() -> None:
    student, teacher = normal(3, 5), normal(3, 5, seed=1)
    learned = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = kd_loss(student, teacher, cast(Any, learned))
    close(loss, slow_kd(student, teacher, 2.0))
    assert torch.autograd.grad(loss, learned)[0] != 0
    kd_loss(student.to("meta"), teacher.to("meta"), cast(Any, learned.to("meta")))  # its value is not asked for


def test_two_classes_by_hand() -> None:
    teacher = torch.tensor([[4 * math.log(3), 0.0]], dtype=torch.float64)  # q = (3/4, 1/4) at τ = 4
    student = torch.zeros(1, 2, dtype=torch.float64)  # p = (1/2, 1/2)
    close(kd_loss(student, teacher, 4.0), 16 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5)), 1e-12)
    close(kd_loss(teacher, student, 4.0), 16 * (0.5 * math.log(2 / 3) + 0.5 * math.log(2)), 1e-12)  # not symmetric


def test_method_weighs_its_term() -> None:
    student, teacher = normal(3, 5), normal(3, 5, seed=1)
    method = KD(SIZES, weight=0.5, temperature=2.0)
    terms = method.terms(logits_only(student), {"final": logits_only(teacher)}, numbered(3), epoch=0.0)
    assert list(terms) == ["kd"]
    close(terms["kd"], 0.5 * slow_kd(student, teacher, 2.0))
    assert method.roles == ("final",)


def test_ce_adds_nothing() -> None:
    method = CE(SIZES)
    assert method.terms(logits_only(normal(2, 5)), {}, numbered(2), epoch=3.0) == {}
    assert (method.roles, method.taps, method.task_weight) == ((), (), 1.0)


def test_options_are_the_given_ones_and_the_defaults() -> None:
    assert method_options("kd", {"temperature": 2}) == {"weight": 1.0, "temperature": 2.0, "task_weight": 1.0}
    assert method_options("kd", {})["temperature"] == 4.0  # what was given once is not kept
    given = method_options("asd", {"temporal": False, "queue": 16, "subspace": "running"})
    assert (given["temporal"], given["queue"], given["subspace"]) == (False, 16, "running")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("asdd", {}, r"unknown method 'asdd'.*'asd'"),
        ("zzz", {}, r"unknown method 'zzz'; known: .*kd"),
        ("kd", {"temprature": 2.0}, r"'kd' has no setting 'temprature'.*'temperature'"),
        ("kd", {"sizes": 1}, "no setting 'sizes'"),
        ("kd", {"weight": "1"}, r"weight is '1'; it must be of type float, like 1\.0"),
        ("kd", {"weight": True}, "weight is True; it must be of type float"),
        ("asd", {"queue": 4.5}, r"queue is 4\.5; it must be of type int, like 4096"),
        ("asd", {"queue": True}, "queue is True"),
        ("asd", {"temporal": 1}, "temporal is 1; it must be of type bool, like True"),
        ("asd", {"subspace": 3}, "subspace is 3; it must be of type str"),
        ("asd", {"warmup": None}, "warmup is None"),
    ],
)
def test_wrong_options_are_explained(name: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build_method(name, SIZES, given)
