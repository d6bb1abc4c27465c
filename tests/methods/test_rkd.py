"""Relational distillation against loops over pairs and triplets, by hand, and what must not change it."""
# B batch, D embedding

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods.rkd import RKD, angles, distances, offsets, rkd_terms
from antishortcut.types import Shape, Sizes
from tests.methods.test_cc import of
from tests.methods.test_fitnets import numbered
from tests.test_subspace import close, normal, orthonormal, seeds, several

Points = list[list[float]]


def huber(x: float) -> float:
    return x * x / 2 if abs(x) < 1 else abs(x) - 0.5


def slow_distances(x: Points) -> list[float]:
    """ψ_D of Park et al.: ‖x_i − x_j‖ over the mean of those that are positive, pair by pair."""
    lengths = [math.dist(a, b) for a in x for b in x]
    positive = [v for v in lengths if v > 0]
    return [v / (sum(positive) / len(positive)) if positive else 0.0 for v in lengths]


def slow_angles(x: Points) -> list[float]:
    """ψ_A: cosine at i of the angle j i k, triplet by triplet; 0 where there is none."""

    def cosine(i: int, j: int, k: int) -> float:
        a = [p - q for p, q in zip(x[j], x[i], strict=True)]
        b = [p - q for p, q in zip(x[k], x[i], strict=True)]
        lengths = math.hypot(*a) * math.hypot(*b)
        return sum(p * q for p, q in zip(a, b, strict=True)) / lengths if lengths > 0 else 0.0

    n = range(len(x))
    return [cosine(i, j, k) for i in n for j in n for k in n]


def slow_rkd(student: Tensor, teacher: Tensor) -> tuple[float, float]:
    def mean(ours: list[float], teacher_side: list[float]) -> float:
        return sum(huber(a - b) for a, b in zip(ours, teacher_side, strict=True)) / len(ours)

    s, t = student.tolist(), teacher.tolist()
    return mean(slow_distances(s), slow_distances(t)), mean(slow_angles(s), slow_angles(t))


@several
@given(b=st.integers(1, 6), d=st.integers(1, 9), e=st.integers(1, 9), seed=seeds)
def test_agrees_with_the_loop(b: int, d: int, e: int, seed: int) -> None:
    student, teacher = normal(b, d, seed=seed) + 2, 3 * normal(b, e, seed=seed + 1)
    ours = rkd_terms(student, teacher)
    close(torch.stack(ours), slow_rkd(student, teacher))
    close(torch.stack(rkd_terms(student, student)), 0.0, 1e-15)
    assert min(ours) >= 0


def test_a_right_triangle_by_hand() -> None:
    """Sides 3, 4, 5: distances over 4, angles 0, 3/5 and 4/5; an equilateral one: distances 1, angles 1/2."""
    right = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    equal = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, math.sqrt(3)]], dtype=torch.float64)
    close(distances(offsets(right)), [[0, 0.75, 1], [0.75, 0, 1.25], [1, 1.25, 0]], 1e-15)
    cosine = angles(offsets(right))
    close([cosine[0, 1, 2], cosine[1, 0, 2], cosine[2, 0, 1]], [0, 0.6, 0.8], 1e-15)
    distance, angle = rkd_terms(right, equal)
    close(distance, 2 * (0.25**2 + 0 + 0.25**2) / 2 / 9, 1e-15)
    close(angle, 2 * (0.5**2 + 0.1**2 + 0.3**2) / 2 / 27, 1e-15)


@several
@given(b=st.integers(2, 6), d=st.integers(2, 8), seed=seeds, scale=st.sampled_from([1e-6, 0.3, 1e6]))
def test_shift_rotation_and_scale_of_either_side_change_nothing(b: int, d: int, seed: int, scale: float) -> None:
    student, teacher = normal(b, d, seed=seed), normal(b, d, seed=seed + 1)
    turned = scale * (normal(b, d, seed=seed) @ orthonormal(d, d, seed + 2)) + scale * normal(1, d, seed=seed + 3)
    close(torch.stack(rkd_terms(turned, teacher)), torch.stack(rkd_terms(student, teacher)))
    close(torch.stack(rkd_terms(teacher, turned)), torch.stack(rkd_terms(teacher, student)))
    close(torch.stack(rkd_terms(turned, student)), 0.0, 1e-14)


def test_near_neighbours_keep_their_digits() -> None:
    """Float32, far from the origin and from the others: a Gram matrix would lose the angle between them."""
    rows = normal(6, 40) + 30
    rows[1] = rows[0] + 1e-3 * normal(40, seed=1)
    ours = angles(offsets(rows.float()))
    close(ours.flatten(), slow_angles(rows.float().double().tolist()), 3e-4)


def test_equal_rows_have_no_angles() -> None:
    """Twins up to the last bit, as some machines' products leave them: rounding must not become an angle."""
    rows = normal(9, 300, dtype=torch.float32)
    rows[7] = rows[2].nextafter(rows[3])
    apart = offsets(rows)
    assert apart[2, 7].abs().sum() == 0
    assert angles(apart)[2, 7].abs().sum() == 0


def test_method_weighs_its_terms() -> None:
    student, teacher = normal(4, 3), normal(4, 6, seed=1)
    method = RKD(Sizes(5, 100, Shape(3), {"final": Shape(6)}), distance=2.0, angle=3.0)
    terms = method.terms(of(student), {"final": of(teacher)}, numbered(4), 0.0)
    distance, angle = slow_rkd(student, teacher)
    close(terms["distance"], 2 * distance)
    close(terms["angle"], 3 * angle)
    assert (method.roles, method.taps, method.task_weight) == (("final",), (), 1.0)
    assert len(list(method.parameters())) == 0
