"""Switches, projector, precision and degenerate input of ASD, and the loss in somebody's loop."""
# B batch, D teacher features, d student features, K directions

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from antishortcut.methods import asd
from antishortcut.methods.asd import ASD, ASDLoss, Projector
from antishortcut.models.layers import SingleSampleNorm1d
from antishortcut.types import Batch, Features
from tests.methods.test_asd import features, gradients, mean, sizes, slow_contrast
from tests.test_subspace import close, normal


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
    inputs = {"final": Features(logits, final), "early": Features(logits, early)}
    batch = Batch(torch.zeros(4, 3, 1, 1), index, index)
    assert method.roles == roles
    terms = method.terms(Features(logits, student), {role: inputs[role] for role in roles}, batch, epoch=1)
    assert set(terms) == {"kd"} | names
    assert (method.loss.projector is not None) == bool(names) == bool(list(method.parameters()))
    assert len(method.loss.queue) == (0 if tc == 0 else 999)
    assert "kd" not in ASD(sizes(3, 6), kd=0, tc=0, ss=0).terms(Features(logits, student), inputs, batch, epoch=1)
    if "tc" in names:  # the early feature is in the contrast exactly when asked for
        z = method.loss.eval().project(student)
        method.loss.queue_index.fill_(asd.EMPTY)
        single = method.loss(student, final, early, epoch=1)["tc"]
        close(single, tc * mean(slow_contrast(z, final, early if temporal else None)), 1e-4)


def test_projector_is_the_papers() -> None:
    projector = Projector(3, 5).double()
    pieces = list(projector.children())
    assert [type(part) for part in pieces] == [nn.Linear, SingleSampleNorm1d, nn.Linear]
    shapes = {name: tuple(p.shape) for name, p in projector.named_parameters() if "bias" not in name}
    assert shapes == {"first.weight": (5, 3), "norm.weight": (5,), "last.weight": (5, 5)}
    rows = normal(7, 3)
    twin = nn.Sequential(pieces[0], nn.BatchNorm1d(5).double(), nn.ReLU(), pieces[2])
    close(projector(rows), twin(rows), 1e-12)
    close(projector.eval()(rows), twin.eval()(rows), 1e-12)
    assert not torch.allclose(projector(rows), projector.train()(rows))


def test_equal_checkpoints_are_mentioned_once() -> None:
    student, final, _ = features(5, 6)
    student.requires_grad_()
    loss = ASDLoss(6, 6, warmup=0)
    with warnings.catch_warnings(record=True) as text:
        warnings.simplefilter("always")
        terms = [loss(student, final, final, epoch=0) for _ in range(3)]
    assert ["are the two checkpoints the same?" in str(w.message) for w in text] == [True]
    assert [term["ss"].item() for term in terms] == [0, 0, 0]
    assert not gradients(terms[0]["ss"], student)[0].any()


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
