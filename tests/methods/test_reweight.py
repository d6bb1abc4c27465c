"""Samples weighted by the early teacher's failure: against a loop, by hand, and where the weights must be equal."""
# B batch, C classes

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods.kd import kd_loss
from antishortcut.methods.reweight import Reweight, failure_weights
from tests.methods.test_asd import double, sizes
from tests.methods.test_contrast import slow_log_softmax
from tests.methods.test_fitnets import numbered
from tests.methods.test_kd import logits_only, slow_kd
from tests.test_subspace import close, normal, seeds, several

SIZES = sizes(8, 8, 100)
schemes = st.sampled_from(["jtt", "lff"])


def slow_weights(student: Tensor, early: Tensor, label: Tensor, scheme: str, factor: float) -> list[float]:
    """A weight for each row, divided by their mean."""
    raw = []
    for own, before, y in zip(student.tolist(), early.tolist(), label.tolist(), strict=True):
        if scheme == "jtt":
            raw.append(factor if before.index(max(before)) != y else 1.0)
        else:
            loss_e, loss_s = -slow_log_softmax(before)[y], -slow_log_softmax(own)[y]
            raw.append(loss_e / (loss_e + loss_s))
    return [value * len(raw) / sum(raw) for value in raw]


def random_logits(b: int, c: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits (B, C) of student, final and early teacher, and labels (B,) that early gets right about half the time."""
    student, final, early = (3 * normal(b, c, seed=seed + i) for i in range(3))
    label, right = (normal(b, c, seed=seed + 3).argmax(1), normal(b, seed=seed + 4) > 0)
    return student, final, early, torch.where(right, early.argmax(1), label)


def terms_of(method: Reweight, student: Tensor, final: Tensor, early: Tensor, label: Tensor) -> dict[str, Tensor]:
    teachers = {"final": logits_only(final), "early": logits_only(early)}
    return method.terms(logits_only(student), teachers, numbered(len(label), label), 0.0)


@several
@given(scheme=schemes, factor=st.sampled_from([0.5, 1.0, 10.0]), seed=seeds)
def test_agrees_with_the_loop(scheme: str, factor: float, seed: int) -> None:
    temperature = 2.0
    student, final, early, label = random_logits(1 + seed % 6, 4, seed)
    slow = slow_weights(student, early, label, scheme, factor)
    close(failure_weights(student, early, label, scheme, factor), slow)
    method = Reweight(SIZES, scheme=scheme, factor=factor, weight=0.5, temperature=temperature, ce=0.7)
    terms = terms_of(method, student, final, early, label)
    assert list(terms) == ["ce", "kd"]
    losses = [-slow_log_softmax(row)[y] for row, y in zip(student.tolist(), label.tolist(), strict=True)]
    kd = [slow_kd(student[i : i + 1], final[i : i + 1], temperature) for i in range(len(label))]
    close(terms["ce"], 0.7 * sum(w * v for w, v in zip(slow, losses, strict=True)) / len(slow))
    close(terms["kd"], 0.5 * sum(w * v for w, v in zip(slow, kd, strict=True)) / len(slow))


def test_jtt_by_hand() -> None:
    """One of four wrong at factor 10: weights 10, 1, 1, 1 over their mean 13/4."""
    early = double([[2, 1, 0], [2, 1, 0], [0, 1, 0], [0, 0, 3]])
    label = torch.tensor([1, 0, 1, 2])
    close(failure_weights(early, early, label, "jtt", 10.0), [40 / 13, 4 / 13, 4 / 13, 4 / 13], 1e-12)
    student = double([[0, 0, 0]] * 4)  # log 3 wherever the label is: the weights cancel
    close(terms_of(Reweight(SIZES, factor=10.0), student, early, early, label)["ce"], math.log(3), 1e-12)
    message = double([[0, math.log(2), 0]] * 4)  # p = (1/4, 1/2, 1/4): log 2, log 4, log 2, log 4
    by_hand = (40 * math.log(2) + 4 * math.log(4) + 4 * math.log(2) + 4 * math.log(4)) / 13 / 4
    close(terms_of(Reweight(SIZES, factor=10.0), message, early, early, label)["ce"], by_hand, 1e-12)


def test_lff_by_hand() -> None:
    """ℓ_E = log 2 and 3 log 2, ℓ_S = 2 log 2 and log 2: 1/3 and 3/4, over their mean 13/24."""
    early, student = double([[0.5, 0.5], [0.875, 0.125]]).log(), double([[0.25, 0.75], [0.5, 0.5]]).log()
    weights = failure_weights(student, early, torch.tensor([0, 1]), "lff", 10.0)
    close(weights, [8 / 13, 18 / 13], 1e-12)


def test_factor_one_is_cross_entropy_and_kd() -> None:
    student, final, early, label = random_logits(6, 5, 0)
    assert (early.argmax(1) != label).any()
    terms = terms_of(Reweight(SIZES, scheme="jtt", factor=1.0, temperature=2.0), student, final, early, label)
    close(terms["ce"], F.cross_entropy(student, label), 1e-12)
    close(terms["kd"], kd_loss(student, final, 2.0), 1e-12)


@pytest.mark.parametrize("scheme", ["jtt", "lff"])
def test_no_gradient_flows_through_the_weights(scheme: str) -> None:
    student, final, early, label = random_logits(6, 5, 0)
    for rows in (student, final, early):
        rows.requires_grad_()
    weights = double([slow_weights(student, early, label, scheme, 10.0)])[0]  # (B,)
    terms = terms_of(Reweight(SIZES, scheme=scheme, factor=10.0, temperature=2.0), student, final, early, label)
    assert weights.max() - weights.min() > 0.1
    excess = student.softmax(1) - F.one_hot(label, 5)
    (gradient,) = torch.autograd.grad(terms["ce"], student, retain_graph=True)
    close(gradient, weights[:, None] * excess / 6)
    ours, *reference = torch.autograd.grad(terms["kd"], (student, final, early), allow_unused=True)
    close(ours, 2.0 * weights[:, None] * ((student / 2).softmax(1) - (final / 2).softmax(1)) / 6)
    assert reference == [None, None]
