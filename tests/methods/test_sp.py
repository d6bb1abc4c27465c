"""Similarity-preserving distillation against a loop over pairs, by hand, and what a Gram matrix does not see."""
# B batch, C channels, H × W pixels

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.methods.sp import SP, similarity, sp_loss
from tests.methods.test_fitnets import maps_of, numbered, sizes_of
from tests.test_subspace import close, normal, orthonormal, seeds, several

Rows = list[list[float]]


def slow_similarity(maps: Tensor) -> Rows:
    """G = Q Qᵀ of the images as long vectors, and every row of G divided by its length."""
    q = [[v for plane in image for line in plane for v in line] for image in maps.tolist()]
    result = []
    for a in q:
        row = [sum(x * y for x, y in zip(a, b, strict=True)) for b in q]
        length = math.sqrt(sum(v * v for v in row))
        result.append([v / length if length > 0 else 0.0 for v in row])
    return result


def slow_sp(student: Tensor, teacher: Tensor) -> float:
    """‖G_T − G_S‖² / B², the sum of squares of all entries."""
    ours, reference = slow_similarity(student), slow_similarity(teacher)
    n = range(len(ours))
    return sum((reference[i][j] - ours[i][j]) ** 2 for i in n for j in n) / len(ours) ** 2


@several
@given(b=st.integers(1, 5), c=st.integers(1, 4), d=st.integers(1, 4), h=st.integers(1, 4), seed=seeds)
def test_agrees_with_the_loop(b: int, c: int, d: int, h: int, seed: int) -> None:
    student, teacher = normal(b, c, h, 3, seed=seed), 3 * normal(b, d, 2, h, seed=seed + 1) + 1
    close(similarity(student), slow_similarity(student))
    close(sp_loss(student, teacher), slow_sp(student, teacher))
    close(sp_loss(student, teacher), sp_loss(teacher, student), 1e-15)
    close(sp_loss(student, student.clone()), 0.0, 0.0)


def test_two_images_by_hand() -> None:
    apart = torch.eye(2, dtype=torch.float64).view(2, 2, 1, 1)  # G = 1
    same = torch.ones(2, 1, 1, 1, dtype=torch.float64)  # every row (1, 1) / √2
    half = math.sqrt(0.5)
    close(similarity(same), half, 1e-15)
    close(sp_loss(apart, same), 2 * ((1 - half) ** 2 + half**2) / 4, 1e-15)


@several
@given(b=st.integers(2, 5), c=st.integers(2, 6), scale=st.sampled_from([-3.0, 1e-6, 1e6]), seed=seeds)
def test_an_orthogonal_map_of_the_channels_changes_nothing(b: int, c: int, scale: float, seed: int) -> None:
    student, teacher = normal(b, c, 2, 3, seed=seed), normal(b, 4, 3, 3, seed=seed + 1)
    turned = torch.einsum("dc,bchw->bdhw", orthonormal(c, c, seed + 2), student)
    close(sp_loss(scale * turned, teacher), sp_loss(student, teacher), 1e-12)
    close(sp_loss(turned, student), 0.0, 1e-14)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    moved = student.flatten(2)[:, :, order].view_as(student)  # nor where in the image, if all images agree
    close(sp_loss(moved, student), 0.0, 1e-14)


@pytest.mark.parametrize("stage", [-1, 0])
def test_method_weighs_its_stage(stage: int) -> None:
    sizes = sizes_of([(2, 4, 4), (3, 2, 2)], [(5, 4, 4), (2, 3, 3), (4, 2, 2)])
    student, teacher = maps_of(sizes.student, 4), maps_of(sizes.teachers["final"], 4, seed=9)
    terms = SP(sizes, stage=stage).terms(student, {"final": teacher}, numbered(4), 0.0)
    assert list(terms) == ["sp"]
    close(terms["sp"], 3000 * slow_sp(student.stages[stage], teacher.stages[stage]), relative=1e-10)
