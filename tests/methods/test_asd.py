"""Anti-shortcut distillation against loops written from the paper, by hand, and as something people train with."""
# B batch, C classes, D teacher features, d student features, K directions, M queue, N training samples

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods import method_options
from antishortcut.methods.asd import ASD, ASDLoss, linear_warmup, suppression, temporal_contrast
from antishortcut.subspace import unit
from antishortcut.types import Batch, Features, Shape, Sizes
from tests.methods.test_kd import slow_kd
from tests.test_subspace import close, normal, orthonormal, seeds, several, slow_directions, slow_moment

Row = list[float]


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    torch.manual_seed(0)


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow_unit(row: Sequence[float]) -> Row:
    return [x / math.sqrt(dot(row, row)) for x in row]


def slow_contrast(
    student: Tensor,
    final: Tensor,
    early: Tensor | None,
    queue: Sequence[Sequence[float]] = (),
    temperature: float = 0.07,
    ignore: Tensor | None = None,
) -> list[float]:
    """L_TC of every row, Eq. 5–6 term by term."""
    z_s, z_f = ([slow_unit(row) for row in x.tolist()] for x in (student, final))
    z_e = None if early is None else [slow_unit(row) for row in early.tolist()]
    losses = []
    for i, z in enumerate(z_s):
        positive = math.exp(dot(z, z_f[i]) / temperature)
        denominator = positive
        if z_e is not None:
            denominator += math.exp(dot(z, z_e[i]) / temperature)
        for j in range(len(z_f)):
            if j != i:
                denominator += math.exp(dot(z, z_f[j]) / temperature)
        for m, q in enumerate(queue):
            if ignore is None or not ignore[i, m]:
                denominator += math.exp(dot(z, q) / temperature)
        losses.append(-math.log(positive / denominator))
    return losses


def slow_suppression(student: Tensor, basis: Any, margin: float) -> float:
    """L_SS, Eq. 7: how far each row's projection on the K columns of the basis exceeds the margin, on average."""
    columns = [[float(x) for x in column] for column in basis.T]
    total = 0.0
    for row in student.tolist():
        h = slow_unit(row)
        total += max(0.0, math.sqrt(sum(dot(h, u) ** 2 for u in columns)) - margin)
    return total / len(student)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, of)


