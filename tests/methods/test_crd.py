"""CRD against loops in float64, by hand, and the promises of its banks and its queue."""
# B batch, N training images, K negatives

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antishortcut.methods.crd import CRD, EPS, draw_negatives, nce_loss
from antishortcut.subspace import unit
from antishortcut.types import Batch, Features, Shape, Sizes

N, CLASSES = 60, 5


def slow_nce(positive: list[float], negative: list[list[float]], count: list[int], examples: int) -> float:
    """−log [s⁺/(s⁺ + m/N + ε)] − Σ log [(m/N)/(s_k + m/N + ε)], row by row."""
    total = 0.0
    for s, rest, m in zip(positive, negative, count, strict=True):
        noise = m / examples
        total -= math.log(s / (s + noise + EPS))
        for other in rest:
            total -= math.log(noise / (other + noise + EPS))
    return total / len(positive)


def sizes(examples: int = N, classes: int = CLASSES) -> Sizes:
    labels = torch.arange(examples) % classes
    return Sizes(classes, examples, Shape(6), {"final": Shape(9)}, labels)


def batch(rows: int, seed: int = 0) -> tuple[Features, dict[str, Features], Batch]:
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(N, generator=generator)[:rows]
    student = Features(torch.randn(rows, CLASSES, generator=generator), torch.randn(rows, 6, generator=generator))
    teacher = Features(torch.randn(rows, CLASSES, generator=generator), torch.randn(rows, 9, generator=generator))
    return student, {"final": teacher}, Batch(torch.zeros(rows, 3, 1, 1), index % CLASSES, index)


def batch64(rows: int, seed: int = 0) -> tuple[Features, dict[str, Features], Batch]:
    student, teachers, data = batch(rows, seed)
    final = teachers["final"]
    return (
        Features(student.logits.double(), student.embedding.double()),
        {"final": Features(final.logits.double(), final.embedding.double())},
        data,
    )


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_nce_is_the_loop(b: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    positive = torch.rand(b, generator=generator, dtype=torch.float64)
    negative = torch.rand(b, k, generator=generator, dtype=torch.float64)
    expected = slow_nce(positive.tolist(), negative.tolist(), [k] * b, 100)
    assert float(nce_loss(positive, negative, k, 100)) == pytest.approx(expected, abs=1e-10)
    usable = torch.rand(b, k, generator=generator) < 0.5
    counts = usable.sum(dim=1).clamp(min=1)
    saved = [
        [s for s, yes in zip(r, u, strict=True) if yes] for r, u in zip(negative.tolist(), usable.tolist(), strict=True)
    ]
    expected = slow_nce(positive.tolist(), saved, counts.tolist(), 100)
    assert float(nce_loss(positive, negative, counts, 100, usable)) == pytest.approx(expected, abs=1e-10)


def test_a_single_negative_by_hand() -> None:
    """m = 1, N = 4: noise 1/4. Positive score 3/4, negative 1/4: −log(3/4) − log(1/2)."""
    result = nce_loss(torch.tensor([0.75], dtype=torch.float64), torch.tensor([[0.25]], dtype=torch.float64), 1, 4)
    assert float(result) == pytest.approx(-math.log(0.75) - math.log(0.5), abs=1e-6)


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 2**31))
@settings(deadline=None, max_examples=40)
def test_negatives_are_other_classes_and_none_twice(b: int, k: int, seed: int) -> None:
    torch.manual_seed(seed)
    labels = torch.randint(3, (90,))
    labels[:3] = torch.arange(3)
    k = min(k, 90 - int(torch.bincount(labels).max()))
    label = labels[torch.randint(90, (b,))]
    result = draw_negatives(label, labels, k)
    assert result.shape == (b, k)
    assert (labels[result] != label[:, None]).all()
    assert all(len(set(row)) == k for row in result.tolist())


def test_negatives_are_the_first_others_of_the_order() -> None:
    labels = torch.arange(30) % 3
    label = torch.tensor([0, 2, 1, 1])
    torch.manual_seed(5)
    result = draw_negatives(label, labels, 7)
    torch.manual_seed(5)
    order, start = torch.randperm(30).tolist(), torch.randint(30, (4,)).tolist()
    for row, first, own in zip(result.tolist(), start, label.tolist(), strict=True):
        turned = order[first:] + order[:first]
        assert row == [place for place in turned if place % 3 != own][:7]
    with pytest.raises(ValueError, match="fewer than 21"):
        draw_negatives(label, labels, 21)


