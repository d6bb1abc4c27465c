"""KD-SVD against loops and numpy's eigenvectors; its gradient against torch's, and where that is infinite."""
# B batch, C channels, H × W pixels, P = H · W

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from antishortcut.methods.kdsvd import KDSVD, direction
from antishortcut.types import Features
from tests.methods.test_fitnets import Stage, maps_of, numbered, sizes_of
from tests.test_subspace import close, normal, orthonormal, seeds, several

FOUR: list[Stage] = [(2, 4, 4), (3, 3, 4), (4, 2, 2), (5, 2, 2)]
WIDE: list[Stage] = [(2, 1, 1), (7, 3, 3), (9, 1, 1)]


def slow_vectors(planes: list[list[list[float]]]) -> list[list[float]]:
    """Right singular vectors of X (P × C), largest first: eigenvectors of XᵀX, of one image's planes (C, H, W)."""
    flat = [[v for line in plane for v in line] for plane in planes]
    gram = [[dot(a, b) for b in flat] for a in flat]
    _, vectors = np.linalg.eigh(np.array(gram))
    rows: list[list[float]] = vectors.T[::-1][: min(len(flat), len(flat[0]))].tolist()
    return rows


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow_pair(ours: list[list[list[float]]], reference: list[list[list[float]]]) -> tuple[list[float], list[float]]:
    """The teacher's first vector, and of the student's first four the one with the largest |cosine|, turned to it."""
    first = slow_vectors(reference)[0]
    first = [math.copysign(1, sum(first)) * v for v in first]
    best = max(slow_vectors(ours)[:4], key=lambda v: abs(dot(v, first)))
    return [math.copysign(1, dot(best, first)) * v for v in best], first


def slow_kdsvd(student: tuple[Tensor, ...], teacher: tuple[Tensor, ...]) -> float:
    """Σ over neighbouring stages ‖exp(−(s_i − s′_j)²/8) − exp(−(t_i − t′_j)²/8)‖², a mean over images."""
    total = 0.0
    for row in range(len(student[0])):
        pairs = [slow_pair(s[row].tolist(), t[row].tolist()) for s, t in zip(student, teacher, strict=True)]
        for (above, target_above), (ours, target) in pairwise(pairs):
            for a, c in zip(ours, target, strict=True):
                for b, d in zip(above, target_above, strict=True):
                    total += (math.exp(-((a - b) ** 2) / 8) - math.exp(-((c - d) ** 2) / 8)) ** 2
    return total / len(student[0])


@several
@given(b=st.integers(1, 3), shapes=st.sampled_from([FOUR, WIDE]), seed=seeds)
def test_agrees_with_the_loop(b: int, shapes: list[Stage], seed: int) -> None:
    sizes = sizes_of(shapes, shapes)
    method = KDSVD(sizes, weight=2.0)
    student, teacher = maps_of(sizes.student, b, seed), maps_of(sizes.teachers["final"], b, seed + 10)
    terms = method.terms(student, {"final": teacher}, numbered(b), 0.0)
    assert list(terms) == ["kdsvd"]
    close(terms["kdsvd"], 2 * slow_kdsvd(student.stages[1:], teacher.stages[1:]))
    assert not list(method.parameters())
    close(method.terms(student, {"final": student}, numbered(b), 0.0)["kdsvd"], 0.0, 1e-28)


def test_other_channels_go_through_a_convolution() -> None:
    torch.manual_seed(0)
    # four channels of rank four, so that none of the four candidates is an arbitrary vector of a null space
    sizes = sizes_of([(2, 4, 4), (4, 4, 4), (4, 2, 2)], [(2, 4, 4), (5, 2, 2), (4, 3, 3)])
    method = KDSVD(sizes).double()
    deepest, shallower = method.align
    assert isinstance(deepest, nn.Identity)
    assert isinstance(shallower, nn.Conv2d)
    student, teacher = maps_of(sizes.student, 3), maps_of(sizes.teachers["final"], 3, seed=9)
    term = method.terms(student, {"final": teacher}, numbered(3), 0.0)["kdsvd"]
    wide = torch.einsum("dc,bchw->bdhw", shallower.weight.flatten(1), student.stages[1])
    close(term, slow_kdsvd((wide, student.stages[2]), teacher.stages[1:]))
    torch.autograd.backward(term)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in method.parameters())


def diagonal(*values: float) -> Tensor:
    """A map of as many pixels as channels, whose singular values are these. (1, C, 1, C)"""
    return torch.diag(torch.tensor(values, dtype=torch.float64))[None, :, None]