def features(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Student (B, d), final (B, D) and early (B, D) rows in single precision; shape is B, d, D or B, D."""
    b, d, wide = shape if len(shape) == 3 else (shape[0], shape[1], shape[1])
    s, f, e = (normal(b, w, seed=3 * seed + i, dtype=torch.float32) for i, w in enumerate((d, wide, wide)))
    return s, f, e


def chunks(order: Tensor, b: int) -> list[Tensor]:
    """Samples (N,) in batches of b, the last one shorter."""
    return [order[start : start + b] for start in range(0, len(order), b)]


def sizes(student: int = 6, teacher: int = 6, examples: int = 1000) -> Sizes:
    return Sizes(5, examples, Shape(student), {"final": Shape(teacher), "early": Shape(teacher)})


# --- Eq. 4–7: the pure functions ---------------------------------------------------------------------------------


@several
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 5)),
    temporal=st.booleans(),
    masked=st.booleans(),
    temperature=st.sampled_from([0.07, 0.5, 2.0]),
    seed=seeds,
)
def test_temporal_contrast_is_the_loop(
    shape: tuple[int, int, int], temporal: bool, masked: bool, temperature: float, seed: int
) -> None:
    b, d, m = shape
    student, final, early = (normal(b, d, seed=seed + i) for i in range(3))
    queue = unit(normal(m, d, seed=seed + 3))
    ignore = normal(b, m, seed=seed + 4) > 0 if masked else None
    loss = temporal_contrast(student, final, early if temporal else None, queue, temperature=temperature, ignore=ignore)
    slow = slow_contrast(student, final, early if temporal else None, queue.tolist(), temperature, ignore)
    close(loss, mean(slow))
    if m == 0:
        close(temporal_contrast(student, final, early if temporal else None, temperature=temperature), loss, 0)


def double(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_contrast_of_orthogonal_features_by_hand() -> None:
    e = torch.eye(8, dtype=torch.float64)
    own = e[:2]  # the student is the final teacher; the early states and the queue lie elsewhere
    close(temporal_contrast(own, own, e[2:4], temperature=1.0), math.log(1 + 2 / math.e), 1e-14)
    close(temporal_contrast(own, own, e[2:4], e[4:], temperature=1.0), math.log(1 + 6 / math.e), 1e-14)
    close(temporal_contrast(own, own, None, e[4:], temperature=0.5), math.log(1 + 5 / math.e**2), 1e-14)
    close(temporal_contrast(own, e[2:4], own, temperature=1.0), math.log(2 + math.e), 1e-14)  # a student stuck early


def test_contrast_of_one_row_with_a_queue_by_hand() -> None:
    student, final, early, queue = double([[5, 0]]), double([[3, 4]]), double([[0, 2]]), double([[-1, 0], [0, -1]])
    total = math.exp(0.6) + 1 + math.exp(-1) + 1
    close(temporal_contrast(student, final, early, queue, temperature=1.0), math.log(total) - 0.6, 1e-14)
    ignore = torch.tensor([[True, False]])
    close(
        temporal_contrast(student, final, early, queue, temperature=0.2, ignore=ignore),
        math.log(math.exp(3.0) + 1 + 1) - 3.0,
        1e-14,
    )


@several
@given(b=st.integers(1, 5), d=st.integers(1, 7), k=st.integers(1, 4), margin=st.floats(0, 0.9), seed=seeds)
def test_suppression_is_the_loop(b: int, d: int, k: int, margin: float, seed: int) -> None:
    student, basis = normal(b, d, seed=seed), orthonormal(d, min(k, d), seed=seed + 1)
    close(suppression(student, basis, margin), slow_suppression(student, basis, margin))


def test_suppression_by_hand() -> None:
    axis = double([[1], [0]])
    rows = double([[3, 4], [0, 2], [-1, 0]])  # projections 0.6, 0 and 1
    close(suppression(rows, axis), (0.5 + 0 + 0.9) / 3, 1e-14)
    close(suppression(rows, axis, margin=0.7), 0.3 / 3, 1e-14)
    close(suppression(rows, torch.eye(2, dtype=torch.float64)), 0.9, 1e-14)


# --- Eq. 9–10: total and warm-up ---------------------------------------------------------------------------------


def test_total_is_the_loop() -> None:
    """kd + β α_tc tc + γ α_ss ss over several steps, the queue included."""
    options: dict[str, Any] = {"kd": 0.7, "kd_temperature": 3.0, "tc": 0.6, "ss": 1.5, "temperature": 0.2}
    method = ASD(sizes(), **options, margin=0.15, directions=2, queue=7, warmup=8)
    queue: list[tuple[int, Row]] = []  # sample and feature, oldest first
    for step, epoch in enumerate((0.0, 2.0, 4.5, 8.0, 30.0)):
        student, final, early = features(4, 6, seed=step)
        logits, targets = normal(4, 5, seed=step + 70).float(), normal(4, 5, seed=step + 90).float()
        index = torch.arange(4) + 3 * step  # each batch sees a sample of the one before again
        batch = Batch(torch.zeros(4, 3, 1, 1), torch.zeros(4, dtype=torch.int64), index)
        own = torch.tensor([[sample == i for sample, _ in queue] for i in index.tolist()])
        teachers = {"final": Features(targets, final), "early": Features(targets, early)}
        terms = method.terms(Features(logits, student), teachers, batch, epoch)
        beta = min(epoch / 8, 1.0)
        u, _ = slow_directions(slow_moment(early - final), 2)
        slow = {
            "kd": 0.7 * slow_kd(logits, targets, 3.0),
            "tc": beta * 0.6 * mean(slow_contrast(student, final, early, [row for _, row in queue], 0.2, own)),
            "ss": beta * 1.5 * slow_suppression(student, u, 0.15),
        }
        close([float(terms[name]) for name in slow], list(slow.values()), 1e-5)
        close(sum(terms.values()), sum(slow.values()), 2e-5)
        outputs = [(i, slow_unit(row)) for i, row in zip(index.tolist(), final.tolist(), strict=True)]
        queue = (queue + outputs)[-7:]


@pytest.mark.parametrize(
    ("epoch", "warmup", "weight"),
    [(0, 20, 0), (0.5, 20, 0.025), (10, 20, 0.5), (19.99, 20, 0.9995), (20, 20, 1), (240, 20, 1), (0, 0, 1), (3, 0, 1)],
)
def test_warm_up_is_linear_in_fractional_epochs(epoch: float, warmup: float, weight: float) -> None:
    assert linear_warmup(epoch, warmup) == pytest.approx(weight, abs=1e-12)
    rows = features(4, 6)
    terms, full = ASDLoss(6, 6, warmup=warmup)(*rows, epoch=epoch), ASDLoss(6, 6, warmup=0)(*rows, epoch=epoch)
    for name in ("tc", "ss"):
        close(terms[name], weight * full[name], 1e-6)
        assert full[name] > 0


PAPER = {"tc": 0.8, "ss": 1.0, "temperature": 0.07, "margin": 0.1, "directions": 4, "queue": 4096, "warmup": 20.0}
OURS = {"temporal": True, "subspace": "batch", "select": "displaced"}  # the paper's, under the names of our options


def test_defaults_are_the_papers() -> None:
    defaults = method_options("asd", {})
    expected = PAPER | OURS | {"kd": 1.0, "kd_temperature": 4.0, "task_weight": 1.0}
    assert defaults == expected | {"momentum": 0.99, "refresh": 50}


def test_method_passes_every_setting_on() -> None:
    changed: dict[str, Any] = dict(zip(PAPER, (0.3, 0.4, 0.5, 0.2, 2, 33, 7.0), strict=True))
    loss = ASD(sizes(), **changed, subspace="running", refresh=9).loss
    assert loss.basis is not None
    assert [loss.tc, loss.ss, loss.temperature, loss.margin, loss.warmup] == [0.3, 0.4, 0.5, 0.2, 7.0]
    assert (len(loss.queue), loss.examples, loss.basis.directions, loss.basis.refresh) == (33, 1000, 2, 9)
