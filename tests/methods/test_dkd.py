"""Decoupled distillation against a loop and by hand, its sum against KD, and the inputs that break others."""
# B batch, C classes

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.config.recipe import load_recipe
from antishortcut.methods import method_options
from antishortcut.methods.dkd import DKD, dkd_terms
from antishortcut.methods.kd import kd_loss
from antishortcut.types import Shape, Sizes
from tests.methods.test_fitnets import numbered
from tests.methods.test_kd import logits_only
from tests.test_subspace import close, normal, seeds, several

SIZES = Sizes(classes=5, examples=100, student=Shape(8), teachers={"final": Shape(8)})
PUBLISHED = {2: 6.0, 3: 8.0, 4: 6.0, 5: 6.0, 7: 8.0, 8: 8.0, 9: 8.0, 10: 6.0}


def kl(q: list[float], p: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(q, p, strict=True))


def slow_dkd(student: Tensor, teacher: Tensor, label: Tensor, temperature: float) -> tuple[float, float]:
    """As Zhao et al. write it, sample by sample: b = (p_t, 1 − p_t) and p̂ = p_i / (1 − p_t) for i ≠ t."""

    def pieces(logits: list[float], t: int) -> tuple[list[float], list[float]]:
        powers = [math.exp(v / temperature) for v in logits]
        rest = [v for i, v in enumerate(powers) if i != t]
        return [powers[t] / sum(powers), sum(rest) / sum(powers)], [v / sum(rest) for v in rest]

    tckd = nckd = 0.0
    for s, t, y in zip(student.tolist(), teacher.tolist(), label.tolist(), strict=True):
        (b_s, hat_s), (b_t, hat_t) = pieces(s, y), pieces(t, y)
        tckd += kl(b_t, b_s)
        nckd += kl(hat_t, hat_s)
    return temperature**2 * tckd / len(student), temperature**2 * nckd / len(student)


def labels(b: int, c: int, seed: int) -> Tensor:
    return torch.randint(c, (b,), generator=torch.Generator().manual_seed(seed))


@several
@given(b=st.integers(1, 5), c=st.integers(2, 6), temperature=st.sampled_from([0.5, 1.0, 4.0]), seed=seeds)
def test_agrees_with_the_loop(b: int, c: int, temperature: float, seed: int) -> None:
    student, teacher, label = 3 * normal(b, c, seed=seed), 3 * normal(b, c, seed=seed + 1), labels(b, c, seed)
    ours = dkd_terms(student, teacher, label, temperature)
    close(torch.stack(ours), slow_dkd(student, teacher, label, temperature))
    close(torch.stack(dkd_terms(student + 7, teacher - 5, label, temperature)), torch.stack(ours))
    close(torch.stack(dkd_terms(teacher, teacher, label, temperature)), 0.0, 1e-13)
    assert min(ours) >= -1e-14


@several
@given(c=st.integers(2, 9), temperature=st.sampled_from([1.0, 4.0]), seed=seeds)
def test_the_parts_make_up_kd(c: int, temperature: float, seed: int) -> None:
    """KD = TCKD + (1 − q_t) NCKD, sample by sample: why KD hides what confident teachers know."""
    student, teacher, label = normal(1, c, seed=seed), 4 * normal(1, c, seed=seed + 1), labels(1, c, seed)
    tckd, nckd = dkd_terms(student, teacher, label, temperature)
    rest = 1 - (teacher / temperature).softmax(1)[0, label[0]]
    close(tckd + rest * nckd, kd_loss(student, teacher, temperature))


def test_three_classes_by_hand() -> None:
    teacher = torch.tensor([[2.0, 1.0, 1.0]], dtype=torch.float64).log()  # target 1/2, others 1/2 and 1/2
    student = torch.tensor([[1.0, 2.0, 1.0]], dtype=torch.float64).log()  # target 1/4, others 2/3 and 1/3
    tckd, nckd = dkd_terms(student, teacher, torch.tensor([0]), 1.0)
    close(tckd, 0.5 * math.log(2) + 0.5 * math.log(2 / 3), 1e-15)
    close(nckd, 0.5 * math.log(3 / 4) + 0.5 * math.log(3 / 2), 1e-15)


@several
@given(b=st.integers(1, 4), seed=seeds, size=st.sampled_from([0.0, 1.0, 1e4, 1e8]))
def test_nckd_is_zero_for_two_classes(b: int, seed: int, size: float) -> None:
    """mdistiller#60: NaN there. Here TCKD is all of KD and NCKD is 0, with gradients."""
    student = (size * normal(b, 2, seed=seed, dtype=torch.float32)).requires_grad_()
    teacher, label = size * normal(b, 2, seed=seed + 1, dtype=torch.float32), labels(b, 2, seed)
    tckd, nckd = dkd_terms(student, teacher, label, 4.0)
    assert nckd == 0
    close(tckd, kd_loss(student, teacher, 4.0), 1e-5, 1e-5)
    (gradient,) = torch.autograd.grad(tckd + nckd, student)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(("epoch", "scale"), [(0.0, 0.0), (5.0, 0.25), (20.0, 1.0), (300.0, 1.0)])
def test_method_weighs_and_warms_up(epoch: float, scale: float) -> None:
    student, teacher, label = normal(3, 5), normal(3, 5, seed=1), torch.tensor([0, 4, 4])
    method = DKD(SIZES, alpha=2.0, beta=3.0)
    inputs = logits_only(student), {"final": logits_only(teacher)}, numbered(3, label)
    terms = method.terms(*inputs, epoch)
    tckd, nckd = slow_dkd(student, teacher, label, 4.0)
    assert list(terms) == ["tckd", "nckd"]
    close(terms["tckd"], scale * 2 * tckd)
    close(terms["nckd"], scale * 3 * nckd)
    whole = DKD(SIZES, alpha=2.0, beta=3.0, warmup=0.0)
    close(whole.terms(*inputs, 0.0)["nckd"], 3 * nckd)
    assert (method.roles, method.taps, method.task_weight) == (("final",), (), 1.0)


@pytest.mark.parametrize("number", range(1, 14))
def test_recipes_carry_the_published_beta(number: int) -> None:
    given = load_recipe(f"P{number}").methods.get("dkd", {})
    assert given == ({"beta": PUBLISHED[number]} if number in PUBLISHED else {})
    assert method_options("dkd", given)["beta"] == PUBLISHED.get(number, 8.0)
