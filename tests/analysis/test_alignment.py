"""Where a student's features lie and how far they project, against loops in float64 and cases solved by hand."""
# N samples, D features, K directions

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.analysis.moments import Distribution, infonce, state_cosines, subspace_projection
from antishortcut.methods.asd import temporal_contrast
from antishortcut.metrics import accuracy, shape_bias
from antishortcut.subspace import top_directions
from tests.analysis.test_moments import three
from tests.test_subspace import normal, orthonormal, seeds, several


def loop_cosine(a: list[float], b: list[float]) -> float:
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def test_distribution_of_defined_values() -> None:
    result = Distribution.of(torch.tensor([-0.5, 0.5, 1.01, 7.0]), torch.tensor([True, True, True, False]), -1, 1)
    assert result.mean == pytest.approx(1 / 3)  # clamped to 1
    assert (sum(result.histogram), result.histogram[-1]) == (3, 1)
    nothing = Distribution.of(torch.zeros(2), torch.zeros(2, dtype=torch.bool), 0, 1)
    assert math.isnan(nothing.mean)
    assert sum(nothing.histogram) == 0


@several
@given(count=st.integers(2, 40), seed=seeds)
def test_state_cosines_equal_a_loop(count: int, seed: int) -> None:
    student, final, early = (rows.tolist() for rows in three(count, 5, seed))
    result = state_cosines(*three(count, 5, seed))
    to_final = [loop_cosine(s, f) for s, f in zip(student, final, strict=True)]
    to_early = [loop_cosine(s, e) for s, e in zip(student, early, strict=True)]
    moved = [[x - y for x, y in zip(e, f, strict=True)] for e, f in zip(early, final, strict=True)]
    signed = [loop_cosine(s, d) for s, d in zip(student, moved, strict=True)]
    for name, expected in (("final", to_final), ("early", to_early), ("displacement", signed)):
        each = result[name]
        assert each.mean == pytest.approx(mean(expected), abs=1e-12)
        assert list(each.histogram) == np.histogram(expected, bins=40, range=(-1, 1))[0].tolist()
    assert result["closer_to_final"] == sum(f > e for f, e in zip(to_final, to_early, strict=True)) / count
    assert result["above_threshold"] == sum(s > -0.1 for s in signed) / count


def test_state_cosines_by_hand() -> None:
    """Three students: at the final state, at the early one, zero. Axes 0 and 1 are the two states."""
    student = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    result = state_cosines(student, torch.tensor([[1.0, 0.0]] * 3), torch.tensor([[0.0, 1.0]] * 3))
    means = [result[name].mean for name in ("final", "early", "displacement")]
    assert means == pytest.approx([0.5, 0.5, 0.0], abs=1e-12)
    assert sum(result["displacement"].histogram) == 2  # ∓1/√2
    assert (result["closer_to_final"], result["above_threshold"]) == (0.5, 0.5)


@several
@given(count=st.integers(2, 40), k=st.integers(1, 5), seed=seeds)
def test_projection_equals_a_loop(count: int, k: int, seed: int) -> None:
    student, basis = three(count, 5, seed)[0], orthonormal(5, k, seed=seed)
    result = subspace_projection(student, basis, margin=0.6)
    lengths = []
    for row in student.tolist():
        inside = [math.fsum(h * u for h, u in zip(row, column, strict=True)) for column in basis.T.tolist()]
        lengths.append(math.sqrt(math.fsum(x * x for x in inside) / math.fsum(h * h for h in row)))
    assert result["length"].mean == pytest.approx(mean(lengths), abs=1e-12)
    assert result["above_margin"] == pytest.approx(sum(x > 0.6 for x in lengths) / count)
    assert result["hinge"] == pytest.approx(mean([max(0.0, x - 0.6) for x in lengths]), abs=1e-12)  # Eq. 7
    assert result["random"] == pytest.approx(math.sqrt(k / 5))


