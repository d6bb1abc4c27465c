"""DIST against a loop and by hand, what correlations ignore, and the inputs without a correlation."""
# B batch, C classes

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods.dist import DIST, correlation, dist_terms
from tests.methods.test_fitnets import numbered
from tests.methods.test_kd import SIZES, logits_only, softened
from tests.test_subspace import close, normal, seeds, several


def slow_correlation(a: list[float], b: list[float]) -> float:
    """Covariance over the product of deviations."""
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    pairs = list(zip(a, b, strict=True))
    covariance = sum((x - mean_a) * (y - mean_b) for x, y in pairs)
    spread = math.sqrt(sum((x - mean_a) ** 2 for x, _ in pairs) * sum((y - mean_b) ** 2 for _, y in pairs))
    return covariance / (spread + 1e-8)


def slow_dist(student: Tensor, teacher: Tensor, temperature: float) -> tuple[float, float]:
    """1 − ρ of every sample's classes, then of every class's samples, as Huang et al. write it; times τ²."""
    p, q = softened(student, temperature), softened(teacher, temperature)
    inter = [1 - slow_correlation(a, b) for a, b in zip(p, q, strict=True)]
    columns = zip(zip(*p, strict=True), zip(*q, strict=True), strict=True)
    intra = [1 - slow_correlation(list(a), list(b)) for a, b in columns]
    return temperature**2 * sum(inter) / len(inter), temperature**2 * sum(intra) / len(intra)


@several
@given(b=st.integers(2, 6), c=st.integers(2, 6), temperature=st.sampled_from([1.0, 4.0]), seed=seeds)
def test_agrees_with_the_loop(b: int, c: int, temperature: float, seed: int) -> None:
    student, teacher = 2 * normal(b, c, seed=seed), 2 * normal(b, c, seed=seed + 1)
    ours = torch.stack(dist_terms(student, teacher, temperature))
    close(ours, slow_dist(student, teacher, temperature), 1e-9)
    close(torch.stack(dist_terms(student + 7, teacher - 5, temperature)), ours)
    assert ours.min() >= 0
    assert ours.max() <= 2 * temperature**2


@several
@given(scale=st.floats(0.1, 100), shift=st.floats(-10, 10), seed=seeds)
def test_scale_and_shift_of_a_row_do_not_matter(scale: float, shift: float, seed: int) -> None:
    p, q = ((3 * normal(4, 6, seed=seed + i)).softmax(1) for i in range(2))
    rho = correlation(p, q)
    assert rho.abs().max() <= 1
    close(correlation(scale * p + shift, q), rho, 1e-5)
    close(correlation(p, scale * q + shift), rho, 1e-5)
    close(correlation(-scale * p, q), -rho, 1e-5)


def test_two_samples_of_three_classes_by_hand() -> None:
    q = torch.tensor([[4.0, 2.0, 2.0], [2.0, 2.0, 4.0]], dtype=torch.float64) / 8
    p = torch.tensor([[2.0, 4.0, 2.0], [2.0, 2.0, 4.0]], dtype=torch.float64) / 8
    close(correlation(p, q), [-0.5, 1.0], 1e-6)  # (−1, 2, −1)·(2, −1, −1) / 6
    inter, intra = dist_terms(p.log(), q.log(), 1.0)
    close(inter, 1 - 0.25, 1e-6)
    close(intra, 1 - 1 / 3, 1e-6)  # columns: p's first and q's second do not vary, the third ones agree


@pytest.mark.parametrize(
    ("shape", "inter", "intra"), [((5, 2), None, None), ((1, 5), None, 16.0), ((1, 1), 16.0, 16.0)]
)
def test_what_two_classes_and_a_single_row_leave(
    shape: tuple[int, int], inter: float | None, intra: float | None
) -> None:
    """ρ of two numbers is 1 or −1, that of one number is 0; neither has a gradient worth the name."""
    student = normal(*shape, dtype=torch.float32).requires_grad_()
    teacher = normal(*shape, seed=1, dtype=torch.float32)
    terms = dist_terms(student, teacher, 4.0)
    gradients = [torch.autograd.grad(term, student, retain_graph=True)[0] for term in terms]
    assert all(torch.isfinite(x).all() for x in (*terms, *gradients))
    if shape[1] == 2:
        agree = ((student > student.flip(1)) == (teacher > teacher.flip(1)))[:, 0].float().mean()
        close(terms[0], 16 * 2 * (1 - agree), 1e-3)
        assert gradients[0].abs().max() < 1e-3
    for value, expected, gradient in zip(terms, (inter, intra), gradients, strict=True):
        if expected is not None:
            close(value, expected, 1e-5)
            assert gradient.abs().max() < 1e-4


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e-6, 1e-3])
def test_nearly_constant_logits_have_a_bounded_gradient(size: float) -> None:
    """A student whose last layer starts at zero; the authors' ε alone leaves a gradient above 10,000."""
    student = (size * normal(64, 100, dtype=torch.float32)).requires_grad_()
    inter, intra = dist_terms(student, 3 * normal(64, 100, seed=1, dtype=torch.float32), 4.0)
    (gradient,) = torch.autograd.grad(2 * inter + 2 * intra, student)
    assert gradient.abs().max() < 500


def test_method_weighs_its_terms() -> None:
    student, teacher = normal(3, 5), normal(3, 5, seed=1)
    method = DIST(SIZES, inter=0.5, intra=3.0, temperature=2.0)
    terms = method.terms(logits_only(student), {"final": logits_only(teacher)}, numbered(3), epoch=0.0)
    inter, intra = slow_dist(student, teacher, 2.0)
    assert list(terms) == ["inter", "intra"]
    close(terms["inter"], 0.5 * inter, 1e-9)
    close(terms["intra"], 3 * intra, 1e-9)
    published = DIST(SIZES)
    assert (published.inter, published.intra, published.temperature, published.task_weight) == (2.0, 2.0, 4.0, 1.0)
