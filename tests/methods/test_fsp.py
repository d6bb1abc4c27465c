"""FSP against loops over channels and pixels and by hand; which networks it refuses."""
# B batch, C channels, H × W pixels

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.errors import UserError
from antishortcut.methods import build_method
from antishortcut.methods.fsp import FSP, flow
from tests.methods.test_fitnets import Stage, maps_of, numbered, sides, sizes_of, slow_pool
from tests.test_subspace import close, normal, seeds, several


def slow_flow(maps: Tensor, deeper: Tensor) -> list[list[list[float]]]:
    """Eq. 1 of the paper: G_ij = Σ over pixels of F_i · F′_j / (h w), the larger map averaged to the smaller's size."""
    height, width = (min(maps.shape[i], deeper.shape[i]) for i in (2, 3))
    result = []
    for one, two in zip(maps.tolist(), deeper.tolist(), strict=True):
        first = [slow_pool(plane, height, width) for plane in one]
        second = [slow_pool(plane, height, width) for plane in two]
        pixels = [(y, x) for y in range(height) for x in range(width)]
        result.append([[sum(a[y][x] * b[y][x] for y, x in pixels) / (height * width) for b in second] for a in first])
    return result


@several
@given(b=st.integers(1, 3), c=st.integers(1, 3), d=st.integers(1, 3), one=st.tuples(sides, sides),
       two=st.tuples(sides, sides), seed=seeds)  # fmt: skip
def test_flow_agrees_with_the_loop(
    b: int, c: int, d: int, one: tuple[int, int], two: tuple[int, int], seed: int
) -> None:
    maps, deeper = normal(b, c, *one, seed=seed), normal(b, d, *two, seed=seed + 1)
    close(flow(maps, deeper), slow_flow(maps, deeper))


def test_by_hand() -> None:
    maps = torch.tensor([[[[1.0, 2.0]], [[3.0, -4.0]]]])  # two channels of two pixels
    deeper = torch.tensor([[[[5.0, 6.0]]]])
    close(flow(maps, deeper), torch.tensor([[[17 / 2], [-9 / 2]]]))


def test_method_agrees_with_the_loop() -> None:
    """Also where the networks differ in size: a flow has none."""
    sizes = sizes_of([(2, 4, 4), (3, 4, 4), (4, 2, 3)], [(2, 6, 6), (3, 3, 3), (4, 3, 3)])
    student, teacher = maps_of(sizes.student, 3), maps_of(sizes.teachers["final"], 3, seed=9)
    total = 0.0
    for i in range(2):
        flows = [slow_flow(net.stages[i], net.stages[i + 1]) for net in (student, teacher)]
        numbers = [[x for row in each for line in row for x in line] for each in flows]
        differences = [a - b for a, b in zip(*numbers, strict=True)]
        total += sum(x**2 for x in differences) / len(differences)
    terms = FSP(sizes, weight=7.0).terms(student, {"final": teacher}, numbered(3), epoch=29.9)
    assert list(terms) == ["fsp"]
    close(terms["fsp"], 7 * total)


def test_equal_networks_have_equal_flows() -> None:
    sizes = sizes_of([(2, 4, 4), (3, 4, 4)], [(2, 4, 4), (3, 4, 4)])
    student = maps_of(sizes.student, 3)
    close(FSP(sizes).terms(student, {"final": student}, numbered(3), 0.0)["fsp"], 0.0, 0.0)


@pytest.mark.parametrize(
    ("student", "teacher", "channels"),
    [
        ([(2, 4, 4), (3, 4, 4)], [(2, 4, 4), (5, 4, 4)], "the student's have 2, 3, the teacher's 2, 5"),
        ([(2, 4, 4), (3, 4, 4)], [(2, 4, 4)] * 3, "the student's have 2, 3, the teacher's 2, 2, 2"),
        ([(2, 4, 4)], [(2, 4, 4)], "the student's have 2, the teacher's 2"),
    ],
)
def test_other_channels_are_one_clear_line(student: list[Stage], teacher: list[Stage], channels: str) -> None:
    with pytest.raises(UserError, match=f"needs two or more stages with the same channels .*{channels};") as caught:
        build_method("fsp", sizes_of(student, teacher), {})
    assert "\n" not in str(caught.value)
