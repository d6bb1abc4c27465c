"""Batches of images with masks: both move together, alike from memory and disk, in any company; whole ones in order."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from antishortcut.data import Loader, order, rng
from antishortcut.data.segmentation import NO_CLASS
from antishortcut.data.splits import hold_out, limited
from antishortcut.errors import UserError
from antishortcut.types import VOID, AnySet, FileSet, ImageSet, is_dense
from tests.data.official import paths_of
from tests.data.test_loader import joined, same, twin_mix

COLOURS = torch.tensor([[250, 10, 30], [20, 240, 60], [40, 70, 230], [200, 200, 20], [90, 10, 160]], dtype=torch.uint8)


def painted(count: int, height: int, width: int, block: int = 12) -> ImageSet:
    """Blocks of classes, every pixel in the colour of its class; a corner of each image is grey, and void."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = -(-height // block), -(-width // block)
    coarse = torch.randint(0, 5, (count, rows, columns), generator=generator)
    label = coarse.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :height, :width].contiguous()
    image = COLOURS[label].permute(0, 3, 1, 2).contiguous()  # (N, 3, H, W)
    label, image = label.to(torch.uint8), image.clone()
    label[:, -block:, :block] = VOID
    image[:, :, -block:, :block] = 128
    return ImageSet(image, label)


def on_disk(images: ImageSet, folder: Path, lookup: Tensor | None = None) -> FileSet:
    """The same images and masks as files, PNG so that nothing is lost."""
    paths, masks = [], []
    for at in range(len(images)):
        paths.append(folder / f"{at}.png")
        masks.append(folder / f"{at}-mask.png")
        Image.fromarray(images.image[at].permute(1, 2, 0).numpy()).save(paths[-1])
        Image.fromarray(images.label[at].numpy()).save(masks[-1])
    label = torch.zeros(len(paths), dtype=torch.int64)
    return FileSet(tuple(paths), label, masks=tuple(masks), lookup=lookup)


def loader(images: AnySet, **options: Any) -> Loader:
    usual = {"batch": 4, "seed": 1, "image_size": 32, "augment": "scale-crop-flip", "workers": 0}
    return Loader(images, **{**usual, **options})


def interior(label: Tensor, reach: int = 2) -> Tensor:
    """Pixels all of whose neighbours are seen and have their label. (B, H, W) → (B, H, W) bool."""
    wide = F.pad(label.float()[:, None], (reach,) * 4, value=-1)
    side = 2 * reach + 1
    return (F.max_pool2d(wide, side, 1) == -F.max_pool2d(-wide, side, 1))[:, 0]


