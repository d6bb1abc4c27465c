"""Feature distillation against a loop in float64, by hand, and what it does without classes."""
# B batch, D embedding

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods import build_method
from antishortcut.methods.feature_distillation import FeatureDistillation, unit_regression
from antishortcut.types import Batch, Features, Shape, Sizes
from tests.test_subspace import close, normal, seeds, several


def direction(row: list[float]) -> list[float]:
    length = math.hypot(*row)
    return [x / length for x in row]


def cosine(one: list[float], two: list[float]) -> float:
    return sum(a * b for a, b in zip(direction(one), direction(two), strict=True))


def slow_regression(student: Tensor, teacher: Tensor) -> float:
    pairs = list(zip(student.tolist(), teacher.tolist(), strict=True))
    squares = [(a - b) ** 2 for s, t in pairs for a, b in zip(direction(s), direction(t), strict=True)]
    return sum(squares) / len(pairs)


def slow_contrast(student: Tensor, teacher: Tensor, queue: list[list[float]], temperature: float) -> float:
    """−log of the positive's share among it, the other images' teacher features, and the queue's. No early state."""
    rows, finals, total = student.tolist(), teacher.tolist(), 0.0
    for at, row in enumerate(rows):
        scores = [cosine(row, other) / temperature for other in (*finals, *queue)]
        total -= scores[at] - math.log(sum(math.exp(score) for score in scores))
    return total / len(rows)


@several
@given(b=st.integers(1, 6), d=st.integers(2, 9), seed=seeds)
def test_agrees_with_the_loop(b: int, d: int, seed: int) -> None:
    student, teacher = normal(b, d, seed=seed), 3 * normal(b, d, seed=seed + 1) + 1
    close(unit_regression(student, teacher), slow_regression(student, teacher))
    cosines = [cosine(one, two) for one, two in zip(student.tolist(), teacher.tolist(), strict=True)]
    close(unit_regression(student, teacher), sum(2 - 2 * value for value in cosines) / b)


def test_regression_by_hand() -> None:
    rows = torch.tensor([[2.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    close(unit_regression(rows, 7 * rows), 0.0, 1e-15)  # lengths do not count
    close(unit_regression(rows, -rows), 4.0, 1e-15)
    close(unit_regression(rows, rows.flip(0)), 2.0, 1e-15)


@several
@given(seed=seeds)
def test_terms_agree_with_the_loop_also_with_a_queue(seed: int) -> None:
    sizes = Sizes(0, 100, Shape(5), {"final": Shape(5)})
    method = FeatureDistillation(sizes, weight=2.0, tc=0.5, temperature=0.2, queue=8).double()
    before: list[list[float]] = []
    for step in range(2):
        student, teacher = normal(4, 5, seed=seed + step), normal(4, 5, seed=seed + step + 7)
        none = torch.empty(4, 0)
        batch = Batch(torch.rand(4, 3, 8, 8), torch.full((4,), -1), torch.arange(4) + 4 * step)
        terms = method.terms(Features(none, student), {"final": Features(none, teacher)}, batch, 0.0)
        close(terms["regression"], 2 * slow_regression(student, teacher))
        close(terms["tc"], 0.5 * slow_contrast(student, teacher, before, 0.2))
        before = teacher.tolist()


def test_a_projector_only_where_widths_differ() -> None:
    equal, wider = (build_method("features", Sizes(0, 100, Shape(5), {"final": Shape(width)}), {}) for width in (5, 9))
    assert not list(equal.parameters())
    assert isinstance(wider, FeatureDistillation)
    assert wider.project(torch.rand(3, 5)).shape == (3, 9)
    alone = build_method("features", Sizes(0, 100, Shape(5), {"final": Shape(9)}), {"tc": 0.0})
    assert isinstance(alone, FeatureDistillation)
    outputs = [Features(torch.empty(3, 0), torch.rand(3, width)) for width in (5, 9)]
    batch = Batch(torch.rand(3, 3, 8, 8), torch.full((3,), -1), torch.arange(3))
    assert list(alone.terms(outputs[0], {"final": outputs[1]}, batch, 0.0)) == ["regression"]
    assert alone.contrast.queue.numel() == 0
