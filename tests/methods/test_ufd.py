"""UFD-KD against scipy's cosine transforms and loops, by hand, and the published reading of the channel branch."""
# B batch, C channels, H × W pixels, P = H · W

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft
from torch import Tensor

from antishortcut.methods.kd import kd_loss
from antishortcut.methods.ufd import UFD, channel_distance, decouple, misread, spatial_distance
from tests.methods.test_afdcd import conv, slow_bilinear, slow_relu
from tests.methods.test_fitnets import Stage, maps_of, numbered, sizes_of
from tests.methods.test_reviewkd import Maps, slow_conv
from tests.test_subspace import close, normal, seeds, several

Array = np.ndarray[Any, Any]
sides = st.integers(1, 5)


def slow_parts(values: Array, axes: tuple[int, ...], norm: Any) -> tuple[Array, Array]:
    """Cosine transform, the first coefficient alone and all but it, and each back."""
    coefficients = np.asarray(fft.dctn(values, type=2, axes=axes, norm=norm))
    first = np.zeros_like(coefficients)
    place = tuple(0 if axis in axes else slice(None) for axis in range(values.ndim))
    first[place] = coefficients[place]
    dc, ac = (fft.idctn(part, type=2, axes=axes, norm=norm) for part in (first, coefficients - first))
    return np.asarray(dc), np.asarray(ac)


def slow_scaled(values: Array) -> Array:
    """Columns of (rows, columns) at length 1; what is only rounding is none."""
    lengths = [math.sqrt(sum(v * v for v in column)) for column in values.T.tolist()]
    return np.array(
        [[v / n if n > 1e-12 else 0.0 for v, n in zip(row, lengths, strict=True)] for row in values.tolist()]
    )


def slow_squares(ours: Array, theirs: Array) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(ours.ravel().tolist(), theirs.ravel().tolist(), strict=True))


def slow_spatial(student: Tensor, teacher: Tensor, norm: Any = "ortho") -> list[tuple[float, float]]:
    """Maps (C, H, W) of each image: 2-D transform of every channel; columns are pixels, scaled over channels."""
    result = []
    for ours, reference in zip(student.numpy(), teacher.numpy(), strict=True):
        pairs = zip(slow_parts(ours, (1, 2), norm), slow_parts(reference, (1, 2), norm), strict=True)
        flat = [(a.reshape(len(a), -1), b.reshape(len(b), -1)) for a, b in pairs]  # (C, P)
        dc, ac = (slow_squares(slow_scaled(a), slow_scaled(b)) for a, b in flat)
        result.append((dc, ac))
    return result


def slow_channel(student: Tensor, teacher: Tensor, published: bool = False) -> list[tuple[float, float]]:
    """Maps (C, H, W) of each image as (P, C): transform of a pixel's channels; columns are channels, scaled over P."""
    result = []
    for ours, reference in zip(student.numpy(), teacher.numpy(), strict=True):
        c, h, w = ours.shape
        rows = np.ascontiguousarray(ours).reshape(h, w, c) if published else ours.transpose(1, 2, 0)
        one, two = rows.reshape(h * w, c), reference.transpose(1, 2, 0).reshape(h * w, c)
        pairs = zip(slow_parts(one, (1,), "ortho"), slow_parts(two, (1,), "ortho"), strict=True)
        dc, ac = (slow_squares(slow_scaled(a), slow_scaled(b)) for a, b in pairs)
        result.append((dc, ac))
    return result


