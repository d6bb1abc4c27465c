"""Order, augmentation and batches: pure functions, each beside a slow twin or the property that defines it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from torch import Tensor

from antishortcut.data import Loader, crop_flip, mix, order, uniform
from antishortcut.data import rng as draws
from antishortcut.data.transforms import flip
from antishortcut.errors import UserError
from antishortcut.types import AnySet, Batch, FileSet, ImageSet

WORD = 2**64 - 1


def twin_mix(*keys: int) -> int:
    """splitmix64 in Python's own integers."""
    state = 0
    for key in keys:
        state = ((state ^ (key & WORD)) + 0x9E3779B97F4A7C15) & WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
        state ^= state >> 31
    return state


def test_mix_is_splitmix64() -> None:
    assert int(mix(0)) == 0xE220A8397B1DCDAF  # first output of the published generator with seed 0
    assert mix(5, np.arange(4).reshape(2, 2)).tolist() == [[twin_mix(5, at) for at in row] for row in ((0, 1), (2, 3))]


@given(st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=4))
def test_mix_equals_its_twin(keys: list[int]) -> None:
    assert int(mix(*keys)) == twin_mix(*keys)


def test_draws_are_uniform_and_unrelated() -> None:
    seed, index = 1, np.arange(40_000)
    first = uniform(seed, 0, index, draws.ROW)
    assert first.min() >= 0
    assert first.max() < 1
    assert stats.kstest(first, "uniform").pvalue > 1e-4
    rest = [
        uniform(seed, 0, index, draws.FLIP),
        uniform(seed, 1, index, draws.ROW),
        uniform(seed + 1, 0, index, draws.ROW),
    ]
    for other in (*rest, np.roll(first, 1)):
        grid = np.histogram2d(first, other, bins=10, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(grid.ravel()).pvalue > 1e-4
    bits = np.unpackbits(mix(seed, index).view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 0.02


@given(st.integers(0, 300), st.integers(0, 2**63), st.integers(0, 1000))
def test_order_is_a_permutation_and_pure(count: int, seed: int, epoch: int) -> None:
    places = order(count, seed, epoch)
    assert places.dtype == torch.int64
    assert sorted(places.tolist()) == list(range(count))
    assert torch.equal(places, order(count, seed, epoch))


# Augmentation


def twin_crop_flip(image: Tensor, seed: int, epoch: int, index: Tensor, padding: int) -> Tensor:
    """One image at a time, by slicing, from draws made by the integer twin."""
    out = []
    for pixels, at in zip(image.numpy(), index.tolist(), strict=True):
        row, column = (
            int((twin_mix(seed, epoch, stream, at) >> 11) / 2**53 * (2 * padding + 1))
            for stream in (draws.ROW, draws.COLUMN)
        )
        wide = np.pad(pixels, ((0, 0), (padding, padding), (padding, padding)))
        crop = wide[:, row : row + pixels.shape[1], column : column + pixels.shape[2]]
        mirrored = twin_mix(seed, epoch, draws.FLIP, at) < 2**63
        out.append(torch.from_numpy(np.array(crop[:, :, ::-1] if mirrored else crop)))
    return torch.stack(out)


@settings(max_examples=50)
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9)),
    st.integers(0, 4),
    st.integers(0, 2**40),
    st.integers(0, 500),
)
def test_crop_flip_equals_its_twin(shape: tuple[int, int, int], padding: int, seed: int, epoch: int) -> None:
    count, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(1, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)
    index = torch.randint(0, 10**6, (count,), generator=generator)
    before = image.clone()
    out = crop_flip(image, seed, epoch, index, padding)
    assert torch.equal(out, twin_crop_flip(image, seed, epoch, index, padding))
    assert torch.equal(image, before)


def test_an_image_is_varied_alike_in_any_company() -> None:
    image, index = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8), torch.arange(100, 109)
    for vary in (crop_flip, flip):
        whole = vary(image, 3, 4, index)
        some = torch.tensor([7, 2, 5])
        assert torch.equal(vary(image[some], 3, 4, index[some]), whole[some])
        assert not torch.equal(vary(image, 3, 5, index), whole)


# Loader


def memory(count: int, size: int = 8) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    return ImageSet(image, torch.arange(count) % 5)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> FileSet:
    folder, rng = tmp_path_factory.mktemp("disk"), np.random.default_rng(0)
    paths = []
    for at in range(13):
        mode, suffix = (("RGB", "jpg"), ("L", "png"), ("P", "png"), ("RGBA", "png"), ("CMYK", "jpg"))[at % 5]
        paths.append(folder / f"{at}.{suffix}")
        Image.fromarray(rng.integers(0, 256, (20 + at, 33 - at, 3), dtype=np.uint8)).convert(mode).save(paths[-1])
    return FileSet(tuple(paths), torch.arange(13) % 3)


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.image, b.image) and torch.equal(a.label, b.label) and torch.equal(a.index, b.index)
        for a, b in zip(first, second, strict=True)
    )


def loader(images: AnySet, **options: Any) -> Loader:
    return Loader(images, **{"batch": 4, "seed": 1, "image_size": 8, "workers": 0, **options})


AUGMENTS = ["none", "crop", "flip", "crop-flip", "imagenet"]


