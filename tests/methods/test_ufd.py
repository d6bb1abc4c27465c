"""UFD-KD against scipy's cosine transforms and loops, by hand, and the published reading of the channel branch."""
# B batch, C channels, H × W pixels, P = H · W

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft
from torch import Tensor

from antishortcut.methods.kd import kd_loss
from antishortcut.methods.ufd import UFD, channel_distance, misread, spatial_distance
from tests.methods.test_fitnets import Stage, maps_of, numbered, sizes_of
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


def slow_squares(ours: Array, teacher_side: Array) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(ours.ravel().tolist(), teacher_side.ravel().tolist(), strict=True))


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


@pytest.mark.parametrize(("student_map", "teacher_map"), [((2, 3, 2), (3, 5, 4)), ((2, 6, 5), (4, 3, 2))])
@pytest.mark.parametrize("published", [False, True])
def test_method_agrees_with_the_transform(student_map: Stage, teacher_map: Stage, published: bool) -> None:
    torch.manual_seed(0)
    sizes = sizes_of([(1, 2, 2), student_map], [(1, 2, 2), teacher_map])
    weights: dict[str, Any] = {"spatial_dc": 2.0, "spatial_ac": 3.0, "channel_dc": 5.0, "channel_ac": 7.0}
    method = UFD(sizes, **weights, published_channel=published).double()
    student, teacher = maps_of(sizes.student, 2), maps_of(sizes.teachers["final"], 2, seed=9)
    terms = method.terms(student, {"final": teacher}, numbered(2), epoch=0.0)
    with torch.no_grad():
        aligned = method.align(F.interpolate(student.stages[1], teacher_map[1:], mode="bilinear"))
        spatial, channel = method.spatial(aligned), method.channel(aligned)
    distances = np.hstack(
        [slow_spatial(spatial, teacher.stages[1]), slow_channel(channel, teacher.stages[1], published=published)]
    )
    for name, value in zip(weights, distances.mean(axis=0).tolist(), strict=True):
        close(terms[name], weights[name] * value, 1e-9)
    close(terms["kd"], 0.5 * kd_loss(student.logits, teacher.logits, 1.0))
