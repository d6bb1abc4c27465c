"""Where a student stands and what it leans on, against loops in float64 and cases solved by hand."""
# N samples, D features, K directions

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.analysis import (
    alignment,
    leaning,
    leanings,
    shortcut_projection,
    standing,
)
from antishortcut.metrics import accuracy, shape_bias
from antishortcut.subspace import top_directions
from tests.analysis.test_stream import cut, places, three
from tests.test_subspace import normal, orthonormal, seeds, several


def loop_cosine(a: list[float], b: list[float]) -> float:
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


@several
@given(count=st.integers(2, 40), at=places, seed=seeds)
def test_standing_equals_its_loop_in_any_chunking(count: int, at: list[int], seed: int) -> None:
    features = three(count, 5, seed)
    student, final, early = (features[role].tolist() for role in ("student", "final", "early"))
    result = standing(cut(features, at))
    to_final = [loop_cosine(s, f) for s, f in zip(student, final, strict=True)]
    to_early = [loop_cosine(s, e) for s, e in zip(student, early, strict=True)]
    moved = [[x - y for x, y in zip(e, f, strict=True)] for e, f in zip(early, final, strict=True)]
    signed = [loop_cosine(s, d) for s, d in zip(student, moved, strict=True)]
    for ours, reference in ((result.final, to_final), (result.early, to_early), (result.displacement, signed)):
        assert (ours.count, ours.undefined, sum(ours.histogram), len(ours.histogram)) == (count, 0, count, 40)
        assert ours.mean == pytest.approx(mean(reference), abs=1e-12)
        assert ours.std == pytest.approx(np.std(reference, ddof=1), abs=1e-10)
        assert list(ours.histogram) == np.histogram(reference, bins=40, range=(-1, 1))[0].tolist()
    assert result.closer_to_final == sum(f > e for f, e in zip(to_final, to_early, strict=True)) / count
    assert result.above_threshold == sum(s > -0.1 for s in signed) / count


def test_standing_by_hand() -> None:
    """Three students: at the final state, at the early one, nowhere. Axes 0 and 1 are the two states."""
    student = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    final, early = torch.tensor([[1.0, 0.0]] * 3), torch.tensor([[0.0, 1.0]] * 3)
    result = standing([{"student": student, "final": final, "early": early}])
    assert (result.final.mean, result.early.mean, result.displacement.mean) == pytest.approx((0.5, 0.5, 0.0), abs=1e-12)
    assert result.displacement.std == pytest.approx(1.0)  # ∓1/√2
    assert (result.displacement.count, result.displacement.undefined) == (2, 1)
    assert (result.closer_to_final, result.above_threshold) == (0.5, 0.5)


def test_the_short_form_has_the_same_numbers() -> None:
    features = three(50, 8)
    result, short = standing([features]), dict(alignment(features["student"], features["final"], features["early"]))
    assert short == {
        "cos_final": result.final.mean,
        "cos_early": result.early.mean,
        "closer_to_final": result.closer_to_final,
        "cos_displacement": result.displacement.mean,
        "above_threshold": result.above_threshold,
    }


@several
@given(count=st.integers(2, 40), k=st.integers(1, 5), at=places, seed=seeds)
def test_leaning_equals_its_loop_in_any_chunking(count: int, k: int, at: list[int], seed: int) -> None:
    features, basis = three(count, 5, seed), orthonormal(5, k, seed=seed)
    result = leaning(cut(features, at), basis, margin=0.6)
    lengths = []
    for row in features["student"].tolist():
        inside = [math.fsum(h * u for h, u in zip(row, column, strict=True)) for column in basis.T.tolist()]
        lengths.append(math.sqrt(math.fsum(x * x for x in inside) / math.fsum(h * h for h in row)))
    assert result.projection.mean == pytest.approx(mean(lengths), abs=1e-12)
    assert result.projection.std == pytest.approx(np.std(lengths, ddof=1), abs=1e-9)
    assert result.fires == pytest.approx(sum(x > 0.6 for x in lengths) / count)
    assert result.hinge == pytest.approx(mean([max(0.0, x - 0.6) for x in lengths]), abs=1e-12)  # Eq. 7
    assert result.directions == k
    assert result.random == pytest.approx(math.sqrt(k / 5))


def test_leaning_by_hand_and_its_change() -> None:
    axis = torch.tensor([[1.0], [0.0]])
    rows = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])  # 0.6, 0, nowhere
    result = leaning([{"student": rows}], axis)
    assert (result.projection.mean, result.fires, result.hinge) == pytest.approx((0.3, 0.5, 0.25))
    assert result.projection.undefined == 1
    other = leaning([{"student": torch.tensor([[4.0, 3.0]])}], axis)
    assert result.change_against(other) == pytest.approx((0.3 - 0.8) / 0.8)
    assert other.change_against(result) == pytest.approx((0.8 - 0.3) / 0.3)
    assert math.isnan(result.change_against(leaning([{"student": torch.tensor([[0.0, 1.0]])}], axis)))


