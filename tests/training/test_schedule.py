"""The learning rate, against formulas written out by hand."""

from __future__ import annotations

import math

import pytest

from antishortcut.config.recipe import OptimSettings
from antishortcut.training.optim import lr_at


def rates(**settings: object) -> list[float]:
    optim = OptimSettings.model_validate({"lr": 0.1} | settings)
    return [lr_at(optim, step, 10, 100) for step in range(100)]


def test_cosine_falls_from_the_rate_to_nothing() -> None:
    result = rates(schedule="cosine")
    for step in (0, 1, 37, 99):
        assert result[step] == pytest.approx(0.05 * (1 + math.cos(math.pi * step / 100)), abs=1e-15)
    assert result == sorted(result, reverse=True)


def test_steps_are_tenths() -> None:
    result = rates(schedule="step", milestones=(5, 8))
    assert result[49:51] == pytest.approx([0.1, 0.01])
    assert result[79:81] == pytest.approx([0.01, 0.001])


def test_poly_and_constant() -> None:
    assert rates(schedule="poly")[50] == pytest.approx(0.1 * 0.5**0.9)
    assert set(rates(schedule="constant")) == {0.1}


def test_warm_up_rises_linearly_and_then_the_schedule_begins() -> None:
    result = rates(schedule="cosine", warmup=2)
    assert result[:20] == pytest.approx([0.1 * (step + 1) / 21 for step in range(20)])
    assert result[20] == pytest.approx(0.1)
    assert result[60] == pytest.approx(0.05)  # half of the remaining 80 steps
