"""Switches, projector, precision and degenerate input of ASD, and the loss in somebody's loop."""
# B batch, D teacher features, d student features, K directions

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antishortcut.methods import asd
from antishortcut.methods.asd import ASD, ASDLoss, Projector
from antishortcut.methods.basis import Source
from antishortcut.types import Batch, Features
from tests.methods.test_asd import chunks, dot, double, features, gradients, mean, sizes, slow_contrast, slow_unit
from tests.test_subspace import close, normal, span


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("tc", "ss", "temporal", "names", "roles"),
    [
        (0.8, 1.0, True, {"tc", "ss"}, ("final", "early")),
        (0.8, 1.0, False, {"tc", "ss"}, ("final", "early")),
        (0.0, 1.0, True, {"ss"}, ("final", "early")),
        (0.0, 1.0, False, {"ss"}, ("final", "early")),
        (0.8, 0.0, True, {"tc"}, ("final", "early")),
        (0.8, 0.0, False, {"tc"}, ("final",)),
        (0.0, 0.0, True, set(), ("final",)),
    ],
)
def test_switches(tc: float, ss: float, temporal: bool, names: set[str], roles: tuple[str, ...]) -> None:
    method = ASD(sizes(3, 6), tc=tc, ss=ss, temporal=temporal, warmup=0)
    student, final, early = features(4, 3, 6)
    logits, index = torch.zeros(4, 5), torch.arange(4)
    given = {"final": Features(logits, final), "early": Features(logits, early)}
    batch = Batch(torch.zeros(4, 3, 1, 1), index, index)
    assert method.roles == roles
    terms = method.terms(Features(logits, student), {role: given[role] for role in roles}, batch, epoch=1)
    assert set(terms) == {"kd"} | names
    assert (method.loss.projector is not None) == bool(names) == bool(list(method.parameters()))
    assert len(method.loss.queue) == (0 if tc == 0 else 999)
    assert "kd" not in ASD(sizes(3, 6), kd=0, tc=0, ss=0).terms(Features(logits, student), given, batch, epoch=1)
    if "tc" in names:  # the early feature is in the contrast exactly when asked for
        z = method.loss.eval().project(student)
        method.loss.queue_index.fill_(asd.EMPTY)
        alone = method.loss(student, final, early, epoch=1)["tc"]
        close(alone, tc * mean(slow_contrast(z, final, early if temporal else None)), 1e-4)


def test_projector_is_the_papers() -> None:
    projector = Projector(3, 5).double()
    parts = list(projector.children())
    assert [type(part) for part in parts] == [nn.Linear, nn.BatchNorm1d, nn.Linear]
    shapes = {name: tuple(p.shape) for name, p in projector.named_parameters() if "bias" not in name}
    assert shapes == {"first.weight": (5, 3), "norm.weight": (5,), "last.weight": (5, 5)}
    rows = normal(7, 3)
    twin = nn.Sequential(parts[0], nn.BatchNorm1d(5).double(), nn.ReLU(), parts[2])
    close(projector(rows), twin(rows), 1e-12)
    close(projector.eval()(rows), twin.eval()(rows), 1e-12)
    assert not torch.allclose(projector(rows), projector.train()(rows))


@pytest.mark.parametrize(("d", "wide"), [(6, 6), (3, 6), (8, 6)])
def test_students_of_the_same_width_need_no_projector(d: int, wide: int) -> None:
    loss, rows = ASDLoss(d, wide), normal(4, d, dtype=torch.float32)
    assert (loss.projector is None) == (d == wide) == (not list(loss.parameters()))
    assert loss.project(rows).shape == (4, wide)
    if d == wide:
        assert loss.project(rows) is rows


def test_a_single_row_passes_the_projector_in_training() -> None:
    projector = Projector(3, 5)
    projector(normal(6, 3, dtype=torch.float32))
    before = copy.deepcopy(projector.state_dict())
    row = normal(1, 3, seed=1, dtype=torch.float32).requires_grad_()
    out = projector(row)
    assert all(torch.equal(before[name], value) for name, value in projector.state_dict().items())
    (gradient,) = gradients(out.square().sum(), row)
    assert gradient.any()
    close(out, projector.eval()(row), 1e-6)


DEGENERATE: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    "early = final": lambda s, f, e: (s, f, f),
    "zero student": lambda s, f, e: (0 * s, f, e),
    "zero teachers": lambda s, f, e: (s, 0 * f, 0 * e),
    "zero everything": lambda s, f, e: (0 * s, 0 * f, 0 * e),
    "zero early": lambda s, f, e: (s, f, 0 * e),
    "rank one": lambda s, f, e: (s, f.round(), f.round() + torch.arange(5.0)[:, None] * torch.arange(6.0)),
    "one row": lambda s, f, e: (s[:1], f[:1], e[:1]),
    "equal rows": lambda s, f, e: (s[:1].repeat(5, 1), f[:1].repeat(5, 1), e[:1].repeat(5, 1)),
    "huge": lambda s, f, e: (1e15 * s, 1e15 * f, 1e15 * e),
    "tiny": lambda s, f, e: (1e-15 * s, 1e-15 * f, 1e-15 * e),
}


