"""Probabilistic knowledge transfer against a loop over pairs, by hand, and on rows without direction."""
# B batch, D embedding

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods.pkt import EPSILON, PKT, neighbourhood, pkt_loss
from antishortcut.types import Shape, Sizes
from tests.methods.test_cc import of
from tests.methods.test_fitnets import numbered
from tests.test_subspace import close, normal, orthonormal, seeds, several

Rows = list[list[float]]


def slow_neighbourhood(x: Rows) -> Rows:
    """p_j|i = K(x_i, x_j) / Σ_m K(x_i, x_m) with K = (1 + cosine) / 2, as Passalis & Tefas write it."""

    def kernel(a: list[float], b: list[float]) -> float:
        lengths = math.hypot(*a) * math.hypot(*b)
        return ((sum(p * q for p, q in zip(a, b, strict=True)) / lengths if lengths else 0.0) + 1) / 2

    result = []
    for a in x:
        row = [kernel(a, b) for b in x]
        result.append([v / sum(row) for v in row])
    return result


def slow_pkt(student: Tensor, teacher: Tensor) -> float:
    p, q = slow_neighbourhood(student.tolist()), slow_neighbourhood(teacher.tolist())
    n = range(len(p))
    return sum(q[i][j] * math.log((q[i][j] + 1e-7) / (p[i][j] + 1e-7)) for i in n for j in n) / len(p) ** 2


@several
@given(b=st.integers(1, 6), d=st.integers(2, 9), e=st.integers(2, 9), seed=seeds)
def test_agrees_with_the_loop(b: int, d: int, e: int, seed: int) -> None:
    student, teacher = normal(b, d, seed=seed), 3 * normal(b, e, seed=seed + 1) + 1
    close(neighbourhood(student), slow_neighbourhood(student.tolist()))
    close(pkt_loss(student, teacher), slow_pkt(student, teacher))
    close(pkt_loss(student, student.clone()), 0.0, 1e-15)
    assert pkt_loss(student, teacher) >= -1e-6  # ε makes it a divergence only nearly


def test_two_rows_by_hand() -> None:
    right = torch.eye(2, dtype=torch.float64)  # kernel 1 and 1/2: p = (2/3, 1/3)
    same = torch.ones(2, 2, dtype=torch.float64)  # kernel 1 and 1: p = (1/2, 1/2)
    apart = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)  # kernel 1 and 0: p = (1, 0)
    close(neighbourhood(right), [[2 / 3, 1 / 3], [1 / 3, 2 / 3]], 1e-15)
    close(neighbourhood(same), 0.5, 1e-15)
    close(neighbourhood(apart), torch.eye(2), 1e-15)
    close(pkt_loss(right, same), (math.log(3 / 4) + math.log(3 / 2)) / 2 / 2, 1e-6)
    close(pkt_loss(same, right), (2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)) / 2, 1e-6)
    close(pkt_loss(apart, same), 0.5 / 2 * (math.log(0.5) + math.log(0.5 / EPSILON)), 1e-6)  # ε bounds it


@several
@given(b=st.integers(2, 6), d=st.integers(2, 8), seed=seeds, scale=st.sampled_from([1e-6, 0.3, 1e6]))
def test_rotation_and_length_change_nothing(b: int, d: int, seed: int, scale: float) -> None:
    student, teacher = normal(b, d, seed=seed), normal(b, d, seed=seed + 1)
    lengths = scale * (normal(b, 1, seed=seed + 2).abs() + 0.1)
    turned = lengths * (student @ orthonormal(d, d, seed + 3))
    close(pkt_loss(turned, teacher), pkt_loss(student, teacher))
    close(pkt_loss(teacher, turned), pkt_loss(teacher, student))
    close(neighbourhood(student).sum(dim=1), 1.0, 1e-14)


def test_cosines_below_minus_one_by_rounding() -> None:
    """Of this row and its opposite, float32 makes −1.00000036, which would leave the logarithm a negative number."""
    row = normal(1, 20, seed=1164, dtype=torch.float32)
    rows = torch.cat([row, -row]).requires_grad_()
    assert neighbourhood(rows).min() >= 0
    loss = pkt_loss(rows, torch.ones(2, 2))
    assert torch.isfinite(loss)
    assert torch.isfinite(torch.autograd.grad(loss, rows)[0]).all()


@pytest.mark.parametrize("weight", [30000.0, 2.0])
def test_method_weighs_its_term(weight: float) -> None:
    student, teacher = normal(4, 3), normal(4, 6, seed=1)
    method = PKT(Sizes(5, 100, Shape(3), {"final": Shape(6)}), weight=weight)
    terms = method.terms(of(student), {"final": of(teacher)}, numbered(4), 0.0)
    assert list(terms) == ["pkt"]
    close(terms["pkt"] / weight, slow_pkt(student, teacher))
    assert (method.roles, method.taps, method.task_weight) == (("final",), (), 1.0)