def test_many_leanings_in_one_pass_are_those_of_many_passes() -> None:
    features, u, v = three(30, 6), orthonormal(6, 2), orthonormal(6, 4, seed=1)
    passes = 0

    class Once:
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal passes
            passes += 1
            return iter(cut(features, [11]))

    result = leanings(Once(), {"shortcut": u, "robust": v}, ("student", "final"))
    assert passes == 1
    for role in ("student", "final"):
        assert result[role]["shortcut"] == leaning(cut(features, [11]), u, role)
        assert result[role]["robust"] == leaning(cut(features, [11]), v, role)


@several
@given(scale=st.floats(1e-3, 1e3), seed=seeds)
def test_rotation_and_scale_change_nothing(scale: float, seed: int) -> None:
    features, turn, basis = three(20, 4, seed), orthonormal(4, 4, seed=seed), orthonormal(4, 2, seed=seed + 1)
    turned = {role: scale * rows @ turn for role, rows in features.items()}
    ours, reference = standing([features]), standing([turned])
    for part in ("final", "early", "displacement"):
        assert getattr(ours, part).mean == pytest.approx(getattr(reference, part).mean, abs=1e-10)
    assert ours.closer_to_final == reference.closer_to_final
    mean_of = leaning([turned], turn.T @ basis).projection.mean
    assert mean_of == pytest.approx(leaning([features], basis).projection.mean, abs=1e-10)


def test_the_pools_projection_equals_numpy() -> None:
    features = three(50, 8)
    student, final, early = (rows.numpy() for rows in features.values())
    delta = early - final
    _, vectors = np.linalg.eigh(delta.T @ delta / 50)
    basis = vectors[:, -3:]
    result = dict(shortcut_projection(features["student"], features["final"], features["early"], k=3))
    for key, rows in (("projection", student), ("projection_final", final)):
        expected = np.mean(np.linalg.norm(rows @ basis, axis=1) / np.linalg.norm(rows, axis=1))
        assert result[key] == pytest.approx(expected, abs=1e-10)
    assert result["projection_random"] == pytest.approx(math.sqrt(3 / 8))


def degenerate() -> list[dict[str, Tensor]]:
    rows, zero = normal(6, 3), torch.zeros(6, 3)
    return [
        {"student": zero, "final": rows, "early": 2 * rows},
        {"student": rows, "final": zero, "early": zero},
        {"student": rows, "final": rows, "early": rows},
        {"student": rows[:1], "final": rows[1:2], "early": rows[2:3]},
    ]


@pytest.mark.parametrize("features", degenerate(), ids=["zero student", "zero teacher", "equal states", "one row"])
def test_what_is_undefined_is_null(features: dict[str, Tensor]) -> None:
    basis = top_directions(features["early"] - features["final"], 4)[0]
    stood, leant = standing([features]), leaning([features], basis)
    json.dumps([stood.values(), leant.values()], allow_nan=False)
    if basis.shape[1] == 0:
        assert leant.values()["projection"]["mean"] is leant.values()["random"] is leant.values()["fires"] is None
        assert stood.values()["displacement"]["mean"] is stood.values()["above_threshold"] is None
    rows = features["student"], features["final"], features["early"]
    short = dict(alignment(*rows)) | dict(shortcut_projection(*rows))
    assert all(math.isfinite(value) for value in short.values())


def test_widths_must_agree() -> None:
    features = three(5, 4) | {"student": normal(5, 3)}
    with pytest.raises(ValueError, match="one width"):
        standing([features])
    with pytest.raises(ValueError, match="rows of 3"):
        leaning([features], orthonormal(4, 2))


def test_accuracy_and_shape_bias_by_hand() -> None:
    guess = torch.tensor([0, 1, 2, 2, 0, 1])
    logits = torch.nn.functional.one_hot(guess, 3).float()
    label = torch.tensor([0, 1, 2, 0, 1, 0])
    texture = torch.tensor([1, 0, 2, 2, 0, 2])  # the third image is no conflict
    assert dict(accuracy(logits, label)) == {"accuracy": pytest.approx(0.5)}
    result = dict(shape_bias(logits, label, {"texture": texture}))
    assert result["by_shape"] == pytest.approx(2 / 5)
    assert result["by_texture"] == pytest.approx(2 / 5)
    assert result["shape_bias"] == pytest.approx(0.5)
    assert dict(shape_bias(logits, label, {})) == {}
    assert dict(shape_bias(logits, label, {"texture": label})) == {}