@pytest.mark.parametrize("augment", ["none", "crop", "flip", "crop-flip", "scale-crop-flip"])
@pytest.mark.parametrize("shape", [(60, 90), (70, 41)])
def test_masks_move_with_their_images(augment: str, shape: tuple[int, int]) -> None:
    images = painted(40, *shape)
    outputs = 0
    for batch in loader(images, augment=augment).epoch(0):
        assert batch.label.dtype == torch.int64
        assert batch.label.shape == (len(batch.index), *batch.image.shape[2:])
        assert batch.image.shape[2:] == ((32, 32) if augment == "scale-crop-flip" else shape)
        sure = interior(batch.label)  # away from edges, where colours mix
        expected = torch.full((*batch.label.shape, 3), 128, dtype=torch.uint8)
        classes = batch.label != VOID
        expected[classes] = COLOURS[batch.label[classes]]
        colour = (batch.image * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        black = (colour == 0).all(-1)
        assert torch.equal(black & sure, black & sure & ~classes)  # padding is void
        assert torch.equal(colour[sure & ~black], expected[sure & ~black])
        outputs += int((sure & classes).sum())
    assert outputs > 40 * 32 * 32 / 5


def twin(image: Tensor, label: Tensor, at: int, size: int, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
    """Scale all of it, pad to the right and below, cut, mirror: one image, draws by the integer twin."""

    def draw(stream: int) -> float:
        return (twin_mix(seed, epoch, stream, at) >> 11) / 2**53

    scale = (5 + int(16 * draw(rng.SCALE))) / 10
    width, height = round(image.shape[2] * scale), round(image.shape[1] * scale)
    picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((width, height), Image.Resampling.BILINEAR)
    rows, columns = (
        [int(Fraction(2 * at + 1, 2) * side / scaled) for at in range(scaled)]
        for side, scaled in zip(label.shape, (height, width), strict=True)
    )
    right, below = max(0, size - width), max(0, size - height)
    pixels = np.pad(np.asarray(picture), ((0, below), (0, right), (0, 0)))
    labels = np.pad(label.numpy()[rows][:, columns], ((0, below), (0, right)), constant_values=VOID)
    top, left = (int(draw(k) * (max(side, size) - size + 1)) for k, side in ((rng.ROW, height), (rng.COLUMN, width)))
    pixels, labels = pixels[top : top + size, left : left + size], labels[top : top + size, left : left + size]
    if draw(rng.FLIP) < 0.5:
        pixels, labels = pixels[:, ::-1], labels[:, ::-1]
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1), torch.from_numpy(labels.astype(np.int64))


@settings(max_examples=30, deadline=None)
@given(st.integers(10, 70), st.integers(10, 70), st.integers(8, 48), st.integers(0, 2**40), st.integers(0, 99))
def test_scale_crop_flip_equals_its_twin(height: int, width: int, size: int, seed: int, epoch: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (6, 3, height, width), dtype=torch.uint8, generator=generator)
    label = torch.randint(0, 250, (6, height, width), dtype=torch.uint8, generator=generator)
    (batch,) = loader(ImageSet(image, label), batch=6, image_size=size, seed=seed).epoch(epoch)
    for at, pixels, labels in zip(batch.index.tolist(), batch.image, batch.label, strict=True):
        expected, classes = twin(image[at], label[at], at, size, seed, epoch)
        assert ((pixels * 255).round() - expected).abs().max() <= 2  # Pillow keeps a window in single precision
        assert torch.equal(labels, classes)


def test_memory_disk_workers_and_ranks_give_the_same(tmp_path: Path) -> None:
    images = painted(11, 50, 37)
    files = on_disk(images, tmp_path)
    built = loader(images)
    batches = list(built.epoch(3))
    assert [len(batch.index) for batch in batches] == [4, 4, 3]
    assert torch.equal(torch.cat([batch.index for batch in batches]), order(11, 1, 3))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert same(batches, list(loader(files).epoch(3)))
    assert same(batches, list(loader(files, workers=2).epoch(3)))
    assert torch.equal(torch.get_rng_state(), before)
    assert same(batches[1:], list(built.epoch(3, start=1)))
    assert same(batches, list(loader(images, augmentation_cycle=2).epoch(3))) is False
    assert not same(batches, list(built.epoch(4)))
    shares = [list(loader(images, rank=rank, world=2).epoch(3)) for rank in range(2)]
    for number, batch in enumerate(batches):
        assert same([batch], [joined([share[number] for share in shares])])


def odd_sizes(folder: Path, count: int) -> FileSet:
    files = []
    for at in range(count):
        (folder / str(at)).mkdir()
        files.append(on_disk(painted(1, 20 + 3 * at, 33 - at), folder / str(at)))
    paths, masks = (tuple(getattr(each, name)[0] for each in files) for name in ("paths", "masks"))
    return FileSet(paths, torch.zeros(count, dtype=torch.int64), masks=masks)


@pytest.mark.parametrize("workers", [0, 2])
def test_whole_images_on_disk_are_batches_of_one(tmp_path: Path, workers: int) -> None:
    files = odd_sizes(tmp_path, 5)
    built = loader(files, batch=256, augment="none", shuffle=False, workers=workers)
    batches = list(built.epoch(0))
    assert len(batches) == len(built) == 5
    for at, batch in enumerate(batches):
        expected = painted(1, 20 + 3 * at, 33 - at)
        assert batch.index.tolist() == [at]
        assert torch.equal(batch.image, expected.image.float() / 255)
        assert torch.equal(batch.label, expected.label.long())
    mixed = list(loader(files, batch=4, augment="none").epoch(0))  # shuffled: still alone, all of them
    assert sorted(int(batch.index) for batch in mixed) == list(range(5))


@pytest.mark.parametrize("world", [2, 3, 7])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_whole_images(tmp_path: Path, world: int, shuffle: bool) -> None:
    files = odd_sizes(tmp_path, 5)
    ranks = [
        loader(files, batch=8, augment="none", shuffle=shuffle, rank=rank, world=world).epoch(0)
        for rank in range(world)
    ]
    shares = [[batch.index.tolist() for batch in rank] for rank in ranks]
    assert len({len(share) for share in shares}) == 1  # no rank waits forever
    assert all(len(index) <= 1 for share in shares for index in share)
    indices = sorted(at for share in shares for index in share for at in index)
    assert len(indices) == len(set(indices)) == (5 - 5 % world if shuffle else 5)
    if shuffle:
        assert all(index for share in shares for index in share)
    elif world == 3:
        last = [*loader(files, augment="none", shuffle=False, rank=2, world=3).epoch(0)][-1]
        assert last.image.shape == (0, 3, 32, 32)
        assert last.label.shape == (0, 32, 32)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_masks_are_one_line_also_from_a_worker(tmp_path: Path, workers: int) -> None:
    lookup = torch.full((256,), NO_CLASS, dtype=torch.uint8)
    lookup[:5], lookup[VOID] = torch.arange(5), VOID
    files = on_disk(painted(6, 40, 40), tmp_path, lookup)
    Image.fromarray(np.full((40, 40), 9, dtype=np.uint8)).save(files.masks[4])
    with pytest.raises(
        UserError, match=f"{files.masks[4]} has the value 9, which is no class: they are 0 to 4, and 255"
    ):
        list(loader(files, workers=workers).epoch(0))


def test_unsuitable_augmentations(tmp_path: Path) -> None:
    images = painted(4, 20, 20)
    files = on_disk(images, tmp_path)
    plain = ImageSet(images.image, torch.zeros(4, dtype=torch.int64))
    cases: list[tuple[AnySet, str, str]] = [
        (plain, "scale-crop-flip", "for images with masks, which these are not"),
        (images, "imagenet", "cannot move masks"),
        (files, "imagenet", "cannot move masks"),
        (files, "flip", "those on disk may differ"),
        (files, "crop-flip", "use scale-crop-flip"),
    ]
    for some, augment, match in cases:
        with pytest.raises(UserError, match=match):
            loader(some, augment=augment)


@given(st.integers(2, 40), st.floats(0.05, 0.8), st.integers(0, 2**40))
def test_splits_and_limits_of_masks_in_memory_and_on_disk(count: int, fraction: float, seed: int) -> None:
    label = torch.arange(count, dtype=torch.uint8)[:, None, None].expand(count, 2, 3)
    images = ImageSet(torch.zeros(count, 3, 2, 3, dtype=torch.uint8), label, {"texture_map": label + 1})
    paths, masks = (tuple(Path(f"{at}.{kind}") for at in range(count)) for kind in ("jpg", "png"))
    lookup = torch.arange(256, dtype=torch.uint8)
    files = FileSet(paths, torch.zeros(count, dtype=torch.int64), masks=masks, lookup=lookup)
    size = max(1, round(fraction * count))
    if size == count:
        return

    def places(some: AnySet | None) -> list[int]:
        assert some is not None
        assert is_dense(some)
        if isinstance(some, ImageSet):
            assert torch.equal(some.cues["texture_map"], some.label + 1)
            return some.label[:, 0, 0].tolist()
        assert some.lookup is lookup
        assert [path.stem for path in paths_of(some)] == [path.stem for path in some.masks]
        return [int(path.stem) for path in paths_of(some)]

    remaining, held_out = map(places, hold_out(images, fraction, seed))
    assert len(held_out) == size
    assert sorted(remaining + held_out) == list(range(count))
    assert [remaining, held_out] == [*map(places, hold_out(files, fraction, seed))]
    some, more = (places(limited(images, limit, seed)) for limit in (size, size + 1))
    assert len(some) == size
    assert set(some) <= set(more)
    assert some == places(limited(files, size, seed))