def test_the_constant_is_set_once_and_resumes() -> None:
    torch.manual_seed(0)
    method = CRD(sizes(), negatives=7).eval()
    method.terms(*batch(4), 0.0)
    assert (method.scale == 0).all()  # looking at a batch in evaluation fixes nothing
    method.train()
    method.terms(*batch(4), 0.0)
    first = method.scale.clone()
    assert (first > 0).all()
    method.terms(*batch(4, seed=1), 0.0)
    assert torch.equal(method.scale, first)
    other = CRD(sizes(), negatives=7)
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    assert torch.equal(other.scale, first)


def test_the_banks_move_by_momentum_where_the_batch_was() -> None:
    torch.manual_seed(0)
    method = CRD(sizes(), negatives=7, momentum=0.5)
    before = method.student_bank.clone()
    student, teachers, data = batch(4)
    method.terms(student, teachers, data, 0.0)
    touched = torch.zeros(N, dtype=torch.bool)
    touched[data.index] = True
    assert torch.equal(method.student_bank[~touched], before[~touched])
    with torch.no_grad():
        v = unit(method.student_head(student.embedding))
    assert torch.allclose(method.student_bank[data.index], unit(0.5 * before[data.index] + 0.5 * v), atol=1e-6)


def test_the_queue_holds_the_newest_and_only_other_classes_count() -> None:
    torch.manual_seed(0)
    method = CRD(sizes(), memory="queue", negatives=6)
    student, teachers, data = batch(4)
    single = method.terms(student, teachers, data, 0.0)["crd"]  # empty queue: only the positives are there
    assert torch.isfinite(single)
    assert method.bank_label.tolist() == [-1, -1, *data.label.tolist()]
    same = Batch(data.image, torch.full((4,), 9), data.index)
    method.bank_label = torch.full((6,), 9)  # nothing but the rows' own class: as if empty
    method.eval()
    held = method.terms(student, teachers, same, 0.0)["crd"]
    method.bank_label = torch.full((6,), -1)
    assert held.item() == pytest.approx(method.terms(student, teachers, same, 0.0)["crd"].item())


@pytest.mark.parametrize("rows", [1, 4, 6, 9])
def test_the_queue_is_first_in_first_out_by_row(rows: int) -> None:
    torch.manual_seed(0)
    method = CRD(sizes(), memory="queue", negatives=6)
    past = [-1] * 6
    for step in range(4):
        student, teachers, data = batch(rows, seed=step)
        method.terms(student, teachers, data, 0.0)
        past += data.label.tolist()
        assert method.bank_label.tolist() == past[-6:]
    with torch.no_grad():
        newest = unit(method.student_head(student.embedding))[-6:]
    assert torch.equal(method.student_bank[-len(newest) :], newest)


def test_two_forward_passes_before_one_backward() -> None:
    torch.manual_seed(0)
    for memory in ("bank", "queue"):
        method = CRD(sizes(), negatives=5, memory=memory)
        loss = method.terms(*batch(4), 0.0)["crd"] + method.terms(*batch(4, seed=1), 0.0)["crd"]
        torch.autograd.backward(loss)


def test_banks_change_in_place_and_the_gradient_is_that_of_the_banks_before() -> None:
    torch.manual_seed(0)
    method = CRD(sizes(), negatives=7).double()
    method.terms(*batch64(4), 0.0)  # fixes the constant
    places = {name: getattr(method, name).data_ptr() for name in ("student_bank", "teacher_bank")}
    student, teachers, data = batch64(4, seed=1)
    before = copy.deepcopy(method.state_dict())
    torch.manual_seed(3)
    negatives = draw_negatives(data.label, method.labels, 7)
    v_s, v_t = unit(method.student_head(student.embedding)), unit(method.teacher_head(teachers["final"].embedding))
    place = torch.cat([data.index[:, None], negatives], dim=1)
    expected = torch.zeros((), dtype=torch.float64)
    for side, (v, name) in enumerate(((v_s, "teacher_bank"), (v_t, "student_bank"))):
        rows = before[name][place]  # (B, 1 + K, E)
        score = torch.exp(torch.einsum("be,bke->bk", v, rows) / 0.07) / before["scale"][side]
        expected = expected + 0.8 * nce_loss(score[:, 0], score[:, 1:], 7, N)
    reference = torch.autograd.grad(3 * expected, list(method.parameters()))
    torch.manual_seed(3)
    loss = method.terms(student, teachers, data, 0.0)["crd"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    for name, address in places.items():
        assert getattr(method, name).data_ptr() == address  # N × E numbers were not copied
        assert not torch.equal(getattr(method, name), before[name])
    ours = torch.autograd.grad(3 * loss, list(method.parameters()))
    for a, b in zip(ours, reference, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)