@pytest.mark.filterwarnings("ignore:.*fewer than the 4")
@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("d", [6, 3], ids=["identity", "projector"])
@pytest.mark.parametrize("subspace", ["batch", "running"])
def test_degenerate_input_gives_finite_terms_and_gradients(case: str, d: int, subspace: Source) -> None:
    student, final, early = DEGENERATE[case](*features(5, d, 6))
    student.requires_grad_()
    loss = ASDLoss(d, 6, warmup=0, subspace=subspace)
    for _ in range(2):  # the second time with a queue
        terms = loss(student, final, early, epoch=0)
        found = gradients(terms["tc"] + terms["ss"], student, *loss.parameters())
        assert all(torch.isfinite(x).all() for x in (*terms.values(), *found))
    if case in ("early = final", "zero teachers", "zero everything"):
        assert terms["ss"] == 0


def test_equal_checkpoints_are_mentioned_once() -> None:
    student, final, _ = features(5, 6)
    student.requires_grad_()
    loss = ASDLoss(6, 6, warmup=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        terms = [loss(student, final, final, epoch=0) for _ in range(3)]
    assert ["are the two checkpoints the same?" in str(w.message) for w in said] == [True]
    assert [term["ss"].item() for term in terms] == [0, 0, 0]
    assert not gradients(terms[0]["ss"], student)[0].any()


def test_a_short_last_batch_is_not_blamed_on_the_checkpoints() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ASDLoss(6, 6)(*features(3, 6), epoch=0)  # 3 rows cannot show 4 directions
    assert not [w for w in said if "checkpoints" in str(w.message)]


@pytest.mark.filterwarnings("ignore:.*fewer than the 4")
def test_one_displaced_direction_is_suppressed_alone() -> None:
    student, final, early = DEGENERATE["rank one"](*features(5, 6))
    line = slow_unit(list(range(6)))
    loss = ASDLoss(6, 6, warmup=0)
    assert loss.basis is not None
    close(span(loss.basis(early, final)), span(double([line]).T), 1e-6)
    expected = mean([max(0.0, abs(dot(slow_unit(row), line)) - 0.1) for row in student.tolist()])
    close(loss(student, final, early, epoch=0)["ss"], expected, 1e-6)


@pytest.mark.parametrize("d", [6, 3], ids=["identity", "projector"])
def test_gradient_reaches_student_and_projector_and_no_teacher(d: int) -> None:
    student, final, early = (rows.requires_grad_() for rows in features(5, d, 6))
    loss = ASDLoss(d, 6, warmup=0)
    weights = [p for p in loss.parameters() if p.dim() == 2]  # a bias before batch norm has no gradient
    for _ in range(2):
        for term in loss(student, final, early, epoch=0).values():
            assert all(g.any() for g in torch.autograd.grad(term, [student, *weights], retain_graph=True))
            found = torch.autograd.grad(term, [final, early], allow_unused=True, retain_graph=True)
            assert [g is None for g in found] == [True, True]
    assert not loss.queue.requires_grad


@pytest.mark.parametrize("d", [6, 3], ids=["identity", "projector"])
def test_autocast_does_not_reach_inside(d: int) -> None:
    loss = ASDLoss(d, 6, warmup=0)
    plain = copy.deepcopy(loss)
    for step in range(2):
        student, final, early = (rows.bfloat16() for rows in features(5, d, 6, seed=step))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            terms = loss(student, final, early, epoch=0)
        expected = plain(student.float(), final.float(), early.float(), epoch=0)
        for name in ("tc", "ss"):
            assert terms[name].dtype == torch.float32
            assert torch.equal(terms[name], expected[name])
    assert loss.queue.dtype == torch.float32


# --- in somebody's loop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [8, 5], ids=["identity", "projector"])
def test_the_drop_in_loop_trains(d: int) -> None:
    torch.manual_seed(0)
    images, final, early = features(64, 12, 8)
    final, early = images[:, :8] + 0.1 * final, images[:, 4:] + 0.1 * early  # both can be read from the images
    student, loss = nn.Linear(12, d), ASDLoss(d, 8, queue=32, warmup=0, examples=64)
    optimizer = torch.optim.SGD([*student.parameters(), *loss.parameters()], lr=0.05, momentum=0.9)
    history = []
    for epoch in range(12):
        for chunk in chunks(torch.arange(64), 16):
            terms = loss(student(images[chunk]), final[chunk], early[chunk], epoch=epoch, index=chunk)
            total = torch.stack(list(terms.values())).sum()
            optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            history.append(total.item())
    assert mean(history[-4:]) < 0.8 * mean(history[4:8])  # from the second epoch on the queue is full


@pytest.mark.parametrize("subspace", ["batch", "running", "dataset"])
def test_what_is_remembered_in_inference_mode_serves_a_step_with_gradients(subspace: Any) -> None:
    loss = ASDLoss(8, 8, queue=16, warmup=0, subspace=subspace)

    def features() -> list[torch.Tensor]:
        return [torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]

    with torch.inference_mode():
        loss.prepare([(features()[1], features()[2])])
        loss(*features(), epoch=1.0)
    student, final, early = features()
    sum(loss(student.requires_grad_(), final, early, epoch=1.0).values()).backward()
    assert student.grad is not None
    assert student.grad.any()
    assert not any(buffer.is_inference() for buffer in loss.buffers())
