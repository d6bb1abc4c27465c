"""Attention transfer against loops over pixels, by hand, and what attention does not see."""
# B batch, C channels, H × W pixels, P = H · W

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods.at import AT, attention, attention_distance
from tests.methods.test_fitnets import Stage, maps_of, numbered, sides, sizes_of, slow_pool
from tests.test_subspace import close, normal, seeds, several

Side = tuple[int, int]
THREE: list[Stage] = [(2, 4, 4), (3, 4, 4), (4, 2, 2)]


def slow_attention(planes: list[list[list[float]]], height: int, width: int) -> list[float]:
    """One image's planes (C, H, W), pooled: the mean of squares at each pixel, the whole scaled to length 1."""
    pooled = [slow_pool(plane, height, width) for plane in planes]
    squares = [sum(plane[y][x] ** 2 for plane in pooled) / len(pooled) for y in range(height) for x in range(width)]
    length = math.sqrt(sum(v * v for v in squares))
    return [v / length if length > 0 else 0.0 for v in squares]


def slow_distance(student: Tensor, teacher: Tensor) -> list[float]:
    height, width = (min(a, b) for a, b in zip(student.shape[2:], teacher.shape[2:], strict=True))
    result = []
    for ours, reference in zip(student.tolist(), teacher.tolist(), strict=True):
        pairs = zip(slow_attention(ours, height, width), slow_attention(reference, height, width), strict=True)
        result.append(sum((a - b) ** 2 for a, b in pairs) / (height * width))
    return result


@several
@given(
    b=st.integers(1, 3), channels=sides, ours=st.tuples(sides, sides), teacher_side=st.tuples(sides, sides), seed=seeds
)
def test_agrees_with_the_loop(b: int, channels: int, ours: Side, teacher_side: Side, seed: int) -> None:
    student, teacher = normal(b, channels, *ours, seed=seed), normal(b, 3, *teacher_side, seed=seed + 1)
    distance = attention_distance(student, teacher)
    assert distance.dtype == torch.float64
    close(distance, slow_distance(student, teacher))
    pixels = min(ours[0], teacher_side[0]) * min(ours[1], teacher_side[1])
    assert (distance <= 2 / pixels + 1e-12).all()  # two unit rows, both ≥ 0
    close(distance, attention_distance(teacher, student), 1e-14)


def test_by_hand() -> None:
    def looks_at(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).view(1, 1, 1, -1)

    close(attention_distance(looks_at(1, 0), looks_at(0, 5)), [1.0])  # (1² + 1²) / 2
    close(attention_distance(looks_at(3, -3), looks_at(1, 0)), [(2 - math.sqrt(2)) / 2], 1e-12)
    close(attention(looks_at(1, math.sqrt(2), math.sqrt(2))), [[1 / 3, 2 / 3, 2 / 3]], 1e-12)
    two = torch.tensor([[[[1.0, 0.0]], [[0.0, 2.0]]]])  # channels that look at different pixels: squares 1/2 and 4/2
    close(attention(two), [[1 / math.sqrt(17), 4 / math.sqrt(17)]], 1e-6)


@several
@given(scale=st.sampled_from([-3.0, 1e-6, 0.5, 1e6]), seed=seeds)
def test_attention_does_not_see_scale_sign_or_order_of_channels(scale: float, seed: int) -> None:
    maps = normal(2, 4, 3, 5, seed=seed)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    signs = normal(1, 4, 1, 1, seed=seed + 1).sign()
    close(attention(maps).square().sum(1), [1.0, 1.0], 1e-12)
    close(attention_distance(maps, maps.clone()), [0.0, 0.0], 0.0)
    close(attention_distance(scale * maps, maps), [0.0, 0.0], 1e-14)
    close(attention_distance(signs * maps[:, order], maps), [0.0, 0.0], 1e-14)
    close(attention_distance(maps.repeat(1, 3, 1, 1), maps), [0.0, 0.0], 1e-14)  # nor how many channels say it


def test_method_sums_the_stages_after_the_stem() -> None:
    sizes = sizes_of(THREE, [(5, 4, 4), (2, 2, 2), (7, 2, 2)])
    student, teacher = maps_of(sizes.student, 3), maps_of(sizes.teachers["final"], 3, seed=9)
    terms = AT(sizes).terms(student, {"final": teacher}, numbered(3), epoch=0.0)
    assert list(terms) == ["at"]
    rows = [slow_distance(s, t) for s, t in zip(student.stages[1:], teacher.stages[1:], strict=True)]
    close(terms["at"], 1000 * sum(map(sum, rows)) / 3, relative=1e-10)


@pytest.mark.parametrize(("ours", "teacher_side"), [(2, 3), (3, 2), (1, 3), (3, 1), (1, 1)])
def test_stages_are_paired_from_the_deepest(ours: int, teacher_side: int) -> None:
    sizes = sizes_of(THREE[-ours:], THREE[-teacher_side:])
    student, teacher = maps_of(sizes.student, 2), maps_of(sizes.teachers["final"], 2, seed=9)
    term = AT(sizes, weight=1.0).terms(student, {"final": teacher}, numbered(2), 0.0)["at"]
    close(term, sum(slow_distance(student.stages[-1], teacher.stages[-1])) / 2)  # one pair: a lone stage is no stem
