"""Diagnostics against slow loops in float64 and cases solved by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import linregress

from antishortcut.diagnose import alignment, cosine, ridge_map, shortcut_projection
from antishortcut.scorers import accuracy, shape_bias


def loop_cosine(a: list[float], b: list[float]) -> float:
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))


@pytest.fixture
def features() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    student, final, early = (torch.randn(50, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    return student + final, final, early


def test_alignment_equals_its_loop(features: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    student, final, early = (rows.tolist() for rows in features)
    found = dict(alignment(*features))
    to_final = [loop_cosine(s, f) for s, f in zip(student, final, strict=True)]
    to_early = [loop_cosine(s, e) for s, e in zip(student, early, strict=True)]
    moved = [[x - y for x, y in zip(e, f, strict=True)] for e, f in zip(early, final, strict=True)]
    signed = [loop_cosine(s, d) for s, d in zip(student, moved, strict=True)]
    assert found["cos_final"] == pytest.approx(sum(to_final) / 50, abs=1e-10)
    assert found["cos_early"] == pytest.approx(sum(to_early) / 50, abs=1e-10)
    assert found["cos_displacement"] == pytest.approx(sum(signed) / 50, abs=1e-10)
    assert found["closer_to_final"] == pytest.approx(
        sum(f > e for f, e in zip(to_final, to_early, strict=True)) / 50, abs=1e-6
    )
    assert found["above_threshold"] == pytest.approx(sum(s > -0.1 for s in signed) / 50, abs=1e-6)


def test_a_student_that_is_the_final_teacher(features: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    _, final, early = features
    found = dict(alignment(final, final, early))
    assert found["cos_final"] == pytest.approx(1)
    assert found["closer_to_final"] == 1
    assert found["cos_displacement"] < 0
    assert torch.equal(cosine(final, torch.zeros_like(final)), torch.zeros(50, dtype=torch.float64))


def test_projection_equals_numpy(features: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    student, final, early = (rows.numpy() for rows in features)
    delta = early - final
    _, vectors = np.linalg.eigh(delta.T @ delta / 50)
    basis = vectors[:, -3:]
    found = dict(shortcut_projection(*features, k=3))
    for key, rows in (("projection", student), ("projection_final", final)):
        expected = np.mean(np.linalg.norm(rows @ basis, axis=1) / np.linalg.norm(rows, axis=1))
        assert found[key] == pytest.approx(expected, abs=1e-10)
    assert found["projection_random"] == pytest.approx(math.sqrt(3 / 8))


def test_ridge_map_finds_a_line_and_a_rotation() -> None:
    x = torch.linspace(-1, 2, 40, dtype=torch.float64)[:, None]
    noise = torch.sin(17 * x)
    matrix, offset = ridge_map(x, 3 * x + 2 + noise, strength=0)
    line = linregress(x[:, 0].numpy(), (3 * x + 2 + noise)[:, 0].numpy())
    assert [float(matrix), float(offset)] == pytest.approx([line.slope, line.intercept])
    generator = torch.Generator().manual_seed(1)
    source = torch.randn(200, 6, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    matrix, offset = ridge_map(source, source @ turn + 1, strength=1e-9)
    assert torch.allclose(matrix, turn, atol=1e-6)
    assert torch.allclose(offset, torch.ones(6, dtype=torch.float64), atol=1e-6)


def test_ridge_map_of_constant_features_is_finite() -> None:
    matrix, offset = ridge_map(torch.ones(10, 4), torch.randn(10, 3))
    assert torch.isfinite(matrix).all()
    assert torch.isfinite(offset).all()


def test_accuracy_and_shape_bias_by_hand() -> None:
    guess = torch.tensor([0, 1, 2, 2, 0, 1])
    logits = torch.nn.functional.one_hot(guess, 3).float()
    label = torch.tensor([0, 1, 2, 0, 1, 0])
    texture = torch.tensor([1, 0, 2, 2, 0, 2])  # the third image is no conflict
    assert dict(accuracy(logits, label)) == {"accuracy": pytest.approx(0.5)}
    found = dict(shape_bias(logits, label, {"texture": texture}))
    assert found["by_shape"] == pytest.approx(2 / 5)
    assert found["by_texture"] == pytest.approx(2 / 5)
    assert found["shape_bias"] == pytest.approx(0.5)
    assert dict(shape_bias(logits, label, {})) == {}
    assert dict(shape_bias(logits, label, {"texture": label})) == {}
