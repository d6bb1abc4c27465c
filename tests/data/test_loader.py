"""Order, augmentation and batches: pure functions, each beside a slow twin or the property that defines it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from torch import Tensor

from antishortcut import hardware
from antishortcut.data import Loader, crop_flip, mix, order, rng, to_device, uniform
from antishortcut.data import loader as loading
from antishortcut.data.image_io import picture_at
from antishortcut.data.loader import ahead
from antishortcut.data.transforms import flip
from antishortcut.errors import UserError
from antishortcut.types import AnySet, Batch, FileSet, ImageSet

WORD = 2**64 - 1
CPU = torch.device("cpu")


def twin_mix(*keys: int) -> int:
    """splitmix64 in Python's own integers."""
    state = 0
    for key in keys:
        state = ((state ^ (key & WORD)) + 0x9E3779B97F4A7C15) & WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
        state ^= state >> 31
    return state


@given(st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=4))
def test_mix_is_splitmix64(keys: list[int]) -> None:
    assert int(mix(0)) == 0xE220A8397B1DCDAF  # first output of the published generator with seed 0
    assert mix(5, np.arange(4).reshape(2, 2)).tolist() == [[twin_mix(5, at) for at in row] for row in ((0, 1), (2, 3))]
    assert int(mix(*keys)) == twin_mix(*keys)


def test_draws_are_uniform_and_independent() -> None:
    seed, index = 1, np.arange(40_000)
    first = uniform(seed, 0, index, rng.ROW)
    assert 0 <= first.min() <= first.max() < 1
    assert stats.kstest(first, "uniform").pvalue > 1e-4
    keys = ((seed, 0, rng.FLIP), (seed, 1, rng.ROW), (seed + 1, 0, rng.ROW))
    for other in (*(uniform(a, b, index, stream) for a, b, stream in keys), np.roll(first, 1)):
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


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 2**40), st.integers(0, 500))
def test_balanced_draws_equal_their_twin(numbers: list[int], seed: int, epoch: int) -> None:
    """A group, then one of its images in order, each by a draw of the integer twin."""
    kinds = sorted(set(numbers))
    group = [kinds.index(number) for number in numbers]  # without gaps
    expected = []
    for place in range(len(group)):
        first, second = ((twin_mix(seed, epoch, stream, place) >> 11) / 2**53 for stream in (rng.GROUP, rng.MEMBER))
        members = [at for at, number in enumerate(group) if number == int(first * len(kinds))]
        expected.append(members[int(second * len(members))])
    drawn = rng.balanced_draws(torch.tensor(group), seed, epoch)
    assert drawn.dtype == torch.int64
    assert drawn.tolist() == expected


def test_balanced_draws_take_every_group_as_often() -> None:
    group = torch.tensor([0] * 9000 + [1] * 900 + [2] * 100)
    first, second = (rng.balanced_draws(group, 1, epoch) for epoch in (0, 1))
    assert not torch.equal(first, second)
    assert stats.chisquare(group[first].bincount()).pvalue > 1e-4
    smallest = first[group[first] == 2] - 9900  # any of the hundred, about 33 times each
    assert stats.chisquare(smallest.bincount(minlength=100)).pvalue > 1e-4


def twin_crop_flip(image: Tensor, seed: int, epoch: int, index: Tensor, padding: int) -> Tensor:
    """One image at a time, by slicing, from draws of the integer twin."""
    out = []
    for pixels, at in zip(image.numpy(), index.tolist(), strict=True):
        row, column = (
            int((twin_mix(seed, epoch, stream, at) >> 11) / 2**53 * (2 * padding + 1))
            for stream in (rng.ROW, rng.COLUMN)
        )
        wide = np.pad(pixels, ((0, 0), (padding, padding), (padding, padding)))
        crop = wide[:, row : row + pixels.shape[1], column : column + pixels.shape[2]]
        mirrored = twin_mix(seed, epoch, rng.FLIP, at) < 2**63
        out.append(torch.from_numpy(np.array(crop[:, :, ::-1] if mirrored else crop)))
    return torch.stack(out)


