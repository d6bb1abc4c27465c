"""FitNets against loops over pixels and by hand; the regressor in every relation of sizes."""
# B batch, C channels, H × W pixels

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.methods.fitnets import FitNets, hint_loss, regressor
from antishortcut.types import Batch, Features, Shape, Sizes
from tests.test_subspace import close, normal, seeds, several

Stage = tuple[int, int, int]
sides = st.integers(1, 6)


def sizes_of(student: list[Stage], teacher: list[Stage], embedding: int = 3) -> Sizes:
    return Sizes(2, 8, Shape(embedding, tuple(student)), {"final": Shape(embedding, tuple(teacher))})


def maps_of(shape: Shape, rows: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Features:
    """Random features of a shape, with two classes."""
    stages = tuple(normal(rows, *stage, seed=seed + i, dtype=dtype) for i, stage in enumerate(shape.stages))
    embedding = normal(rows, shape.embedding, seed=seed + 50, dtype=dtype)
    return Features(normal(rows, 2, seed=seed + 60, dtype=dtype), embedding, stages, preact=stages)


def numbered(rows: int, label: Tensor | None = None) -> Batch:
    """A batch of which only the size matters, and perhaps the classes."""
    classes = torch.zeros(rows, dtype=torch.int64) if label is None else label
    return Batch(torch.zeros(rows, 3, 1, 1), classes, torch.arange(rows))


def slow_pool(plane: list[list[float]], height: int, width: int) -> list[list[float]]:
    """Means over windows that cover a plane evenly, as adaptive average pooling is defined."""

    def windows(have: int, want: int) -> list[range]:
        return [range(i * have // want, math.ceil((i + 1) * have / want)) for i in range(want)]

    return [
        [sum(plane[y][x] for y in ys for x in xs) / (len(ys) * len(xs)) for xs in windows(len(plane[0]), width)]
        for ys in windows(len(plane), height)
    ]


def slow_errors(regressed: Tensor, hint: Tensor) -> list[float]:
    """For each row the mean over channels and pixels of the squared difference."""
    errors = []
    for ours, reference in zip(regressed.tolist(), hint.tolist(), strict=True):
        total, count = 0.0, 0
        for plane, other in zip(ours, reference, strict=True):
            pooled = slow_pool(other, len(plane), len(plane[0]))
            for line, other_line in zip(plane, pooled, strict=True):
                for a, b in zip(line, other_line, strict=True):
                    total += (a - b) ** 2
                    count += 1
        errors.append(total / count)
    return errors


def slow_hint(regressed: Tensor, hint: Tensor) -> float:
    return sum(slow_errors(regressed, hint)) / len(hint)


@several
@given(
    b=st.integers(1, 3), c=st.integers(1, 3), size=st.tuples(sides, sides), other=st.tuples(sides, sides), seed=seeds
)
def test_agrees_with_the_loop(b: int, c: int, size: tuple[int, int], other: tuple[int, int], seed: int) -> None:
    regressed, hint = normal(b, c, *size, seed=seed), normal(b, c, *other, seed=seed + 1)
    loss = hint_loss(regressed, hint)
    assert loss.dtype == torch.float64
    close(loss, slow_hint(regressed, hint))
    close(hint_loss(regressed, regressed.clone()), 0.0, 0.0)


def test_by_hand() -> None:
    ours = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    close(hint_loss(ours, torch.zeros(1, 1, 2, 2)), (1 + 4 + 9 + 16) / 4)
    larger = torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]])  # its mean, 4, is the hint of a student of one pixel
    close(hint_loss(torch.tensor([[[[1.0]]]]), larger), 9.0)


CASES: dict[str, tuple[Stage, Stage, type[nn.Module], tuple[int, int], tuple[int, int]]] = {
    "equal": ((3, 8, 8), (5, 8, 8), nn.Conv2d, (1, 1), (8, 8)),
    "twice": ((3, 8, 8), (5, 4, 4), nn.Conv2d, (3, 3), (4, 4)),
    "twice one": ((3, 2, 2), (5, 1, 1), nn.Conv2d, (3, 3), (1, 1)),
    "half": ((3, 4, 4), (5, 8, 8), nn.ConvTranspose2d, (4, 4), (8, 8)),
    "half of two": ((3, 1, 1), (5, 2, 2), nn.ConvTranspose2d, (4, 4), (2, 2)),
    "larger": ((3, 7, 7), (5, 4, 4), nn.Conv2d, (4, 4), (4, 4)),
    "larger in height": ((3, 8, 6), (5, 4, 6), nn.Conv2d, (5, 1), (4, 6)),
    "a quarter": ((3, 2, 2), (5, 8, 8), nn.Conv2d, (1, 1), (2, 2)),
    "smaller": ((3, 5, 5), (5, 7, 7), nn.Conv2d, (1, 1), (5, 5)),
    "crosswise": ((3, 8, 4), (5, 4, 8), nn.Conv2d, (1, 1), (8, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_regressor_fits_every_relation_of_sizes(case: str) -> None:
    student, teacher, kind, kernel, size = CASES[case]
    conv = regressor(student, teacher)
    assert isinstance(conv, (nn.Conv2d, nn.ConvTranspose2d))
    assert isinstance(conv, kind)
    assert conv.kernel_size == kernel
    method = FitNets(sizes_of([student], [teacher]), hint=0)
    assert method.regress(torch.randn(2, *student)).shape == (2, teacher[0], *size)
    outputs = [maps_of(Shape(3, (stage,)), 2, dtype=torch.float32) for stage in (student, teacher)]
    assert torch.isfinite(method.terms(outputs[0], {"final": outputs[1]}, numbered(2), 0.0)["hint"])


def test_method_agrees_with_the_loop() -> None:
    torch.manual_seed(0)
    sizes = sizes_of([(2, 4, 4), (3, 2, 3)], [(2, 4, 4), (4, 2, 3)])
    method = FitNets(sizes, hint=1, weight=7.0).double()
    nn.init.normal_(method.norm.weight)
    nn.init.normal_(method.norm.bias)
    student, teacher = maps_of(sizes.student, 3), maps_of(sizes.teachers["final"], 3, seed=9)
    norm = method.norm
    regressed = F.relu(F.batch_norm(method.conv(student.stages[1]), None, None, norm.weight, norm.bias, training=True))
    close(method.regress(student.stages[1]), regressed)
    terms = method.terms(student, {"final": teacher}, numbered(3), epoch=0.0)
    assert list(terms) == ["hint"]
    close(terms["hint"], 7 * slow_hint(regressed, teacher.stages[1]))
