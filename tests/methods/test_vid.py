"""Variational information distillation against loops over pixels, by hand, and at the best variance."""
# B batch, C channels, H × W pixels

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.methods.vid import EPSILON, VID, Prediction
from tests.methods.test_fitnets import Stage, maps_of, numbered, sides, sizes_of, slow_pool
from tests.test_subspace import close, normal, seeds, several

Side = tuple[int, int]
THREE: list[Stage] = [(2, 4, 4), (3, 4, 4), (4, 2, 2)]


def slow_vid(predict: Prediction, student: Tensor, teacher: Tensor) -> float:
    """−ln q(t | s) without its constant: mean of (t − μ)² / 2v + ln v / 2, v = ln(1 + e^α) + 1e-5 of each channel."""
    height, width = (min(a, b) for a, b in zip(student.shape[2:], teacher.shape[2:], strict=True))
    weights = [conv.weight.flatten(1).tolist() for conv in predict.mean if isinstance(conv, nn.Conv2d)]
    total, count = 0.0, 0
    for ours, reference in zip(student.tolist(), teacher.tolist(), strict=True):
        planes = [slow_pool(plane, height, width) for plane in ours]
        targets = [slow_pool(plane, height, width) for plane in reference]
        for y in range(height):
            for x in range(width):
                values = [plane[y][x] for plane in planes]
                for layer, weight in enumerate(weights):
                    values = [v if layer == 0 else max(v, 0.0) for v in values]
                    values = [sum(w * v for w, v in zip(line, values, strict=True)) for line in weight]
                for mean, target, alpha in zip(values, targets, predict.alpha.tolist(), strict=True):
                    variance = math.log(1 + math.exp(alpha)) + 1e-5
                    total += (target[y][x] - mean) ** 2 / (2 * variance) + math.log(variance) / 2
                    count += 1
    return total / count


@several
@given(
    b=st.integers(1, 3), c=st.integers(1, 3), ours=st.tuples(sides, sides), other=st.tuples(sides, sides), seed=seeds
)
def test_agrees_with_the_loop(b: int, c: int, ours: Side, other: Side, seed: int) -> None:
    torch.manual_seed(seed)
    student, teacher = normal(b, c, *ours, seed=seed), normal(b, 3, *other, seed=seed + 1)
    predict = Prediction(c, 3, 5.0).double()
    nn.init.normal_(predict.alpha)
    rows = predict(student, teacher)
    assert rows.shape == (b,)
    close(rows.mean(), slow_vid(predict, student, teacher))


@pytest.mark.parametrize("variance", [5.0, 0.001, 0.5, 800.0])
def test_starts_at_its_variance(variance: float) -> None:
    predict = Prediction(2, 3, variance)
    close(predict.variance(), [variance] * 3, relative=1e-4)
    close(predict.double().variance()[0], variance, relative=1e-4)
    teacher = normal(2, 3, 2, 2)
    by_hand = (teacher - predict.mean(normal(2, 2, 2, 2))).square().mean() / (2 * variance) + math.log(variance) / 2
    close(predict(normal(2, 2, 2, 2), teacher).mean(), by_hand, relative=1e-4)


def test_the_loss_falls_to_its_minimum_in_the_variance() -> None:
    """d/dv of e² / v + ln v is 0 at v = mean e²: there the loss of a channel is ½ (1 + ln mean e²)."""
    torch.manual_seed(0)
    student, teacher = normal(4, 2, 3, 3), normal(4, 3, 3, 3, seed=1) * torch.tensor([0.1, 1.0, 4.0]).view(1, 3, 1, 1)
    predict = Prediction(2, 3, 5.0).double()
    error = (predict.mean(student) - teacher).square().mean(dim=(0, 2, 3)).detach()  # (C,)
    least = (1 + error.log()).mean() / 2
    optimizer = torch.optim.LBFGS([predict.alpha], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = predict(student, teacher).mean()
        torch.autograd.backward(loss)
        return loss

    assert predict(student, teacher).mean() > least + 0.1
    optimizer.step(closure)  # type: ignore[no-untyped-call]
    close(predict(student, teacher).mean(), least)
    close(predict.variance(), error, relative=1e-4)


@pytest.mark.parametrize("alpha", [-1e4, -100.0, 100.0, 1e4])
def test_any_alpha_is_a_variance(alpha: float) -> None:
    predict = Prediction(1, 1, 5.0)
    nn.init.constant_(predict.alpha, alpha)
    close(predict.variance(), max(alpha, EPSILON), relative=1e-6)
    torch.autograd.backward(predict(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)).mean())
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in predict.parameters())


def test_heads_are_of_the_teachers_width_and_have_no_bias() -> None:
    predict = Prediction(2, 5, 5.0)
    assert [tuple(value.shape) for value in predict.parameters()] == [(5,), (5, 2, 1, 1), (5, 5, 1, 1), (5, 5, 1, 1)]
    close(F.softplus(predict.alpha) + 1e-5, 5.0, 1e-6)


def test_method_sums_the_stages_after_the_stem() -> None:
    torch.manual_seed(0)
    sizes = sizes_of(THREE, [(5, 4, 4), (2, 2, 2), (7, 2, 2)])
    method = VID(sizes, weight=3.0).double()
    student, teacher = maps_of(sizes.student, 3), maps_of(sizes.teachers["final"], 3, seed=9)
    terms = method.terms(student, {"final": teacher}, numbered(3), epoch=0.0)
    assert list(terms) == ["vid"]
    pairs = zip(method.predictions, student.stages[:0:-1], teacher.stages[:0:-1], strict=True)  # deepest first
    close(terms["vid"], 3 * sum(slow_vid(p, s, t) for p, s, t in pairs if isinstance(p, Prediction)))
    torch.autograd.backward(terms["vid"])
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in method.parameters())