@settings(max_examples=50)
@given(st.tuples(*[st.integers(1, 9)] * 3), st.integers(0, 4), st.integers(0, 2**40), st.integers(0, 500))
def test_crop_flip_equals_its_twin(shape: tuple[int, int, int], padding: int, seed: int, epoch: int) -> None:
    count, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(1, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)
    index = torch.randint(0, 10**6, (count,), generator=generator)
    before = image.clone()
    out = crop_flip(image, seed, epoch, index, padding)
    assert torch.equal(out, twin_crop_flip(image, seed, epoch, index, padding))
    assert torch.equal(image, before)


def test_augmentation_does_not_depend_on_the_rest_of_the_batch() -> None:
    image, index = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8), torch.arange(100, 109)
    for vary in (crop_flip, flip):
        whole = vary(image, 3, 4, index)
        some = torch.tensor([7, 2, 5])
        assert torch.equal(vary(image[some], 3, 4, index[some]), whole[some])
        assert not torch.equal(vary(image, 3, 5, index), whole)


def memory(count: int, size: int = 8) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    return ImageSet(image, torch.arange(count) % 5)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> FileSet:
    folder, numbers = tmp_path_factory.mktemp("disk"), np.random.default_rng(0)
    paths = []
    for at in range(13):
        mode, suffix = (("RGB", "jpg"), ("L", "png"), ("P", "png"), ("RGBA", "png"), ("CMYK", "jpg"))[at % 5]
        paths.append(folder / f"{at}.{suffix}")
        Image.fromarray(numbers.integers(0, 256, (20 + at, 33 - at, 3), dtype=np.uint8)).convert(mode).save(paths[-1])
    return FileSet(tuple(paths), torch.arange(13) % 3)


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.image, b.image) and torch.equal(a.label, b.label) and torch.equal(a.index, b.index)
        for a, b in zip(first, second, strict=True)
    )


def joined(pieces: list[Batch]) -> Batch:
    return Batch(*(torch.cat([getattr(piece, name) for piece in pieces]) for name in ("image", "label", "index")))


def loader(images: AnySet, **options: Any) -> Loader:
    return Loader(images, **{"batch": 4, "seed": 1, "image_size": 8, "workers": 0, **options})


AUGMENTS = ["none", "crop", "flip", "crop-flip", "imagenet"]


@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_batches_and_resuming(disk: FileSet, place: str, augment: str) -> None:
    images = disk if place == "disk" else memory(13)
    training = loader(images, augment=augment)
    batches = list(training.epoch(3))
    assert len(training) == 3
    assert [len(batch.label) for batch in batches] == [4, 4, 5]  # a last single image joins the batch before
    evaluation = list(loader(images, augment="none", shuffle=False).epoch(0))
    assert [len(batch.label) for batch in evaluation] == [4, 4, 4, 1]
    for batch in batches:
        assert batch.image.dtype == torch.float32
        assert batch.image.shape == (len(batch.label), 3, 8, 8)
        assert 0 <= batch.image.min() <= batch.image.max() <= 1
        assert torch.equal(batch.label, images.label[batch.index])
    assert torch.equal(torch.cat([batch.index for batch in batches]), order(13, 1, 3))
    assert same(batches, list(loader(images, augment=augment).epoch(3)))
    for start in range(6):  # resuming is counting
        assert same(batches[start:], list(training.epoch(3, start=start)))
    if augment != "none":
        other = torch.cat([batch.image[batch.index.argsort()] for batch in training.epoch(4)])
        assert not torch.equal(other, torch.cat([batch.image[batch.index.argsort()] for batch in batches]))


