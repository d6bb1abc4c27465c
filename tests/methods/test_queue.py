"""The queue of past T_final features: what it holds when, and that it can be resumed and differentiated through."""
# B batch, D teacher features, M queue, N training samples

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from antishortcut.methods import asd
from antishortcut.methods.asd import ASDLoss, temporal_contrast
from antishortcut.methods.shortcut_basis import Source
from antishortcut.subspace import unit
from tests.methods.test_asd import chunks, features, gradients
from tests.test_subspace import close


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7])
def test_single_rows_are_first_in_first_out(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """Whether the queue of 6 is a multiple of the batch or not, and where the batch is the larger."""
    loss, one_hot = ASDLoss(40, 40, queue=6, ss=0), torch.eye(40)
    calls, past = used_negatives(loss, monkeypatch), list[int]()
    for chunk in chunks(torch.arange(40), batch):  # the last one may be shorter
        loss(one_hot[chunk], one_hot[chunk], one_hot[chunk].roll(1, 1), epoch=0, index=chunk)
        assert all(sorted(negatives) == past[-6:] for negatives in calls[-1])
        past += chunk.tolist()
    assert torch.equal(loss.queue, one_hot[-6:])
    assert loss.queue_index.tolist() == past[-6:]


def test_negatives_are_the_queue_oldest_first() -> None:
    loss = ASDLoss(4, 4, queue=6, ss=0)
    batches = [features(2, 4, seed=step)[1] for step in range(3)]
    for final in batches:
        loss(final, final, -final, epoch=0)
    queue, _ = loss._negatives(2, None)
    assert queue is not None
    assert torch.equal(queue, torch.cat([unit(final) for final in batches]))


def used_negatives(loss: ASDLoss, monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """Grows by an entry a call: for each row, the samples among its queued negatives (finals must be one-hot)."""
    calls: list[list[list[int]]] = []
    original = temporal_contrast

    def recorded(student: Tensor, final: Tensor, early: Tensor, queue: Tensor | None, **rest: Any) -> Tensor:
        ignore = rest["ignore"]
        samples: list[int] = [] if queue is None else queue.argmax(dim=1).tolist()
        places = range(len(samples))
        calls.append([[samples[m] for m in places if not ignore[row, m]] for row in range(len(student))])
        return original(student, final, early, queue, **rest)

    monkeypatch.setattr(asd, "temporal_contrast", recorded)
    return calls


@pytest.mark.parametrize("places", [100, 5])
@pytest.mark.parametrize(("n", "b"), [(10, 5), (10, 4), (7, 7), (9, 1)])
def test_in_sequential_epochs_the_queue_never_holds_a_current_sample(
    monkeypatch: pytest.MonkeyPatch, n: int, b: int, places: int
) -> None:
    loss, one_hot = ASDLoss(n, n, queue=places, ss=0, examples=n), torch.eye(n)
    calls = used_negatives(loss, monkeypatch)
    for epoch, chunk in itertools.product(range(3), chunks(torch.arange(n), b)):
        loss(one_hot[chunk], one_hot[chunk], one_hot[chunk].roll(1, 1), epoch=epoch)
        current = set(chunk.tolist())
        for negatives in calls[-1]:
            assert not current & set(negatives)
            assert len(set(negatives)) == len(negatives)
            if epoch > 0:  # and it holds as many others as there are, or as fit
                assert len(negatives) == min(n - len(chunk), places)


@pytest.mark.parametrize("examples", [None, 8])
def test_in_any_order_a_samples_own_past_is_no_negative(monkeypatch: pytest.MonkeyPatch, examples: int | None) -> None:
    n, b = 8, 3
    loss, one_hot = ASDLoss(n, n, queue=20, ss=0, examples=examples), torch.eye(n)
    calls, past, repeats = used_negatives(loss, monkeypatch), list[int](), 0
    for epoch in range(4):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch))
        for chunk in chunks(order, b):
            loss(one_hot[chunk], one_hot[chunk], one_hot[chunk].roll(1, 1), epoch=epoch, index=chunk)
            reach = 20 if examples is None else n - len(chunk)
            for own, negatives in zip(chunk.tolist(), calls[-1], strict=True):
                assert sorted(negatives) == sorted(sample for sample in past[-reach:] if sample != own)
                repeats += own in past[-reach:]
            past = (past + chunk.tolist())[-20:]
    assert repeats > 0  # the case did occur


@pytest.mark.parametrize(("places", "examples", "kept"), [(0, None, 0), (2, None, 2), (9, 4, 3), (9, 1, 0), (9, 0, 0)])
def test_queues_of_any_size_work(places: int, examples: int | None, kept: int) -> None:
    loss = ASDLoss(5, 5, queue=places, examples=examples)
    for step in range(3):
        terms = loss(*features(4, 5, seed=step), epoch=20, index=torch.arange(4))
        assert torch.isfinite(terms["tc"])
    assert loss.queue.shape == (kept, 5)
    if kept:
        close(loss.queue.norm(dim=1), [1.0] * kept, 1e-6)


@pytest.mark.parametrize("subspace", ["batch", "running"])
def test_state_resumes_bit_for_bit(subspace: Source) -> None:
    whole, resumed = (ASDLoss(3, 5, queue=9, warmup=0, subspace=subspace, refresh=2, directions=2) for _ in range(2))
    steps = [(features(4, 3, 5, seed=step), torch.arange(4) + 2 * step) for step in range(5)]
    for rows, index in steps[:3]:
        whole(*rows, epoch=0, index=index)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    for rows, index in steps[3:]:
        ours, reference = whole(*rows, epoch=0, index=index), resumed(*rows, epoch=0, index=index)
        assert all(torch.equal(ours[name], reference[name]) for name in ("tc", "ss"))
    assert all(torch.equal(resumed.state_dict()[name], value) for name, value in whole.state_dict().items())


@pytest.mark.parametrize("subspace", ["batch", "running"])
def test_two_forward_passes_before_one_backward(subspace: Source) -> None:
    joint, apart = (ASDLoss(6, 6, queue=9, warmup=0, subspace=subspace, refresh=1) for _ in range(2))
    steps = [features(5, 6, seed=step) for step in range(3)]
    rows = [student.requires_grad_() for student, _, _ in steps]
    totals = [sum(joint(*step, epoch=0).values(), torch.zeros(())) for step in steps]
    together = gradients(torch.stack(totals).sum(), *rows)  # the queue has moved on since the first one
    for step, gradient in zip(steps, together, strict=True):
        (single,) = gradients(sum(apart(*step, epoch=0).values(), torch.zeros(())), step[0])
        close(gradient, single, 1e-6)