def test_projection_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])  # 0.6, 0, undefined
    result = subspace_projection(rows, torch.tensor([[1.0], [0.0]]))
    assert (result["length"].mean, result["above_margin"], result["hinge"]) == pytest.approx((0.3, 0.5, 0.25))


def test_undefined_numbers_are_nan() -> None:
    rows, zero = normal(6, 3), torch.zeros(6, 3)
    for student, final, early in ((rows, zero, zero), (rows, rows, rows)):  # nothing moved
        basis = top_directions(early - final, 4)[0]
        cosines, projected = state_cosines(student, final, early), subspace_projection(student, basis)
        assert all(math.isnan(projected[key]) for key in ("random", "above_margin", "hinge"))
        assert math.isnan(projected["length"].mean)
        assert math.isnan(cosines["displacement"].mean)
        assert math.isnan(cosines["above_threshold"])
    assert math.isnan(state_cosines(zero, rows, 2 * rows)["final"].mean)


@several
@given(count=st.integers(2, 12), m=st.integers(1, 9), tau=st.sampled_from([0.07, 1.0]), seed=seeds)
def test_infonce_bounds_equal_loops(count: int, m: int, tau: float, seed: int) -> None:
    """Each row's own final feature is left out of the negatives; where it is not among them, the last is."""
    m = min(m, count - 1)
    features = three(count, 4, seed)
    student, final, early = (rows.tolist() for rows in features)
    binary, full = [], []
    for row in range(count):
        positive = math.exp(loop_cosine(student[row], final[row]) / tau)
        negatives = [at for at in range(m + 1) if at != min(row, m)]
        rest = math.fsum(math.exp(loop_cosine(student[row], final[at]) / tau) for at in negatives)
        binary.append(-math.log(positive / (positive + math.exp(loop_cosine(student[row], early[row]) / tau))))
        full.append(-math.log(positive / (positive + rest)))  # S-Eq. 1
    result = infonce(*features, negatives=m, temperature=tau)
    assert result["binary"] == pytest.approx(math.log(2) - mean(binary), abs=1e-10)
    assert result["full"] == pytest.approx(math.log(m + 1) - mean(full), abs=1e-10)
    assert result["full"] <= result["ceiling"] == math.log(m + 1)


def test_infonce_is_the_bound_of_the_training_loss() -> None:
    student, final, early = three(20, 6)
    loss = temporal_contrast(student, final, None)
    assert infonce(student, final, early, 1000)["full"] == pytest.approx(math.log(20) - loss.item(), abs=1e-10)


def test_infonce_by_hand() -> None:
    """cos = 1 to the own final state and 0 to all others: L = log(1 + N e^{−1/τ})."""
    e = torch.eye(5)
    result = infonce(2 * e[:4], 3 * e[:4], e[4:].expand(4, 5), negatives=3, temperature=0.5)
    assert result["binary"] == pytest.approx(math.log(2) - math.log(1 + math.exp(-2)))
    assert result["full"] == pytest.approx(math.log(4) - math.log(1 + 3 * math.exp(-2)))


def test_without_negatives_only_the_binary_bound_is_defined() -> None:
    result = infonce(*three(3, 2), negatives=0)
    assert math.isfinite(result["binary"])
    assert math.isnan(result["full"])
    assert math.isnan(result["ceiling"])


def test_accuracy_and_shape_bias_by_hand() -> None:
    logits = torch.nn.functional.one_hot(torch.tensor([0, 1, 2, 2, 0, 1]), 3).float()
    label = torch.tensor([0, 1, 2, 0, 1, 0])
    texture = torch.tensor([1, 0, 2, 2, 0, 2])  # the third image is no conflict
    assert dict(accuracy(logits, label)) == {"accuracy": pytest.approx(0.5)}
    result = dict(shape_bias(logits, label, {"texture": texture}))
    assert result == pytest.approx({"by_shape": 2 / 5, "by_texture": 2 / 5, "shape_bias": 0.5})
    assert dict(shape_bias(logits, label, {})) == {}
    assert dict(shape_bias(logits, label, {"texture": label})) == {}
