"""What every method promises, checked for every member of the table: joining METHODS is enough to be tested here."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from antishortcut.methods import METHODS, method_options, method_roles
from antishortcut.models import build, feature_shapes, tapped_features
from antishortcut.tasks import Classification
from antishortcut.training.step import DistillationStep
from antishortcut.training.trainer import deployed
from antishortcut.types import Batch, Features, Method, ReusesClassifier, Shape, Sizes

PAST_WARMUP = 1000.0
PAIRS = {
    "same-width": ("cnn-8-16", "cnn-4-16"),
    "other-width": ("cnn-8-24", "cnn-4-16"),
    "other-stages": ("resnet8", "cnn-4-16"),
}


EQUAL_CHANNELS = ("fsp",)  # methods for pairs whose stages have as many channels


def float32(outputs: Features) -> Features:
    """As the loop hands teachers' features over, whatever they were computed in."""
    return outputs.float32(("stages", "preact", "last"))


def trained_shape(method: nn.Module, sizes: Sizes) -> Shape:
    """Of the features that a method sees in training: of a student with its teacher's classifier they are as wide."""
    if not isinstance(method, ReusesClassifier):
        return sizes.student
    return replace(sizes.student, embedding=sizes.teachers["final"].embedding)


class Setting:
    """One method on one pair of small networks and one fixed batch."""

    def __init__(self, name: str, pair: str, rows: int = 16, precision: str = "float32") -> None:
        torch.manual_seed(0)
        self.precision = precision
        teacher, student = PAIRS[pair]
        teacher = student if name in EQUAL_CHANNELS else teacher
        options = method_options(name, {})
        self.roles = method_roles(name, options)
        self.teachers = {role: build(teacher, 5).requires_grad_(False).eval() for role in self.roles}
        self.student = build(student, 5)
        shapes = {role: feature_shapes(network, 32) for role, network in self.teachers.items()}
        labels = torch.arange(200) % 5
        groups = torch.arange(200) % 10
        self.method = METHODS[name](Sizes(5, 200, feature_shapes(self.student, 32), shapes, labels, groups), **options)
        self.student = deployed(self.method, self.student, self.teachers.get("final"), 32)
        self.step = DistillationStep(self.student, self.method, Classification())
        index = torch.randperm(200)[:rows]
        self.batch = Batch(torch.rand(rows, 3, 32, 32), labels[index], index)

    def targets(self, batch: Batch | None = None) -> Mapping[str, Features]:
        image = (batch or self.batch).image
        taps = cast(Method, self.method).taps
        return {role: tapped_features(net, image, taps).float32(taps) for role, net in self.teachers.items()}

    def loss(self, batch: Batch | None = None, epoch: float = PAST_WARMUP) -> torch.Tensor:
        return torch.stack(list(self.terms(batch, epoch).values())).sum()

    def terms(self, batch: Batch | None = None, epoch: float = PAST_WARMUP) -> dict[str, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bfloat16"):
            result: dict[str, torch.Tensor] = self.step(batch or self.batch, self.targets(batch), epoch)
        return result


by_method = pytest.mark.parametrize("name", METHODS)


@by_method
@pytest.mark.parametrize(("pair", "precision"), [*((pair, "float32") for pair in PAIRS), ("other-width", "bfloat16")])
def test_terms_are_finite_scalars_and_their_gradient_reaches_student_and_heads_and_no_teacher(
    name: str, pair: str, precision: str
) -> None:
    setting = Setting(name, pair, precision=precision)
    own = {id(p) for p in setting.method.parameters()} | {id(b) for b in setting.method.buffers()}
    for network in setting.teachers.values():
        network.requires_grad_(True)  # a method must not pass gradient even if the caller forgot to freeze
        assert not own & {id(p) for p in network.parameters()}  # teachers are no part of a method
    terms = setting.terms()
    assert "task" in terms
    for key, value in terms.items():
        assert (value.shape, value.dtype) == ((), torch.float32), key
        assert torch.isfinite(value), key
    torch.autograd.backward(torch.stack(list(terms.values())).sum())
    reused = isinstance(setting.method, ReusesClassifier)
    for key, parameter in setting.step.named_parameters():
        if reused and key.startswith("student.body.head."):
            assert not parameter.requires_grad, key  # the teacher's classifier, which is not trained
            continue
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in setting.student.parameters())
    assert all(p.grad is None for network in setting.teachers.values() for p in network.parameters())


@by_method
def test_state_changes_only_in_training_mode(name: str) -> None:
    setting = Setting(name, "other-width")
    before = copy.deepcopy(setting.method.state_dict())
    setting.step.eval()
    setting.loss()
    for key, value in setting.method.state_dict().items():
        assert torch.equal(value, before[key]), key