@several
@given(b=st.integers(1, 2), c=sides, h=sides, w=sides, norm=st.sampled_from([None, "ortho"]), seed=seeds)
def test_agrees_with_the_transform(b: int, c: int, h: int, w: int, norm: Any, seed: int) -> None:
    student, teacher = normal(b, c, h, w, seed=seed), normal(b, c, h, w, seed=seed + 1)
    spatial = torch.stack(spatial_distance(student.flatten(2), teacher.flatten(2)), dim=1)
    assert spatial.dtype == torch.float64
    close(spatial, slow_spatial(student, teacher, norm))
    close(torch.stack(channel_distance(student.flatten(2), teacher.flatten(2)), dim=1), slow_channel(student, teacher))
    published = channel_distance(misread(student.flatten(2)), teacher.flatten(2))
    close(torch.stack(published, dim=1), slow_channel(student, teacher, published=True))
    assert (spatial[:, 0] <= 4 * h * w + 1e-9).all()  # P pairs of unit vectors
    assert (spatial[:, 1] <= 4 * h * w + 1e-9).all()


@several
@given(c=sides, h=sides, w=sides, seed=seeds)
def test_the_parts_are_those_of_the_transform(c: int, h: int, w: int, seed: int) -> None:
    maps = normal(2, c, h, w, seed=seed)
    for ours, reference in zip(decouple(maps.flatten(2), 2), slow_parts(maps.numpy(), (2, 3), None), strict=True):
        close(ours.expand(2, c, h * w), reference.reshape(2, c, h * w), 1e-12)
    for ours, reference in zip(decouple(maps.flatten(2), 1), slow_parts(maps.numpy(), (1,), None), strict=True):
        close(ours.expand(2, c, h * w), reference.reshape(2, c, h * w), 1e-12)


def test_constant_maps_by_hand() -> None:
    """Two channels, six pixels: (3, 4) everywhere against (4, −3), a right angle, against itself and its opposite."""
    one = torch.tensor([3.0, 4.0], dtype=torch.float64).view(1, 2, 1).expand(1, 2, 6)
    right = torch.tensor([4.0, -3.0], dtype=torch.float64).view(1, 2, 1).expand(1, 2, 6)
    for other, distance in ((one, 0.0), (5 * one, 0.0), (right, 2.0), (-one, 4.0)):
        dc, ac = spatial_distance(one, other)
        close(dc, [6 * distance], 1e-12)
        close(ac, [0.0], 0.0)  # constant: nothing varies over pixels
    # over channels: means 3.5 and 0.5, both positive and constant, hence the same pattern; around them ∓0.5 and ±3.5
    dc, ac = channel_distance(one, right)
    close(dc, [0.0], 1e-12)
    close(ac, [2 * 4.0], 1e-12)


def test_stripes_by_hand() -> None:
    """One channel of stripes ±1 around 2, a second without: what varies is ±1 in the first channel alone."""
    stripes = torch.tensor([[[3.0, 1.0, 3.0, 1.0], [0.0, 0.0, 0.0, 0.0]]], dtype=torch.float64)
    dc, ac = spatial_distance(stripes, stripes.flip(2))
    close(dc, [0.0], 0.0)
    close(ac, [4 * 4.0], 1e-12)  # opposite at each of four pixels
    dc, ac = channel_distance(stripes, stripes.flip(2))
    # halves of the stripes: (3, 1, 3, 1)/√20 against (1, 3, 1, 3)/√20, cosine 12/20, in two channels, as mean and rest
    close(dc, [2 * (2 - 2 * 0.6)], 1e-12)
    close(ac, [2 * (2 - 2 * 0.6)], 1e-12)


@several
@given(scale=st.sampled_from([1e-6, 0.5, 1e6]), seed=seeds)
def test_only_patterns_count(scale: float, seed: int) -> None:
    student, teacher = normal(2, 3, 8, seed=seed), normal(2, 3, 8, seed=seed + 1)
    for distance in (spatial_distance, channel_distance):
        for plain, scaled, same, swapped in zip(
            distance(student, teacher),
            distance(scale * student, teacher),
            distance(scale * student, student),
            distance(teacher, student),
            strict=True,
        ):
            close(scaled, plain, 1e-9)
            close(same, [0.0, 0.0], 1e-9)
            close(swapped, plain, 1e-12)