@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_batches(disk: FileSet, place: str, augment: str) -> None:
    images = disk if place == "disk" else memory(13)
    built = loader(images, augment=augment)
    batches = list(built.epoch(3))
    assert len(batches) == len(built) == 3
    assert [len(batch.label) for batch in batches] == [4, 4, 5]  # a last image alone joins the batch before
    requested = list(loader(images, augment="none", shuffle=False).epoch(0))
    assert [len(batch.label) for batch in requested] == [4, 4, 4, 1]
    for batch in batches:
        assert batch.image.dtype == torch.float32
        assert batch.image.shape == (len(batch.label), 3, 8, 8)
        assert 0 <= batch.image.min() <= batch.image.max() <= 1
        assert torch.equal(batch.label, images.label[batch.index])
    assert torch.equal(torch.cat([batch.index for batch in batches]), order(13, 1, 3))
    assert same(batches, list(loader(images, augment=augment).epoch(3)))
    for start in range(6):  # resuming is counting
        assert same(batches[start:], list(built.epoch(3, start=start)))
    if augment != "none":
        other = torch.cat([batch.image[batch.index.argsort()] for batch in built.epoch(4)])
        assert not torch.equal(other, torch.cat([batch.image[batch.index.argsort()] for batch in batches]))


@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_together_hold_the_single_batch(augment: str, shuffle: bool) -> None:
    single = list(loader(memory(15), augment=augment, shuffle=shuffle).epoch(2))
    shares = [
        list(loader(memory(15), augment=augment, shuffle=shuffle, rank=rank, world=3).epoch(2)) for rank in range(3)
    ]
    for number, batch in enumerate(single):
        pieces = [share[number] for share in shares]
        whole = Batch(*(torch.cat([getattr(part, name) for part in pieces]) for name in ("image", "label", "index")))
        assert same([batch], [whole])


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 6), st.booleans())
def test_no_rank_goes_without(count: int, batch: int, world: int, shuffle: bool) -> None:
    images = memory(count, size=1)
    options = {"augment": "none", "image_size": 1, "shuffle": shuffle, "batch": max(batch, world), "world": world}
    ranks = [loader(images, rank=rank, **options) for rank in range(world)]
    shares = [[part.index for part in built.epoch(0)] for built in ranks]
    assert (
        {len(share) for share in shares} == {len(built) for built in ranks} == {len(ranks[0])}
    )  # no one waits forever
    outputs = sorted(int(at) for share in shares for part in share for at in part)
    assert len(outputs) == len(set(outputs))
    if shuffle:
        assert all(len(part) for share in shares for part in share)
        assert count - len(outputs) < world  # at most a last batch smaller than the ranks
    else:
        assert outputs == list(range(count))
        assert count < world or all(len(part) for share in shares for part in share)


@pytest.mark.parametrize("augment", ["imagenet", "crop-flip"])
def test_workers_change_nothing(disk: FileSet, augment: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    single = list(loader(disk, augment=augment).epoch(1))
    assert same(single, list(loader(disk, augment=augment, workers=2).epoch(1)))
    assert same(single[2:], list(loader(disk, augment=augment, workers=1).epoch(1, start=2)))
    assert torch.equal(torch.get_rng_state(), before)  # the models' generator is left alone


def test_skipped_images_are_not_touched(disk: FileSet, tmp_path: Path) -> None:
    places = order(13, 1, 0)
    gone = {int(at) for at in places[:4]}
    paths = tuple(tmp_path / "gone.jpg" if at in gone else path for at, path in enumerate(disk.paths))
    images = FileSet(paths, disk.label)
    assert len(list(loader(images).epoch(0, start=1))) == 2
    with pytest.raises(UserError, match=r"gone.jpg"):
        next(loader(images).epoch(0))


def test_evaluation_of_files_cuts_the_centre(disk: FileSet, tmp_path: Path) -> None:
    """A black picture with a white centre: of 256/224 × 28 = 32 pixels, the middle 28 are seen."""
    pixels = np.zeros((32, 48, 3), dtype=np.uint8)
    pixels[2:30, 10:38] = 255
    Image.fromarray(pixels).save(tmp_path / "x.png")
    images = FileSet((tmp_path / "x.png",), torch.tensor([0]))
    (batch,) = loader(images, image_size=28, augment="none", shuffle=False).epoch(0)
    assert batch.image.shape == (1, 3, 28, 28)
    assert batch.image.min() == 1


def test_plain_images_are_the_raw_ones() -> None:
    images = memory(6)
    batches = list(loader(images, augment="none", shuffle=False).epoch(9))
    assert torch.equal(torch.cat([batch.image for batch in batches]), images.image.float() / 255)
    resized = next(loader(images, image_size=5, augment="none").epoch(0))
    assert resized.image.shape == (4, 3, 5, 5)


@pytest.mark.parametrize(
    ("count", "options", "match"),
    [
        (5, {"augment": "crop-flop"}, "did you mean 'crop-flip'"),
        (5, {"batch": 2, "world": 3}, "at least 3"),
        (0, {}, "no images"),
        (5, {"rank": 2, "world": 2}, "rank 2 of 2"),
    ],
)
def test_mistakes_are_one_line(count: int, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        loader(memory(count), **options)
