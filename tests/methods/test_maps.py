"""What the methods on feature maps share: any two networks fit, odd batches stay finite, two processes are one."""
# B batch, W processes

from dataclasses import replace
from functools import cache
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.methods import build_method
from antishortcut.methods.kd import kd_loss
from antishortcut.models import build, feature_shapes
from antishortcut.tasks import Classification
from antishortcut.training.step import DistillationStep
from antishortcut.types import Batch, Features, Method, Sizes, TaskSchedule
from tests.methods.test_fitnets import Stage, maps_of, numbered, sizes_of
from tests.test_subspace import close, normal, seeds, several

NAMES = ["fitnets", "fitnets+kd", "at", "at+kd", "ab", "ft", "ofd", "reviewkd", "sp", "vid", "nst", "kdsvd"]
by_name = pytest.mark.parametrize("name", NAMES)


@cache
def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build(name, 10)


def leaf(outputs: Features) -> Features:
    """Features that collect gradients."""
    stages = tuple(stage.requires_grad_() for stage in outputs.stages)
    return Features(outputs.logits.requires_grad_(), outputs.embedding.requires_grad_(), stages, preact=stages)


def terms_of(method: nn.Module, student: Features, final: Features, epoch: float = 1000.0) -> dict[str, Tensor]:
    return cast(Method, method).terms(student, {"final": final}, numbered(len(student.logits)), epoch)


@by_name
def test_student_that_skips_a_stage_is_an_error(name: str) -> None:
    class Skips(nn.Module):
        def forward(self, x: Tensor) -> Features:
            features: Features = network("resnet8x4")(x)
            return replace(features, stages=())

    whole = feature_shapes(network("resnet8x4"), 32)
    step = DistillationStep(Skips(), build_method(name, Sizes(10, 50, whole, {"final": whole}), {}), Classification())
    batch = Batch(torch.rand(2, 3, 32, 32), torch.tensor([0, 1]), torch.arange(2))
    with pytest.raises(UserError, match=r"was skipped; name modules that run every time \(student\.stages"):
        step(batch, {"final": network("resnet8x4")(batch.image)}, 0.0)


shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9)), max_size=5)


@by_name
@several
@given(ours=shapes, teacher_side=shapes, rows=st.integers(1, 3), seed=seeds)
def test_any_shapes_are_finite_or_a_clear_error(
    name: str, ours: list[Stage], teacher_side: list[Stage], rows: int, seed: int
) -> None:
    torch.manual_seed(seed)
    sizes = sizes_of(ours, teacher_side)
    if min(len(ours), len(teacher_side)) < (3 if name.startswith(("fitnets", "kdsvd")) else 1):
        with pytest.raises(
            UserError, match=f"the student has {len(ours)} stages.*the teacher {len(teacher_side)}(;|$)"
        ):
            build_method(name, sizes, {})
        return
    method = build_method(name, sizes, {})
    student = leaf(maps_of(sizes.student, rows, seed, torch.float32))
    epoch = 0.0 if isinstance(method, TaskSchedule) else 1000.0
    terms = terms_of(method, student, maps_of(sizes.teachers["final"], rows, seed + 1, torch.float32), epoch)
    assert all(torch.isfinite(value) for value in terms.values())
    torch.autograd.backward(torch.stack(list(terms.values())).sum())
    given_gradients = [x.grad for x in (student.embedding, *student.stages) if x.grad is not None]
    assert all(torch.isfinite(gradient).all() for gradient in given_gradients)


@pytest.mark.parametrize("name", ["fitnets", "at", "afdcd", "ufd"])
def test_kd_is_added(name: str) -> None:
    """Also where logits are rows of sampled pixels and stages whole maps of fewer images, as in segmentation."""
    sizes = sizes_of([(2, 4, 4)] * 3, [(4, 4, 4)] * 3)
    method, without = (build_method(name, sizes, {"kd": kd, "kd_temperature": 2.0}).double() for kd in (0.5, 0.0))
    without.load_state_dict(method.state_dict())
    student, final = maps_of(sizes.student, 2), maps_of(sizes.teachers["final"], 2, seed=9)
    pixels, targets = (Features(normal(10, 2, seed=i), normal(10, 3), x.stages) for i, x in enumerate((student, final)))
    torch.manual_seed(0)
    terms = terms_of(method, pixels, targets)
    close(terms.pop("kd"), 0.5 * kd_loss(pixels.logits, targets.logits, 2.0))
    torch.manual_seed(0)
    for key, value in terms_of(without, student, final).items():
        close(terms.pop(key), value, 0.0)  # a mean over images, not over rows
    assert not terms
