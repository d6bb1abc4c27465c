"""Unusual batches for every method: finite terms and gradients, or one clear error."""

import warnings
from typing import cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antishortcut.errors import UserError
from antishortcut.methods import METHODS, build_method, method_options, method_roles
from antishortcut.types import Batch, Features, Method, Shape, Sizes
from tests.methods.test_contract import EQUAL_CHANNELS, trained_shape

STUDENT = Shape(6, ((3, 8, 8), (4, 8, 8), (5, 4, 4), (6, 2, 2)))
TEACHERS = {
    "same": STUDENT,
    "wider": Shape(9, ((4, 8, 8), (8, 8, 8), (8, 4, 4), (9, 2, 2))),
    "deeper": Shape(7, ((4, 16, 16), (4, 8, 8), (6, 4, 4), (6, 2, 2), (7, 1, 1))),
}


def features(shape: Shape, classes: int, rows: int, kind: str, scale: float, grad: bool = False) -> Features:
    """Random, constant over the batch, or zero features of a shape, at any scale."""
    tensors = []
    for size in ((classes,), (shape.embedding,), *shape.stages):
        x = torch.randn(rows, *size) if kind == "random" else torch.ones(rows, *size) * (kind == "constant")
        tensors.append((x * scale).requires_grad_(grad))
    return Features(tensors[0], tensors[1], tuple(tensors[2:]), preact=tuple(tensors[2:]))


@pytest.mark.parametrize("name", METHODS)
@given(
    classes=st.integers(1, 4),
    rows=st.integers(1, 5),
    teacher=st.sampled_from(sorted(TEACHERS)),
    kinds=st.tuples(*[st.sampled_from(["random", "constant", "zero"])] * 2),
    scale=st.sampled_from([1e-6, 1.0, 1e3]),
    seed=st.integers(0, 2**16),
    training=st.booleans(),
    epoch=st.sampled_from([0.0, 1000.0]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_finite_or_a_clear_error(
    name: str, classes: int, rows: int, teacher: str, kinds: tuple[str, str], scale: float, seed: int, training: bool,
    epoch: float,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    labels = torch.arange(20) % classes
    options = method_options(name, {})
    roles = method_roles(name, options)
    sizes = Sizes(classes, 20, STUDENT, dict.fromkeys(roles, TEACHERS[teacher]), labels, torch.arange(20) % 3)
    try:
        method = build_method(name, sizes, options).train(training)
    except UserError:
        assert classes == 1 or (name in EQUAL_CHANNELS and teacher != "same")  # nothing else may be refused
        return
    index = torch.randperm(20)[:rows]
    student = features(trained_shape(method, sizes), classes, rows, kinds[0], scale, grad=True)
    teachers = {role: features(TEACHERS[teacher], classes, rows, kinds[1], scale) for role in roles}
    batch = Batch(torch.zeros(rows, 3, 8, 8), torch.full((rows,), int(labels[index[0]])), index)  # one class of several
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # ASD warns about directions
        terms = cast(Method, method).terms(student, teachers, batch, epoch)
    assert all(torch.isfinite(value) for value in terms.values()), terms
    if terms:
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
    for tensor in (student.logits, student.embedding, *student.stages, *method.parameters()):
        assert tensor.grad is None or torch.isfinite(tensor.grad).all()