def test_by_hand() -> None:
    close(direction(diagonal(1, 3, 2)), [[0.0, 1.0, 0.0]])
    target = torch.tensor([[0.6, 0.0, -0.8]], dtype=torch.float64)
    close(direction(diagonal(1, 3, 2), target), [[0.0, 0.0, -1.0]])  # the third fits best, turned round
    close(direction(diagonal(6, 5, 4, 3, 2), torch.eye(5, dtype=torch.float64)[4:]), [[0.0] * 5])  # the fifth: too late
    # one pixel is its own vector: (1, 0) after (1, 0) for the teacher, (0.6, 0.8) after (1, 0) for the student
    right, slanted = (torch.tensor([[v]], dtype=torch.float64).mT[..., None] for v in ([2.0, 0.0], [0.3, 0.4]))
    student, teacher = (
        Features(torch.zeros(1, 2), torch.zeros(1, 3), (right, right, deep)) for deep in (slanted, right)
    )
    term = KDSVD(sizes_of([(2, 1, 1)] * 3, [(2, 1, 1)] * 3)).terms(student, {"final": teacher}, numbered(1), 0.0)
    squares = ((0.16, 0), (0.36, 1), (0.04, 1), (0.64, 0))  # of the differences, the student's and the teacher's
    close(term["kdsvd"], sum((math.exp(-a / 8) - math.exp(-b / 8)) ** 2 for a, b in squares), 1e-12)


@several
@given(c=st.integers(2, 5), side=st.integers(1, 3), scale=st.sampled_from([-3.0, 1e-6, 1e6]), seed=seeds)
def test_scale_and_rotations_of_the_pixels_do_not_matter(c: int, side: int, scale: float, seed: int) -> None:
    maps, target = normal(2, c, side, side, seed=seed), direction(normal(2, c, side, side, seed=seed + 1))
    turned = scale * (maps.flatten(2) @ orthonormal(side**2, side**2, seed)).view_as(maps)
    close(direction(turned), direction(maps), 1e-8)
    close(direction(turned, target), direction(maps, target), 1e-8)
    close(torch.linalg.vector_norm(direction(maps), dim=1), [1.0, 1.0], 1e-12)


@pytest.mark.parametrize("shape", [(3, 4, 4), (8, 2, 3), (5, 1, 1), (1, 3, 3), (6, 2, 3)])
def test_gradient_agrees_with_torch_and_with_differences(shape: Stage) -> None:
    maps, target = normal(3, *shape).requires_grad_(), direction(normal(3, *shape, seed=1))
    pull = normal(3, shape[0], seed=2)
    close(torch.linalg.vector_norm(direction(maps, target), dim=1), [1.0] * 3, 1e-12)
    ours = torch.autograd.grad((pull * direction(maps, target)).sum(), maps)[0]
    _, _, vectors = torch.linalg.svd(maps.flatten(2).mT, full_matrices=False)
    cosine = (vectors[:, :4] @ target[:, :, None]).squeeze(2)
    place = cosine.abs().argmax(dim=1)
    rows = torch.arange(3)
    expected = cosine.sign()[rows, place, None] * vectors[rows, place]
    close(ours, torch.autograd.grad((pull * expected).sum(), maps)[0], 1e-6)
    assert torch.autograd.gradcheck(lambda x: direction(x, target), maps, atol=1e-5)


TIED = {
    "all": torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)[:, :, None],
    "two": diagonal(3, 3, 1, 1).repeat(2, 1, 1, 1),
    "almost": diagonal(1 + 1e-12, 1, 1 - 1e-9, 0.5).repeat(2, 1, 1, 1),
    "dead channels": diagonal(3, 2, 0, 0).repeat(2, 1, 1, 1),
    "rank one": torch.ones(2, 4, 1, 4, dtype=torch.float64),
    "zeros": torch.zeros(2, 4, 1, 4, dtype=torch.float64),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", TIED)
def test_tied_singular_values_have_a_finite_gradient(case: str, dtype: torch.dtype) -> None:
    """Where torch's own is infinite or no number."""
    for factor in (1.0, 1e-15, 1e12):
        maps = (factor * TIED[case]).to(dtype).requires_grad_()
        for target in (None, direction(normal(2, 4, 1, 4, dtype=dtype))):
            vector = direction(maps, target)
            gradient = torch.autograd.grad((normal(2, 4, dtype=dtype) * vector).sum(), maps)[0]
            assert vector.isfinite().all()
            assert gradient.isfinite().all()
            assert gradient.abs().max() * factor < 1e6
    if case in ("all", "zeros"):
        maps = TIED[case].clone().requires_grad_()
        vectors = torch.linalg.svd(maps.flatten(2).mT, full_matrices=False).Vh
        assert not torch.autograd.grad((normal(2, 4) * vectors[:, 0]).sum(), maps)[0].isfinite().all()


def test_without_a_map_there_is_nothing_to_match() -> None:
    maps, zeros = normal(2, 3, 2, 2), torch.zeros(2, 3, 2, 2, dtype=torch.float64)
    close(direction(zeros), 0.0, 0.0)
    close(direction(maps, direction(zeros)), 0.0, 0.0)
