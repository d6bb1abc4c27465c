"""Af-DCD against loops over pixels and groups, by hand, its mask, and maps and channels that do not divide."""
# B batch, C channels, M groups of channels, H × W pixels

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from antishortcut.methods.afdcd import AfDCD, contrast_loss, kept_pixels
from antishortcut.methods.kd import kd_loss
from tests.methods.test_fitnets import Stage, maps_of, numbered, sizes_of
from tests.methods.test_reviewkd import Maps, slow_conv
from tests.test_subspace import close, normal, seeds, several


def slow_contrast(student: Maps, teacher: Maps, groups: int, patch: int, tau: float) -> list[float]:
    """−log softmax of −L1 / τ at the own place and group, among it and the other groups of the patch; Σ / HW."""
    result = []
    for ours, reference in zip(student, teacher, strict=True):
        height, width, each = len(ours[0]), len(ours[0][0]), len(ours) // groups
        pixels = [(y, x) for y in range(height) for x in range(width)]

        def vector(planes: list[list[list[float]]], at: tuple[int, int], group: int, each: int = each) -> list[float]:
            return [planes[c][at[0]][at[1]] for c in range(group * each, (group + 1) * each)]

        total = 0.0
        for here in pixels:
            near = [at for at in pixels if all(a // patch == b // patch for a, b in zip(at, here, strict=True))]
            for m in range(groups):
                rest = [(at, g) for at in near for g in range(groups) if g != m]
                scores = []
                for at, g in [(here, m), *rest]:
                    pairs = zip(vector(ours, here, m), vector(reference, at, g), strict=True)
                    scores.append(-sum(abs(a - b) for a, b in pairs) / tau)
                top = max(scores)
                total += top + math.log(sum(math.exp(score - top) for score in scores)) - scores[0]
        result.append(total / len(pixels))
    return result


def slow_max_pool(maps: Maps, size: int) -> Maps:
    """The largest value of each size × size window; the last windows end at the border."""
    height, width = len(maps[0][0]), len(maps[0][0][0])
    return [
        [
            [
                [max(v for line in plane[y : y + size] for v in line[x : x + size]) for x in range(0, width, size)]
                for y in range(0, height, size)
            ]
            for plane in planes
        ]
        for planes in maps
    ]


def slow_bilinear(maps: Maps, height: int, width: int) -> Maps:
    """Bilinear between centres of pixels; beyond the outermost centres the nearest value."""

    def places(have: int, want: int) -> list[tuple[int, int, float]]:
        at = [max(0.0, (i + 0.5) * have / want - 0.5) for i in range(want)]
        return [(int(a), min(int(a) + 1, have - 1), a - int(a)) for a in at]

    rows, columns = places(len(maps[0][0]), height), places(len(maps[0][0][0]), width)
    return [
        [
            [
                [
                    (1 - v) * ((1 - u) * plane[t][le] + u * plane[t][ri])
                    + v * ((1 - u) * plane[d][le] + u * plane[d][ri])
                    for le, ri, u in columns
                ]
                for t, d, v in rows
            ]
            for plane in planes
        ]
        for planes in maps
    ]


def slow_relu(maps: Maps) -> Maps:
    return [[[[max(0.0, v) for v in line] for line in plane] for plane in planes] for planes in maps]


def numbers(maps: Maps) -> list[float]:
    return [v for planes in maps for plane in planes for line in plane for v in line]


def conv(module: nn.Module) -> nn.Conv2d:
    assert isinstance(module, nn.Conv2d)
    return module


@several
@given(
    b=st.integers(1, 2),
    groups=st.integers(1, 4),
    each=st.integers(1, 2),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    patch=st.integers(1, 4),
    tau=st.sampled_from([0.07, 1.0, 5.0]),
    seed=seeds,
)
def test_agrees_with_the_loop(
    b: int, groups: int, each: int, size: tuple[int, int], patch: int, tau: float, seed: int
) -> None:
    student, teacher = (normal(b, groups * each, *size, seed=seed + i) for i in (0, 1))
    loss = contrast_loss(student, teacher, groups, patch, tau)
    assert loss.dtype == torch.float64
    close(loss, slow_contrast(student.tolist(), teacher.tolist(), groups, patch, tau))
    assert (loss >= 0).all()
    close(contrast_loss(student + 3, teacher + 3, groups, patch, tau), loss, 1e-9)  # only differences count
    if groups == 1:
        close(loss, [0.0] * b, 0.0)  # nothing to be told from


def test_two_pixels_of_two_groups_by_hand() -> None:
    """Pixel A says 0 and 1, pixel B 2 and 4; of the teacher the other group's values are the negatives."""
    maps = torch.tensor([[[[0.0, 2.0]], [[1.0, 4.0]]]], dtype=torch.float64)
    distances = {"A0": (1, 4), "A1": (1, 1), "B0": (1, 2), "B1": (4, 2)}  # to the negatives; 0 to the positive
    expected = sum(math.log(1 + sum(math.exp(-d) for d in pair)) for pair in distances.values()) / 2
    close(contrast_loss(maps, maps, 2, 4, 1.0), [expected])
    apart = [math.log(1 + math.exp(-d)) for d in (1, 1, 2, 2)]  # patches of one pixel: 0 | 1 and 2 | 4
    close(contrast_loss(maps, maps, 2, 1, 1.0), [sum(apart) / 2])
    student = maps.clone()
    student[0, 0, 0, 0] = 2.0  # A0 now says what B0 says, which is neither its positive nor a negative
    changed = -math.log(math.exp(-2) / (math.exp(-2) + math.exp(-1) + math.exp(-2)))
    before = math.log(1 + math.exp(-1) + math.exp(-4))
    close(contrast_loss(student, maps, 2, 4, 1.0), [expected + (changed - before) / 2])


def test_a_patch_has_240_negatives() -> None:
    flat = torch.ones(2, 32, 16, 16, dtype=torch.float64)
    close(contrast_loss(flat, flat, 16, 4, 0.07), [16 * math.log(241)] * 2)  # a sum over groups, a mean over pixels
    close(contrast_loss(flat[..., :1, :1], flat[..., :1, :1], 16, 4, 0.07), [16 * math.log(16)] * 2)
    ragged = flat[..., :5, :6]  # patches of 4 × 4, 4 × 2, 1 × 4 and 1 × 2 pixels
    pieces = sum(n * math.log(1 + 15 * n) for n in (16, 8, 4, 2)) / 30
    close(contrast_loss(ragged, ragged, 16, 4, 0.07), [16 * pieces] * 2)


def test_the_mask_is_one_for_all_channels_and_another_for_every_image() -> None:
    torch.manual_seed(0)
    maps = normal(8, 3, 32, 32)
    saved = kept_pixels(maps, 0.75)
    assert saved.shape == (8, 1, 32, 32)
    assert saved.dtype == maps.dtype
    assert not saved.requires_grad
    assert ((saved == 0) | (saved == 1)).all()
    assert saved.mean().item() == pytest.approx(0.25, abs=0.02)  # 8192 pixels: four standard deviations
    assert not torch.equal(saved[0], saved[1])
    assert not torch.equal(saved, kept_pixels(maps, 0.75))  # fresh in every step
    assert kept_pixels(maps, 0.0).min() == 1
    torch.manual_seed(0)
    with torch.no_grad():
        assert torch.equal(saved, kept_pixels(maps.float(), 0.75))  # a function of the seed alone


CASES: dict[str, tuple[Stage, Stage]] = {
    "equal": ((2, 6, 6), (4, 6, 6)),
    "same channels": ((4, 4, 4), (4, 4, 4)),
    "larger": ((3, 3, 2), (4, 5, 5)),
    "smaller": ((3, 6, 5), (6, 3, 4)),
    "a pixel": ((3, 1, 1), (4, 1, 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_method_agrees_with_the_loop(case: str) -> None:
    ours, reference = CASES[case]
    torch.manual_seed(0)
    sizes = sizes_of([(1, 2, 2), ours], [(1, 2, 2), reference])
    options: dict[str, Any] = {"fd": 2.0, "ctr": 3.0, "kd": 0.5, "groups": 2, "patch": 2, "pool": 2}
    method = AfDCD(sizes, **options, mask_ratio=0.5, temperature=0.3).double()
    student, teacher = maps_of(sizes.student, 2), maps_of(sizes.teachers["final"], 2, seed=9)
    torch.manual_seed(7)
    terms = method.terms(student, {"final": teacher}, numbered(2), epoch=0.0)
    assert set(terms) == {"fd", "ctr", "kd"}

    torch.manual_seed(7)
    saved = (torch.rand(2, 1, *reference[1:]) >= 0.5).tolist()
    outputs = slow_conv(slow_bilinear(student.stages[1].tolist(), *reference[1:]), method.align, None)
    for n, planes in enumerate(outputs):
        for plane in planes:
            for y, line in enumerate(plane):
                line[:] = [v if saved[n][0][y][x] else 0.0 for x, v in enumerate(line)]
    built = slow_relu(slow_conv(outputs, conv(method.generator[0]), None))
    built = slow_conv(built, conv(method.generator[2]), None)
    target = teacher.stages[1].tolist()
    squares = [(a - b) ** 2 for a, b in zip(numbers(built), numbers(target), strict=True)]
    close(terms["fd"], 2 * sum(squares) / 2, relative=1e-10)
    pooled = slow_max_pool(built, 2), slow_max_pool(target, 2)
    close(terms["ctr"], 3 * sum(slow_contrast(*pooled, 2, 2, 0.3)) / 2, relative=1e-10)
    close(terms["kd"], 0.5 * kd_loss(student.logits, teacher.logits, 1.0))


@pytest.mark.parametrize("term", ["fd", "ctr"])
def test_gradient_reaches_heads_and_kept_pixels(term: str) -> None:
    torch.manual_seed(0)
    sizes = sizes_of([(3, 8, 8)], [(8, 8, 8)])
    method = AfDCD(sizes, pool=1)
    student, teacher = (maps_of(s, 2, dtype=torch.float32) for s in (sizes.student, sizes.teachers["final"]))
    maps, target = student.stages[0].requires_grad_(), teacher.stages[0].requires_grad_()
    torch.manual_seed(3)
    torch.autograd.backward(method.terms(student, {"final": teacher}, numbered(2), 0.0)[term])
    assert target.grad is None
    assert maps.grad is not None
    for name, parameter in method.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    torch.manual_seed(3)
    saved = kept_pixels(maps, 0.75).expand_as(maps) > 0
    assert (maps.grad[~saved] == 0).all()
    assert (maps.grad[saved] != 0).any()


@pytest.mark.parametrize(("channels", "groups"), [(2048, 16), (512, 16), (320, 16), (24, 12), (9, 9), (34, 2), (2, 2)])
def test_groups_divide_the_channels(channels: int, groups: int) -> None:
    with torch.device("meta"):  # of two convolutions of 2048 × 2048 × 9 only the shapes matter
        assert AfDCD(sizes_of([(2, 1, 1)], [(channels, 1, 1)])).groups == groups
