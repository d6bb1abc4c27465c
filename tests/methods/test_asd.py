"""ASD: the equations against loops written from the paper, by hand; its switches, precision, and the queue."""
# B batch, C classes, D teacher features, d student features, K directions, M queue, N training samples

import copy
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.methods import asd, method_options, method_roles
from antishortcut.methods.asd import ASD, ASDLoss, Projector, Source, linear_warmup, suppression, temporal_contrast
from antishortcut.models.layers import SingleSampleNorm1d
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
@given(b=st.integers(1, 5), m=st.integers(0, 5), temporal=st.booleans(), masked=st.booleans(), seed=seeds)
def test_temporal_contrast_is_the_loop(b: int, m: int, temporal: bool, masked: bool, seed: int) -> None:
    d, temperature = 1 + seed % 6, (0.07, 0.5, 2.0)[seed % 3]
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


@pytest.mark.parametrize("teachers", [{"early": Shape(5, weak=True)}, {}], ids=["another network's", "none"])
def test_beside_a_weak_reference_it_is_tc_without_the_temporal_negative(teachers: dict[str, Shape]) -> None:
    student, final, label = normal(4, 6, seed=1), normal(4, 6, seed=2), torch.arange(4)
    plain = Sizes(5, 9, Shape(6), {"final": Shape(6)} | teachers)
    method = ASD(plain, kd=0.0, warmup=0.0, subspace="dataset")
    assert method.roles == method_roles("asd", {}, weak=True) == ("final",)
    assert "temporal negative, and L_SS is left out" in method.note
    assert not ASD(plain, ss=0.0, temporal=False).note  # asked for
    assert not ASD(sizes(6, 6, 9)).note
    method.prepare([{"final": Features(final, final)}])
    outputs = {"final": Features(final, final)}
    terms = method.double().terms(Features(student, student), outputs, Batch(student, label, label), epoch=1.0)
    assert list(terms) == ["tc"]
    close(terms["tc"], torch.tensor(0.8 * sum(slow_contrast(student, final, None)) / 4, dtype=torch.float64))


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


def test_equal_checkpoints_warn_once() -> None:
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
def test_state_from_inference_mode_works_in_training(subspace: Any) -> None:
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


# --- the queue ---


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


@pytest.mark.parametrize(("places", "examples", "size"), [(0, None, 0), (2, None, 2), (9, 4, 3), (9, 1, 0), (9, 0, 0)])
def test_queues_of_any_size_work(places: int, examples: int | None, size: int) -> None:
    loss = ASDLoss(5, 5, queue=places, examples=examples)
    for step in range(3):
        terms = loss(*features(4, 5, seed=step), epoch=20, index=torch.arange(4))
        assert torch.isfinite(terms["tc"])
    assert loss.queue.shape == (size, 5)
    if size:
        close(loss.queue.norm(dim=1), [1.0] * size, 1e-6)


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
    combined = gradients(torch.stack(totals).sum(), *rows)  # the queue has moved on since the first one
    for step, gradient in zip(steps, combined, strict=True):
        (single,) = gradients(sum(apart(*step, epoch=0).values(), torch.zeros(())), step[0])
        close(gradient, single, 1e-6)