@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_together_hold_the_batch_of_one_process(augment: str, shuffle: bool) -> None:
    options = {"augment": augment, "shuffle": shuffle}
    shares = [list(loader(memory(15), rank=rank, world=3, **options).epoch(2)) for rank in range(3)]
    for number, batch in enumerate(loader(memory(15), **options).epoch(2)):
        assert same([batch], [joined([share[number] for share in shares])])


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 6), st.booleans())
def test_all_ranks_have_equally_many_batches(count: int, batch: int, world: int, shuffle: bool) -> None:
    images = memory(count, size=1)
    options = {"augment": "none", "image_size": 1, "shuffle": shuffle, "batch": max(batch, world), "world": world}
    ranks = [loader(images, rank=rank, **options) for rank in range(world)]
    shares = [[batch.index for batch in rank.epoch(0)] for rank in ranks]
    assert {len(share) for share in shares} == {len(rank) for rank in ranks} == {len(ranks[0])}
    indices = sorted(int(at) for share in shares for index in share for at in index)
    assert len(indices) == len(set(indices))
    if shuffle:
        assert all(len(index) for share in shares for index in share)
        assert count - len(indices) < world  # at most a last batch smaller than the ranks
    else:
        assert indices == list(range(count))
        assert count < world or all(len(index) for share in shares for index in share)


