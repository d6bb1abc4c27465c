"""The strong view: every operation against Pillow's, its draws, and that nothing but seed, epoch and index matters."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

from antishortcut.data import rng
from antishortcut.data.transforms import (
    COLUMN,
    GREY,
    MAGNITUDE,
    OPERATION,
    OPERATIONS,
    ROW,
    SIDE,
    strong_view,
    with_strong_view,
)
from antishortcut.types import Batch

AFFINE = Image.Transform.AFFINE
TWINS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "autocontrast": lambda picture, v: ImageOps.autocontrast(picture),
    "brightness": lambda picture, v: ImageEnhance.Brightness(picture).enhance(v),
    "colour": lambda picture, v: ImageEnhance.Color(picture).enhance(v),
    "contrast": lambda picture, v: ImageEnhance.Contrast(picture).enhance(v),
    "equalize": lambda picture, v: ImageOps.equalize(picture),
    "identity": lambda picture, v: picture,
    "posterize": lambda picture, v: ImageOps.posterize(picture, int(v)),
    "rotate": lambda picture, v: picture.rotate(v),
    "sharpness": lambda picture, v: ImageEnhance.Sharpness(picture).enhance(v),
    "shear_x": lambda picture, v: picture.transform(picture.size, AFFINE, (1, v, 0, 0, 1, 0)),
    "shear_y": lambda picture, v: picture.transform(picture.size, AFFINE, (1, 0, 0, v, 1, 0)),
    "solarize": lambda picture, v: ImageOps.solarize(picture, v),  # type: ignore[arg-type]
    "translate_x": lambda picture, v: picture.transform(picture.size, AFFINE, (1, 0, v * picture.width, 0, 1, 0)),
    "translate_y": lambda picture, v: picture.transform(picture.size, AFFINE, (1, 0, 0, 0, 1, v * picture.height)),
}


def pictures(count: int, height: int = 24, width: int = 32) -> Tensor:
    """Smooth colours with noise, each image of its own range. (N, 3, H, W), whole numbers."""
    draw = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 4, 4, generator=draw)
    smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")
    noise = 0.1 * torch.randn(count, 3, height, width, generator=draw)
    reach = torch.linspace(0.3, 1.0, count)[:, None, None, None]
    return (255 * ((smooth + noise).clamp(0, 1) * reach)).round()


def to_pillow(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.byte().permute(1, 2, 0).numpy())


def from_pillow(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_that_of_pillow(name: str) -> None:
    operation, low, high = OPERATIONS[name]
    images = pictures(20)
    values = low + (high - low) * torch.linspace(0, 0.999, 20)
    ours = operation(images.clone(), values.view(-1, 1, 1, 1))
    assert ours.shape == images.shape
    for image, value, result in zip(images, values.tolist(), ours, strict=True):
        expected = from_pillow(TWINS[name](to_pillow(image), value))
        apart = (result - expected).abs()
        if name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"):
            assert (apart > 0).float().mean() < 0.01  # rounding may choose a neighbour
        else:
            assert apart.max() <= 1
            assert (apart > 0).float().mean() < 0.1  # Pillow truncates where the quotient is a whole number


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("level", [0.0, 77.0, 255.0])
def test_an_image_of_one_colour_stays_in_range(name: str, level: float) -> None:
    operation, low, high = OPERATIONS[name]
    result = operation(torch.full((3, 3, 8, 8), level), torch.tensor([low, (low + high) / 2, high]).view(-1, 1, 1, 1))
    assert result.min() >= 0
    assert result.max() <= 255
    assert torch.equal(result, result.round())


def test_the_view_is_two_operations_and_a_square() -> None:
    images, index = pictures(40), torch.arange(40) + 100
    ours = 255 * strong_view(images / 255, 3, 5, index)
    names, place = list(OPERATIONS), index.numpy()
    exact = 0
    for row in range(40):
        picture = to_pillow(images[row])
        for turn in range(2):
            name = names[rng.below(14, 3, 5, place, OPERATION + turn)[row]]
            _, low, high = OPERATIONS[name]
            picture = TWINS[name](picture, low + (high - low) * float(rng.uniform(3, 5, place, MAGNITUDE + turn)[row]))
        width, height = picture.size
        share, x, y = (float(rng.uniform(3, 5, place, stream)[row]) for stream in (SIDE, COLUMN, ROW))
        side = 0.5 * width * share
        left, top = int(max(0, width * x - side / 2)), int(max(0, height * y - side / 2))
        box = (left, top, int(min(width, left + side)), int(min(height, top + side)))
        ImageDraw.Draw(picture).rectangle(box, tuple(map(int, GREY)))
        apart = (ours[row] - from_pillow(picture)).abs() > 2
        exact += bool(apart.float().mean() < 0.03)
        assert (ours[row, :, top, left].round() - torch.tensor(GREY)).abs().max() < 0.01
    assert exact >= 38  # equalize after a rounded operation may differ


def test_it_depends_on_seed_epoch_and_index_alone() -> None:
    images, index = pictures(12) / 255, torch.arange(12) * 7
    whole = strong_view(images, 1, 2, index)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    assert torch.equal(strong_view(images[order], 1, 2, index[order]), whole[order])
    assert torch.equal(torch.cat([strong_view(images[i : i + 1], 1, 2, index[i : i + 1]) for i in range(12)]), whole)
    for seed, epoch, other in ((2, 2, index), (1, 3, index), (1, 2, index + 1)):
        assert not torch.equal(strong_view(images, seed, epoch, other), whole)
    assert torch.equal(images, pictures(12) / 255)  # not in place
    assert (whole.dtype, whole.shape) == (images.dtype, images.shape)


def test_every_operation_is_equally_frequent() -> None:
    place = np.arange(14_000)
    for turn in range(2):
        counts = Counter(rng.below(14, 1, 1, place, OPERATION + turn).tolist())
        assert len(counts) == 14
        assert max(abs(count - 1000) for count in counts.values()) < 120


def test_a_batch_is_doubled() -> None:
    batch = Batch(pictures(5) / 255, torch.arange(5), torch.arange(5) + 10, torch.arange(5) + 10)
    both = with_strong_view(batch, 1, 2)
    assert torch.equal(both.image[:5], batch.image)
    assert torch.equal(both.image[5:], strong_view(batch.image, 1, 2, batch.index))
    assert both.label.tolist() == [0, 1, 2, 3, 4] * 2
    assert both.index.tolist() == [10, 11, 12, 13, 14] * 2
    assert both.index_cpu is not None
    assert torch.equal(both.index_cpu, both.index)
    assert both.strong is not None
    assert both.strong.tolist() == [False] * 5 + [True] * 5
    assert both.mixed_label is None
    mixed = with_strong_view(replace(batch, mixed_label=torch.ones(5), mix_ratio=torch.rand(5)), 1, 2)
    assert mixed.mixed_label is not None
    assert mixed.mix_ratio is not None
    assert len(mixed.mixed_label) == len(mixed.mix_ratio) == 10
