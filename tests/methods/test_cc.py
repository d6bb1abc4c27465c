"""Correlation congruence, as in the authors' code, against a loop over neighbours, by hand, and of a single row."""
# B batch, D embedding, E width of the heads

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods.cc import CC, cc_loss
from antishortcut.types import Features, Shape, Sizes
from tests.methods.test_fitnets import numbered
from tests.test_subspace import close, normal, seeds, several

Rows = list[list[float]]


def slow_cc(student: Rows, teacher: Rows) -> float:
    """The mean over images i of Σ_d |s − t|_id · |s − t|_(i+1)d, the last having no next one."""
    totals = []
    for i in range(len(student) - 1):
        products = 0.0
        for d in range(len(student[0])):
            products += abs(student[i][d] - teacher[i][d]) * abs(student[i + 1][d] - teacher[i + 1][d])
        totals.append(products)
    return sum(totals) / len(totals)


@several
@given(b=st.integers(2, 6), e=st.integers(1, 5), scale=st.sampled_from([1e-6, 0.3, 1e6]), seed=seeds)
def test_agrees_with_the_loop(b: int, e: int, scale: float, seed: int) -> None:
    student, teacher = normal(b, e, seed=seed), normal(b, e, seed=seed + 1)
    close(cc_loss(student, teacher), slow_cc(student.tolist(), teacher.tolist()))
    close(cc_loss(student, student.clone()), 0.0, 0.0)
    close(cc_loss(scale * student, scale * teacher) / scale**2, cc_loss(student, teacher))  # shrunk heads have no loss
    close(cc_loss(student.flip(0), teacher.flip(0)), cc_loss(student, teacher), 1e-12)


def test_by_hand_and_by_order() -> None:
    student, zero = torch.tensor([[1.0, -2.0], [3.0, 0.5], [0.0, 4.0]]), torch.zeros(3, 2)
    close(cc_loss(student, zero), ((3 + 1) + (0 + 2)) / 2)
    close(cc_loss(student[[0, 2, 1]], zero), ((0 + 8) + (0 + 2)) / 2)


def linear(rows: Tensor, head: torch.nn.Linear) -> Rows:
    weight, bias = head.weight.tolist(), head.bias.tolist()
    return [
        [sum(w * x for w, x in zip(line, row, strict=True)) + b for line, b in zip(weight, bias, strict=True)]
        for row in rows.tolist()
    ]


def of(embedding: Tensor) -> Features:
    return Features(torch.zeros(len(embedding), 5), embedding)


def test_method_trains_both_heads() -> None:
    torch.manual_seed(0)
    student, teacher = normal(4, 3), normal(4, 6, seed=1)
    method = CC(Sizes(5, 100, Shape(3), {"final": Shape(6)}), width=2).double()
    terms = method.terms(of(student), {"final": of(teacher)}, numbered(4), 0.0)
    assert list(terms) == ["cc"]
    close(terms["cc"], 0.02 * slow_cc(linear(student, method.student), linear(teacher, method.teacher)), 1e-12)
    torch.autograd.backward(terms["cc"])
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in method.parameters())
    assert CC(Sizes(5, 100, Shape(3), {"final": Shape(6)})).student.out_features == 128


@pytest.mark.parametrize("rows", [1, 2])
def test_a_single_row_has_no_neighbour(rows: int) -> None:
    student = normal(rows, 3).requires_grad_()
    method = CC(Sizes(5, 100, Shape(3), {"final": Shape(6)})).double()
    term = method.terms(of(student), {"final": of(normal(rows, 6))}, numbered(rows), 0.0)["cc"]
    assert bool(term > 0) == (rows > 1)
    torch.autograd.backward(term)  # zero, but there: DDP waits for every parameter
    for leaf in (student, *method.parameters()):
        assert leaf.grad is not None
        assert bool(leaf.grad.any()) == (rows > 1)
