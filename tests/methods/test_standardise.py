"""Standardised logits against a loop, in KD, DKD and contrast targets, and where there is no deviation to divide by."""
# B batch, C classes

import math
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods import METHODS, method_options
from antishortcut.methods.contrast import contrast_logits
from antishortcut.methods.kd import standardised
from antishortcut.types import Batch, Features, Method, Shape, Sizes
from tests.methods.test_asd import double
from tests.methods.test_dkd import labels, slow_dkd
from tests.methods.test_kd import slow_kd
from tests.test_subspace import close, normal, seeds, several

PUBLISHED = {
    "kd+ls": {"weight": 9.0, "temperature": 2.0, "task_weight": 0.1},
    "dkd+ls": {"alpha": 9.0, "beta": 72.0, "temperature": 2.0, "warmup": 20.0, "task_weight": 1.0},
    "contrast+ls": {"strength": 1.0, "weight": 9.0, "temperature": 2.0, "task_weight": 0.1},
}


def slow_standardised(logits: Tensor) -> Tensor:
    """Row by row: mean 0, and a standard deviation of 1 with C − 1, as in the authors' code."""
    rows = []
    for row in logits.tolist():
        mean = sum(row) / len(row)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in row) / (len(row) - 1))
        rows.append([(v - mean) / (deviation + 1e-7) for v in row])
    return double(rows)


def terms_of(name: str, student: Tensor, final: Tensor, early: Tensor, **settings: float) -> dict[str, Tensor]:
    shape = Shape(8)
    sizes = Sizes(student.shape[1], 100, shape, {"final": shape, "early": shape})
    method = cast(Method, METHODS[name](sizes, **method_options(name, settings)))
    outputs = [Features(logits, torch.zeros(len(logits), 8)) for logits in (student, final, early)]
    batch = Batch(torch.zeros(len(student), 3, 1, 1), labels(len(student), student.shape[1], 3), torch.arange(1))
    return method.terms(outputs[0], {"final": outputs[1], "early": outputs[2]}, batch, 1000.0)


@several
@given(b=st.integers(1, 5), c=st.integers(2, 7), scale=st.floats(0.1, 100), shift=st.floats(-50, 50), seed=seeds)
def test_agrees_with_the_loop_and_ignores_scale_and_shift(
    b: int, c: int, scale: float, shift: float, seed: int
) -> None:
    logits = normal(b, c, seed=seed) + 10 * torch.arange(c)  # no row is nearly constant
    ours = standardised(logits)
    close(ours, slow_standardised(logits), 1e-9)
    close(ours.mean(dim=1), 0.0, 1e-9)
    close(ours.std(dim=1), 1.0, 1e-5)
    close(standardised(scale * logits + shift), ours, 1e-5)


@several
@given(b=st.integers(1, 5), c=st.integers(3, 6), seed=seeds)
def test_the_three_methods_are_their_losses_of_standardised_logits(b: int, c: int, seed: int) -> None:
    student, final, early = (3 * normal(b, c, seed=seed + i) for i in range(3))
    s, t = slow_standardised(student), slow_standardised(final)
    close(terms_of("kd+ls", student, final, early)["kd"], 9 * slow_kd(s, t, 2.0), 1e-8)
    dkd, (tckd, nckd) = terms_of("dkd+ls", student, final, early), slow_dkd(s, t, labels(b, c, 3), 2.0)
    close(dkd["tckd"], 9 * tckd, 1e-8)
    close(dkd["nckd"], 72 * nckd, 1e-8)
    target = slow_standardised(contrast_logits(final, early, 1.0))
    contrast = terms_of("contrast+ls", student, final, early)["contrast"]
    close(contrast, 9 * slow_kd(s, target, 2.0), 1e-8)
    close(terms_of("contrast+ls", 5 * student - 2, final, early)["contrast"], contrast, 1e-5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_are_the_published_ones(name: str) -> None:
    options = method_options(name, {})
    assert options["standardise"] is True
    assert PUBLISHED[name].items() <= options.items()
    assert "standardise" not in method_options(name.removesuffix("+ls"), {})  # the hash of its runs stays the same


def test_two_classes_know_only_which_is_larger() -> None:
    logits = normal(6, 2, dtype=torch.float32).requires_grad_()
    ours = standardised(logits)
    close(ours.abs(), math.sqrt(0.5), 1e-5)
    assert torch.equal(ours[:, 0] > 0, logits[:, 0] > logits[:, 1])
    (gradient,) = torch.autograd.grad(ours[:, 0].sum(), logits)
    assert gradient.abs().max() < 1e-4


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("value", [0.0, 3.0, 1e4])
@pytest.mark.parametrize("classes", [1, 2, 10])
def test_equal_logits_have_a_bounded_gradient(name: str, value: float, classes: int) -> None:
    """A student whose last layer starts at zero. Divided by eps alone, the gradient is of order 1,000,000."""
    student = torch.full((16, classes), value, requires_grad=True)
    final, early = (3 * normal(16, classes, seed=i, dtype=torch.float32) for i in range(2))
    loss = torch.stack(list(terms_of(name, student, final, early).values())).sum()
    (gradient,) = torch.autograd.grad(loss, student)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() < 1000
    assert torch.equal(standardised(student), torch.zeros(16, classes))