def test_the_published_reading_mixes_channels_and_pixels() -> None:
    maps = torch.arange(2 * 3 * 4.0).view(2, 3, 2, 2)
    read = misread(maps.flatten(2))  # (B, C, P)
    assert read[0].T.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]  # pixel 0 has channel 0's first numbers
    sizes = sizes_of([(4, 3, 3)], [(4, 3, 3)])
    student, teacher = maps_of(sizes.student, 2), maps_of(sizes.teachers["final"], 2, seed=9)

    def terms(published_channel: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        method = UFD(sizes, published_channel=published_channel).double()
        return method.terms(student, {"final": teacher}, numbered(2), 0.0)

    right, published = terms(False), terms(True)
    for name in ("kd", "spatial_dc", "spatial_ac"):
        close(right[name], published[name], 0.0)
    assert not torch.isclose(right["channel_dc"], published["channel_dc"], rtol=1e-3)
    assert not torch.isclose(right["channel_ac"], published["channel_ac"], rtol=1e-3)


CASES: dict[str, tuple[Stage, Stage]] = {
    "equal": ((2, 4, 4), (3, 4, 4)),
    "same channels": ((3, 4, 4), (3, 4, 4)),
    "not square": ((2, 3, 5), (3, 3, 5)),
    "larger": ((2, 3, 2), (3, 5, 4)),
    "smaller": ((2, 6, 5), (4, 3, 2)),
    "a pixel": ((2, 1, 1), (3, 1, 1)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("published", [False, True])
def test_method_agrees_with_the_transform(case: str, published: bool) -> None:
    ours, reference = CASES[case]
    torch.manual_seed(0)
    sizes = sizes_of([(1, 2, 2), ours], [(1, 2, 2), reference])
    weights = {"spatial_dc": 2.0, "spatial_ac": 3.0, "channel_dc": 5.0, "channel_ac": 7.0}
    method = UFD(sizes, **weights, published_channel=published).double()  # type: ignore[arg-type]
    student, teacher = maps_of(sizes.student, 2), maps_of(sizes.teachers["final"], 2, seed=9)
    terms = method.terms(student, {"final": teacher}, numbered(2), epoch=0.0)
    assert set(terms) == {*weights, "kd"}

    aligned = slow_conv(slow_bilinear(student.stages[1].tolist(), *reference[1:]), method.align, None)
    built: list[Maps] = []
    for branch in (method.spatial, method.channel):
        built.append(slow_conv(slow_relu(slow_conv(aligned, conv(branch[0]), None)), conv(branch[2]), None))
    spatial, channel = (torch.tensor(maps, dtype=torch.float64) for maps in built)
    pieces = np.hstack(
        [slow_spatial(spatial, teacher.stages[1]), slow_channel(channel, teacher.stages[1], published=published)]
    )
    for name, value in zip(weights, pieces.mean(axis=0).tolist(), strict=True):
        close(terms[name], weights[name] * value, 1e-9)
    close(terms["kd"], 0.5 * kd_loss(student.logits, teacher.logits, 1.0))


@pytest.mark.parametrize("term", ["spatial_dc", "spatial_ac", "channel_dc", "channel_ac"])
def test_gradient_reaches_its_branch_and_the_student(term: str) -> None:
    torch.manual_seed(0)
    sizes = sizes_of([(3, 6, 6)], [(4, 6, 6)])
    method = UFD(sizes)
    student, teacher = (maps_of(s, 2, dtype=torch.float32) for s in (sizes.student, sizes.teachers["final"]))
    maps, target = student.stages[0].requires_grad_(), teacher.stages[0].requires_grad_()
    torch.autograd.backward(method.terms(student, {"final": teacher}, numbered(2), 0.0)[term])
    assert target.grad is None
    assert maps.grad is not None
    assert maps.grad.abs().sum() > 0
    for name, parameter in method.named_parameters():
        if name.split(".")[0] in ("align", term.split("_")[0]):
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
        else:
            assert parameter.grad is None or parameter.grad.abs().sum() == 0, name  # the projectors are apart
