"""Directions get names from simple statistics of the images, or none."""

import colorsys
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from antishortcut.analysis.directions import (
    STATISTICS,
    correlations,
    image_statistics,
    name_directions,
    object_statistics,
)
from antishortcut.data.synthetic import make_cues
from antishortcut.types import FileSet, ImageSet

RNG = np.random.default_rng(0)


def by_hand(image: np.ndarray) -> list[float]:
    """One image (3, H, W), pixel by pixel."""
    _, height, width = image.shape
    luma = [[float(np.dot((0.299, 0.587, 0.114), image[:, y, x])) for x in range(width)] for y in range(height)]
    flat = [value for row in luma for value in row]
    mean = math.fsum(flat) / len(flat)
    contrast = math.sqrt(math.fsum((value - mean) ** 2 for value in flat) / len(flat))
    pixels = [tuple(map(float, image[:, y, x])) for y in range(height) for x in range(width)]
    saturation = [colorsys.rgb_to_hsv(*pixel)[1] for pixel in pixels]
    red = [r - (g + b) / 2 for r, g, b in pixels]
    green = [math.sqrt(3) / 2 * (g - b) for _, g, b in pixels]
    down = [abs(luma[y + 1][x] - luma[y][x]) for y in range(height - 1) for x in range(width)]
    across = [abs(luma[y][x + 1] - luma[y][x]) for y in range(height) for x in range(width - 1)]
    edge = max(min(height, width) // 8, 1)
    border = [
        luma[y][x] for y in range(height) for x in range(width) if min(y, x, height - 1 - y, width - 1 - x) < edge
    ]
    means = [math.fsum(each) / len(each) for each in (saturation, red, green, down, across, border)]
    return [mean, contrast, means[0], means[1], means[2], (means[3] + means[4]) / 2, means[5]]


@pytest.mark.parametrize(("height", "width"), [(5, 7), (16, 24)])
def test_statistics_equal_a_loop_over_pixels(height: int, width: int) -> None:
    images = RNG.random((3, 3, height, width))
    images[0, :, 0, 0] = 0  # black has no saturation
    expected = torch.tensor([by_hand(image) for image in images], dtype=torch.float64)
    torch.testing.assert_close(image_statistics(torch.from_numpy(images)), expected, rtol=0, atol=1e-10)


def test_correlations_equal_numpy_and_least_squares() -> None:
    statistics, noise = RNG.normal(size=(80, 4)), RNG.normal(size=(80, 3))
    projection = statistics[:, :3] * [1.0, -0.5, 0.0] + noise
    statistics[:, 3] = 7.0  # never varies
    r, r2 = correlations(torch.from_numpy(statistics), torch.from_numpy(projection))
    for k in range(3):
        for s in range(3):
            assert float(r[s, k]) == pytest.approx(np.corrcoef(statistics[:, s], projection[:, k])[0, 1], abs=1e-10)
        design = np.column_stack([np.ones(80), statistics[:, :3]])
        rest = projection[:, k] - design @ np.linalg.lstsq(design, projection[:, k], rcond=None)[0]
        plain = 1 - rest @ rest / np.square(projection[:, k] - projection[:, k].mean()).sum()
        assert float(r2[k]) == pytest.approx(1 - (1 - plain) * 79 / 76, abs=1e-10)
    assert not r[3].any()
    flat, none = correlations(torch.from_numpy(statistics), torch.ones(80, 1))
    assert not flat.any()
    assert not none.any()


def test_object_statistics_equal_a_loop_over_pixels() -> None:
    cover = torch.from_numpy(RNG.random((3, 4, 6)))
    cover[0] = 0  # nothing there: the middle
    for each, (size, right, down) in zip(cover.tolist(), object_statistics(cover).tolist(), strict=True):
        pixels = [(value, y, x) for y, row in enumerate(each) for x, value in enumerate(row)]
        whole = math.fsum(value for value, _, _ in pixels)
        assert size == pytest.approx(whole / 24, abs=1e-10)
        across = math.fsum(value * (x + 0.5) / 6 for value, _, x in pixels) / whole if whole else 0.5
        along = math.fsum(value * (y + 0.5) / 4 for value, y, _ in pixels) / whole if whole else 0.5
        assert (right, down) == pytest.approx((across, along), abs=1e-10)


def planted(count: int = 400) -> tuple[ImageSet, Tensor]:
    """Grey noise of random brightness, with a border of its own brightness; and the two that were planted (N, 2)."""
    generator = torch.Generator().manual_seed(1)
    level, border = torch.rand(2, count, generator=generator)
    grey = torch.rand(count, 1, 32, 32, generator=generator).expand(-1, 3, -1, -1)
    image = 0.2 * grey + 0.8 * level[:, None, None, None]
    frame = torch.ones(32, 32, dtype=torch.bool)
    frame[4:28, 4:28] = False
    image[:, :, frame] = border[:, None, None]
    return ImageSet((255 * image).byte(), torch.zeros(count, dtype=torch.int64)), torch.stack([level, border], dim=1)


def test_a_planted_direction_is_named_and_noise_is_not() -> None:
    images, causes = planted()
    noise = torch.randn(len(images), 2, generator=torch.Generator().manual_seed(2))
    projection = torch.cat([-causes[:, :1] + 0.1 * noise[:, :1], causes[:, 1:] + 0.1 * noise[:, 1:], noise], dim=1)
    dark, framed, *silent = name_directions(images, projection)
    assert dark["name"].startswith("brightness (r −0.")
    assert framed["name"].startswith("border brightness (r 0.9")
    assert dark["r2"] > 0.8
    assert [each["name"] for each in silent] == ["", ""]
    assert max(each["r2"] for each in silent) < 0.1
    assert set(dark["r"]) == set(STATISTICS)


def test_the_object_names_a_direction_where_its_pixels_are_known() -> None:
    images = make_cues("iid", 500, seed=0)
    assert images.cover is not None
    right = object_statistics(images.cover.double())[:, 1:2]
    name = name_directions(images, -right)[0]["name"]
    assert name.startswith("object further right (r −1.00)")
    assert "object" not in name_directions(replace(images, cover=None), -right)[0]["name"]


def test_few_images_give_no_names() -> None:
    images, causes = planted(6)
    assert [each["name"] for each in name_directions(images, causes)] == ["", ""]


def test_files_are_read(tmp_path: Path) -> None:
    images, causes = planted(100)
    paths = []
    for at, image in enumerate(images.image):
        paths.append(tmp_path / f"{at:02}.png")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(paths[-1])
    _, framed = name_directions(FileSet(tuple(paths), images.label), causes)
    assert framed["name"].startswith("border brightness")