@pytest.mark.parametrize("augment", ["imagenet", "crop-flip"])
def test_workers_change_nothing(disk: FileSet, augment: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    batches = list(loader(disk, augment=augment).epoch(1))
    assert same(batches, list(loader(disk, augment=augment, workers=2).epoch(1)))
    assert same(batches[2:], list(loader(disk, augment=augment, workers=1).epoch(1, start=2)))
    assert torch.equal(torch.get_rng_state(), before)


def test_balanced_batches_resume_and_are_shared_by_ranks() -> None:
    images, group = memory(23), torch.arange(23) // 20
    whole = loader(images, batch=6, balanced_groups=group)
    batches = list(whole.epoch(3))
    index = torch.cat([batch.index for batch in batches])
    assert torch.equal(index, rng.balanced_draws(group, whole.seed, 3))
    assert len(index.unique()) < 23  # type: ignore[no-untyped-call]
    assert same(list(whole.epoch(3, start=2)), batches[2:])
    ranks = [list(loader(images, batch=6, balanced_groups=group, rank=rank, world=2).epoch(3)) for rank in (0, 1)]
    assert same([joined([*pieces]) for pieces in zip(*ranks, strict=True)], batches)


def test_skipped_images_are_not_read(disk: FileSet, tmp_path: Path) -> None:
    gone = set(order(13, 1, 0)[:4].tolist())
    paths = tuple(tmp_path / "gone.jpg" if at in gone else path for at, path in enumerate(disk.paths))
    images = FileSet(paths, disk.label)
    assert len(list(loader(images).epoch(0, start=1))) == 2
    with pytest.raises(UserError, match=r"gone.jpg"):
        next(loader(images).epoch(0))


def test_evaluation_of_files_crops_the_centre(tmp_path: Path) -> None:
    """A black picture with a white centre: of 256/224 × 28 = 32 pixels, the middle 28 are used."""
    pixels = np.zeros((32, 48, 3), dtype=np.uint8)
    pixels[2:30, 10:38] = 255
    Image.fromarray(pixels).save(tmp_path / "x.png")
    images = FileSet((tmp_path / "x.png",), torch.tensor([0]))
    (batch,) = loader(images, image_size=28, augment="none", shuffle=False).epoch(0)
    assert batch.image.shape == (1, 3, 28, 28)
    assert batch.image.min() == 1


@pytest.mark.parametrize(
    ("count", "options", "match"),
    [
        (5, {"augment": "crop-flop"}, "did you mean 'crop-flip'"),
        (5, {"batch": 2, "world": 3}, "at least 3"),
        (0, {}, "no images"),
    ],
)
def test_bad_arguments_are_one_line(count: int, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        loader(memory(count), **options)


# Prefetching


def batches(count: int, log: list[int] | None = None) -> Iterator[Batch]:
    for at in range(count):
        if log is not None:
            log.append(at)
        yield Batch(torch.full((2, 3, 4, 4), float(at)), torch.tensor([at, at]), torch.tensor([2 * at, 2 * at + 1]))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batch")]


def test_one_batch_is_prefetched() -> None:
    log: list[int] = []
    prefetched = ahead(batches(5, log))
    assert log == []
    for at, batch in enumerate(prefetched):
        assert int(batch.label[0]) == at
        assert len(log) <= at + 2
    assert log == [0, 1, 2, 3, 4]
    assert threads() == []


def test_errors_come_after_the_batches_before_them() -> None:
    def broken() -> Iterator[Batch]:
        yield from batches(2)
        raise UserError("the third is bad")

    for prefetched in (ahead(broken()), to_device(broken(), CPU), to_device(ahead(broken()), CPU)):
        received: list[Batch] = []
        with pytest.raises(UserError, match="the third is bad"):
            received.extend(prefetched)
        assert [int(batch.label[0]) for batch in received] == [0, 1]
    assert threads() == []


def test_closing_stops_the_thread_and_its_source() -> None:
    closed = []

    def endless() -> Iterator[int]:
        try:
            at = 0
            while True:
                yield (at := at + 1)
        finally:
            closed.append(True)

    prefetched = ahead(endless())
    assert [next(prefetched), next(prefetched)] == [1, 2]
    assert len(threads()) == 1
    prefetched.close()  # type: ignore[attr-defined]
    assert closed == [True]
    assert threads() == []
    for _ in to_device(loader(memory(40)).epoch(0), CPU):
        break
    assert threads() == []


def test_batches_go_to_cuda_through_their_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: MagicMock(device=CPU))
    monkeypatch.setattr(torch.cuda, "current_stream", MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    monkeypatch.setattr(torch.Tensor, "record_stream", MagicMock())
    sent = list(to_device(batches(4), torch.device("cuda")))
    assert [int(batch.label[0]) for batch in sent] == [0, 1, 2, 3]
    assert threads() == []


def test_number_of_workers(disk: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def workers(images: AnySet = disk, **options: Any) -> int:
        return loader(images, **{"batch": 1, "shuffle": False, "workers": "auto", **options}).workers

    monkeypatch.setattr(hardware, "cores", lambda: 6)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(hardware, "shared_bytes", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert workers() == 2  # no more than the process has threads
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    assert workers() == 6
    assert workers(world=2, batch=2) == 3  # processes share the cores
    assert workers(workers=0) == 0
    assert workers(workers=2) == 2
    assert workers(batch=4) == 4  # batches
    assert workers(batch=13) == 0  # one batch: nothing to prefetch
    assert workers(memory(40)) == workers(memory(40), workers=3) == 0
    monkeypatch.setattr(hardware, "shared_bytes", lambda: 9 * 3 * 64)  # nine batches: two per worker, one in use
    assert workers() == workers(workers=5) == 4
    monkeypatch.setattr(hardware, "shared_bytes", lambda: 100)
    assert workers() == 0
    monkeypatch.setattr(hardware, "shared_bytes", lambda: None)
    monkeypatch.setattr("sys.platform", "darwin")  # where they would be spawned, and a script would need a guard
    assert (workers(), workers(workers=2)) == (0, 2)


def test_a_killed_worker_is_one_line(disk: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()

    def deadly(images: AnySet, at: int) -> Image.Image:
        if os.getpid() != here and at == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return picture_at(images, at)

    def lost(*_: Any, **__: Any) -> Iterator[Batch]:
        yield next(batches(1))
        raise ConnectionResetError(104, "Connection reset by peer")

    def broken(images: AnySet, at: int) -> Image.Image:
        raise RuntimeError("of the decoder's own")

    monkeypatch.setattr("antishortcut.data.image_io.picture_at", deadly)
    with pytest.raises(UserError, match=r"died.*--workers") as caught:
        list(loader(disk, workers=2, shuffle=False).epoch(0))
    assert "\n" not in str(caught.value)
    monkeypatch.setattr("antishortcut.data.image_io.picture_at", broken)
    with pytest.raises(RuntimeError, match="of the decoder's own"):  # an error in a worker is not its death
        list(loader(disk, workers=2, shuffle=False).epoch(0))
    monkeypatch.setattr(loading, "DataLoader", lost)
    with pytest.raises(UserError, match=r"died.*--workers"):
        list(loader(disk, workers=2).epoch(0))