@by_method
def test_ten_steps_on_one_batch_lower_the_loss(name: str) -> None:
    setting = Setting(name, "other-width")
    setting.loss()  # fill what a method fills, then hold it
    setting.method.eval()
    setting.student.train()
    optimizer = torch.optim.SGD(setting.step.parameters(), lr=0.01, momentum=0.9)
    first = setting.loss().item()
    for _ in range(10):
        optimizer.zero_grad()
        torch.autograd.backward(setting.loss())
        optimizer.step()
    assert setting.loss().item() < first


@by_method
def test_a_method_resumes_bit_for_bit(name: str) -> None:
    setting = Setting(name, "other-width")

    def go(step: DistillationStep, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        for number in numbers:
            torch.manual_seed(number)
            index = torch.randperm(200)[:16]
            batch = Batch(torch.rand(16, 3, 32, 32), index % 5, index)
            setting.step = step
            torch.autograd.backward(setting.loss(batch, float(number)))
            optimizer.step()
            optimizer.zero_grad()

    def optimizer(step: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(step.parameters(), lr=0.01, momentum=0.9)

    fresh = copy.deepcopy(setting.step)
    first = optimizer(setting.step)
    go(setting.step, first, range(3))
    saved, saved_optimizer = copy.deepcopy(setting.step.state_dict()), copy.deepcopy(first.state_dict())
    go(setting.step, first, range(3, 6))
    fresh.load_state_dict(saved)
    second = optimizer(fresh)
    second.load_state_dict(saved_optimizer)
    go(fresh, second, range(3, 6))
    for (key, one), two in zip(setting.step.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert torch.equal(one, two), key


def odd_features(network: nn.Module, rows: int, requires_grad: bool = False) -> Features:
    """Random features in the shapes of a network."""
    shape = feature_shapes(network, 32)
    sizes = ((5,), (shape.embedding,), *shape.stages, (shape.embedding, *shape.side))
    built = [torch.randn(rows, *size, requires_grad=requires_grad) for size in sizes]
    return rebuilt(built)


def tensors_of(outputs: Features) -> list[Tensor]:
    """Logits, embedding, stages, and the last map."""
    assert outputs.last is not None
    return [outputs.logits, outputs.embedding, *outputs.stages, outputs.last]


def rebuilt(tensors: Sequence[Tensor]) -> Features:
    logits, embedding, *stages, last = tensors
    return Features(logits, embedding, tuple(stages), last=last, preact=tuple(stages))


def scaled(outputs: Features, factor: float) -> Features:
    """Embedding and maps multiplied, as leaves that can hold a gradient."""
    logits, *rest = tensors_of(outputs)
    return rebuilt([logits, *((factor * rows.detach()).requires_grad_(rows.requires_grad) for rows in rest)])


def first_row(outputs: Features) -> Features:
    """Every row as the first one."""
    rows = tensors_of(outputs)
    return rebuilt([x.detach()[:1].expand_as(x).clone().requires_grad_(x.requires_grad) for x in rows])


TROUBLE = ["one row", "equal teachers", "equal rows", "zero features", "huge features", "tiny features", "one class"]


@by_method
@pytest.mark.parametrize("trouble", TROUBLE)
def test_odd_batches_stay_finite(name: str, trouble: str) -> None:
    rows = 1 if trouble == "one row" else 8
    setting = Setting(name, "other-width", rows)
    student = odd_features(setting.student, rows, requires_grad=True)
    teachers = {role: odd_features(network, rows) for role, network in setting.teachers.items()}
    batch = setting.batch
    factor = {"zero features": 0.0, "huge features": 1e6, "tiny features": 1e-15}.get(trouble)
    if factor is not None:
        student = student if factor > 1 else scaled(student, factor)
        teachers = {role: scaled(outputs, factor) for role, outputs in teachers.items()}
    if trouble == "equal teachers" and teachers:
        teachers = dict.fromkeys(teachers, next(iter(teachers.values())))
    if trouble == "equal rows":
        student, teachers = first_row(student), {role: first_row(outputs) for role, outputs in teachers.items()}
    if trouble == "one class":
        batch = replace(batch, label=torch.zeros(rows, dtype=torch.int64))
    for epoch in (0.0, PAST_WARMUP, PAST_WARMUP):  # the last time with a queue or bank that has seen the others
        terms = cast(Method, setting.method).terms(student, teachers, batch, epoch)
        assert all(torch.isfinite(value) for value in terms.values()), terms
        if terms:
            torch.autograd.backward(torch.stack(list(terms.values())).sum())
            for tensor in tensors_of(student):
                assert tensor.grad is None or torch.isfinite(tensor.grad).all()
