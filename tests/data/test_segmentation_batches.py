"""Batches of images with masks: both move together, alike from memory and disk, in any company; whole ones in order."""

from __future__ import annotations

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

from antishortcut.data import Loader, order
from antishortcut.data import rng as draws
from antishortcut.data.corruptions.writer import write_copies
from antishortcut.data.segmentation import NO_CLASS
from antishortcut.data.splits import hold_out, limited
from antishortcut.errors import UserError
from antishortcut.types import VOID, AnySet, Batch, FileSet, ImageSet, is_dense
from tests.data.test_loader import same, twin_mix

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


def saved(images: ImageSet, folder: Path, lookup: Tensor | None = None) -> FileSet:
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

    scale = (5 + int(16 * draw(draws.SCALE))) / 10
    width, height = round(image.shape[2] * scale), round(image.shape[1] * scale)
    picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((width, height), Image.Resampling.BILINEAR)
    rows, columns = (
        [int(Fraction(2 * at + 1, 2) * side / scaled) for at in range(scaled)]
        for side, scaled in zip(label.shape, (height, width), strict=True)
    )
    right, below = max(0, size - width), max(0, size - height)
    pixels = np.pad(np.asarray(picture), ((0, below), (0, right), (0, 0)))
    labels = np.pad(label.numpy()[rows][:, columns], ((0, below), (0, right)), constant_values=VOID)
    top, left = (
        int(draw(k) * (max(side, size) - size + 1)) for k, side in ((draws.ROW, height), (draws.COLUMN, width))
    )
    pixels, labels = pixels[top : top + size, left : left + size], labels[top : top + size, left : left + size]
    if draw(draws.FLIP) < 0.5:
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


def test_memory_and_disk_workers_and_company_give_the_same(tmp_path: Path) -> None:
    images = painted(11, 50, 37)
    files = saved(images, tmp_path)
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
        pieces = [share[number] for share in shares]
        whole = Batch(*(torch.cat([getattr(part, name) for part in pieces]) for name in ("image", "label", "index")))
        assert same([batch], [whole])


# Whole images


def odd_sizes(folder: Path, count: int) -> FileSet:
    pieces = [saved(painted(1, 20 + 3 * at, 33 - at), _made(folder / str(at))) for at in range(count)]
    paths, masks = (tuple(getattr(part, name)[0] for part in pieces) for name in ("paths", "masks"))
    return FileSet(paths, torch.zeros(count, dtype=torch.int64), masks=masks)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_whole_images_on_disk_come_alone_and_in_order(tmp_path: Path, workers: int) -> None:
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


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_whole_images(tmp_path: Path, world: int, shuffle: bool) -> None:
    files = odd_sizes(tmp_path, 5)
    ranks = [
        loader(files, batch=8, augment="none", shuffle=shuffle, rank=rank, world=world).epoch(0)
        for rank in range(world)
    ]
    shares = [[batch.index.tolist() for batch in rank] for rank in ranks]
    assert len({len(share) for share in shares}) == 1  # no one waits forever
    assert all(len(part) <= 1 for share in shares for part in share)
    outputs = sorted(at for share in shares for part in share for at in part)
    assert len(outputs) == len(set(outputs)) == (5 - 5 % world if shuffle else 5)
    if shuffle:
        assert all(part for share in shares for part in share)
    elif world == 3:
        last = [*loader(files, augment="none", shuffle=False, rank=2, world=3).epoch(0)][-1]
        assert last.image.shape == (0, 3, 32, 32)
        assert last.label.shape == (0, 32, 32)


# Mistakes


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_files_are_one_line_also_from_a_worker(tmp_path: Path, workers: int) -> None:
    lookup = torch.full((256,), NO_CLASS, dtype=torch.uint8)
    lookup[:5] = torch.arange(5)
    lookup[VOID] = VOID
    files = saved(painted(6, 40, 40), tmp_path, lookup)
    good = files.masks[4].read_bytes()

    def text(augment: str = "scale-crop-flip") -> str:
        with pytest.raises(UserError) as caught:
            list(loader(files, workers=workers, augment=augment).epoch(0))
        assert "\n" not in str(caught.value)
        assert str(files.masks[4]) in str(caught.value)
        return str(caught.value)

    files.masks[4].write_bytes(good[: len(good) // 2])
    assert "cannot read the mask" in text()
    Image.fromarray(np.full((40, 40), 9, dtype=np.uint8)).save(files.masks[4])
    assert "has the value 9, which is no class: they are 0 to 4, and 255" in text()
    Image.fromarray(np.zeros((40, 30), dtype=np.uint8)).save(files.masks[4])
    assert "30 × 40 pixels" in text("none")


def test_augmentations_that_do_not_suit(tmp_path: Path) -> None:
    images = painted(4, 20, 20)
    files = saved(images, tmp_path)
    plain = ImageSet(images.image, torch.zeros(4, dtype=torch.int64))
    cases: list[tuple[AnySet, str, str]] = [
        (plain, "scale-crop-flip", "for images with masks, which these are not"),
        (images, "imagenet", "cannot move masks"),
        (files, "imagenet", "cannot move masks"),
        (files, "flip", "those on disk may differ"),
        (files, "crop-flip", "use scale-crop-flip"),
    ]
    for given_images, augment, match in cases:
        with pytest.raises(UserError, match=match):
            loader(given_images, augment=augment)


def test_corrupted_copies_have_no_masks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one label for an image"):
        write_copies(painted(4, 32, 32), 32, tmp_path / "out")


# Parts


@given(st.integers(2, 40), st.floats(0.05, 0.8), st.integers(0, 2**40))
def test_splits_and_limits_carry_masks_and_maps(count: int, fraction: float, seed: int) -> None:
    label = torch.arange(count, dtype=torch.uint8)[:, None, None].expand(count, 2, 3)
    images = ImageSet(torch.zeros(count, 3, 2, 3, dtype=torch.uint8), label, {"texture_map": label + 1})
    files = FileSet(
        tuple(Path(f"{at}.jpg") for at in range(count)),
        torch.zeros(count, dtype=torch.int64),
        masks=tuple(Path(f"{at}.png") for at in range(count)),
        lookup=torch.arange(256, dtype=torch.uint8),
    )
    required = max(1, round(fraction * count))
    if required == count:
        return
    for pieces in (hold_out(images, fraction, seed), hold_out(files, fraction, seed)):
        places = []
        for part in pieces:
            assert part is not None
            assert is_dense(part)
            if isinstance(part, ImageSet):
                assert torch.equal(part.cues["texture_map"], part.label + 1)
                places.append(part.label[:, 0, 0].tolist())
            else:
                assert part.lookup is files.lookup
                assert [path.stem for path in part.paths] == [path.stem for path in part.masks]
                places.append([int(path.stem) for path in part.paths])
        assert len(places[1]) == required
        assert sorted(places[0] + places[1]) == list(range(count))
    some, more = limited(images, required, seed), limited(images, required + 1, seed)
    assert set(some.label[:, 0, 0].tolist()) <= set(more.label[:, 0, 0].tolist())
    assert len(some) == required
    alike = limited(files, required, seed)
    assert isinstance(alike, FileSet)
    assert [int(path.stem) for path in alike.paths] == some.label[:, 0, 0].tolist()  # in memory and on disk the same
