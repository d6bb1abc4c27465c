"""Batches. Order and augmentation are pure functions of (seed, epoch, index): no state, so resuming is counting."""
# N images, B batch, S side of the square images

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from antishortcut import hardware
from antishortcut.data import segmentation
from antishortcut.data.image_io import fit, pictures_at
from antishortcut.data.rng import balanced_draws, order
from antishortcut.data.transforms import AUGMENTS, WHOLE_BATCH, as_float, varied
from antishortcut.errors import UserError, suggest
from antishortcut.types import AnySet, Batch, FileSet, ImageSet, is_dense

AHEAD = 2  # batches that every worker prepares
WHOLE = 2048 * 1024  # assumed pixels of a whole image of unknown size
MARGIN = 256 / 224  # images are resized this much larger than the centre crop

Item = TypeVar("Item")
Result = TypeVar("Result")
_END = object()


@dataclass(frozen=True)
class _Builder:
    """Builds the batch of the given indices, in this process or in a worker; uint8, which is less to send."""

    images: AnySet
    size: int
    augment: str
    seed: int
    epoch: int

    def __call__(self, index: Tensor) -> Batch:
        if is_dense(self.images):
            pairs = segmentation.pairs(self.images, self.size, self.augment, self.seed, self.epoch, index)
            return Batch(*pairs, index)
        images, side = self.images, (self.size, self.size)
        if isinstance(images, ImageSet) and self.augment != "imagenet" and images.image.shape[2:] == side:
            pixels = images.image.numpy()[index.numpy()]  # (B, 3, S, S)
        else:
            pixels = np.empty((len(index), 3, *side), dtype=np.uint8)  # (B, 3, S, S)
            places = index.tolist()
            for out, at, picture in zip(pixels, places, pictures_at(images, places), strict=True):
                if self.augment == "imagenet":
                    out[:] = varied(picture, self.size, self.seed, self.epoch, at)
                else:
                    margin = 1.0 if isinstance(images, ImageSet) else MARGIN
                    out[:] = np.asarray(fit(picture, self.size, margin)).transpose(2, 0, 1)
        image, move = torch.from_numpy(pixels), WHOLE_BATCH.get(self.augment)
        image = image if move is None else move(image, self.seed, self.epoch, index)
        return Batch(image, images.label[index], index)


class Loader:
    """Batches of a set, epoch by epoch; any batch of any epoch can be built without the ones before it.

    `batch` counts images over all ranks; rank r of `world` gets its contiguous share, so the ranks together see the
    batch of a single process. In training (`shuffle`), a last batch of one image joins the batch before it, since batch
    norm cannot learn from one. If the last batch has fewer images than there are ranks, training skips it; in
    evaluation it joins the batch before, so that every image counts once (a set smaller than `world` gives the last
    ranks an empty batch).

    Labels of a dense set are maps (B, H, W) int64, augmented with their images; VOID stays VOID. Without augmentation
    images keep their size. Those on disk may all differ, so each is its own batch, one for every rank, whatever `batch`
    is; at the end of an evaluation the last ranks may get an empty batch.

    `workers` processes decode images on disk; "auto" on Linux is one for every core, limited by the number of batches
    and shared memory. Images in memory need none. Results do not depend on their number.
    With `augmentation_cycle`, augmentations repeat after that many epochs; the order does not.
    With `balanced_groups` (N,), images are drawn with replacement, every group as often as any other; an image that is
    drawn twice in an epoch has the same augmentation.
    """

    def __init__(
        self,
        images: AnySet,
        *,
        batch: int,
        seed: int,
        image_size: int,
        augment: str = "crop-flip",
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
        workers: int | Literal["auto"] = "auto",
        augmentation_cycle: int | None = None,
        balanced_groups: Tensor | None = None,
    ) -> None:
        if augment not in AUGMENTS:
            raise UserError(f"unknown augmentation {augment!r}{suggest(augment, AUGMENTS)}")
        segmentation.check(images, augment)
        if batch < world:
            raise UserError(f"a batch of {batch} cannot be shared by {world} processes; make it at least {world}")
        if len(images) == 0:
            raise UserError("the set has no images")
        # whole images on disk, whose sizes may differ: every image is its own batch
        single = isinstance(images, FileSet) and is_dense(images) and augment == "none"
        batch = world if single else batch
        self.images, self.batch, self.seed, self.image_size = images, batch, seed, image_size
        self.augment, self.shuffle, self.rank, self.world = augment, shuffle, rank, world
        self.augmentation_cycle, self.balanced_groups = augmentation_cycle, balanced_groups
        self._ends = _ends(len(images), batch, world, shuffle, single)
        share = -(-batch // world) * (WHOLE if single else image_size**2) * (4 if is_dense(images) else 3)  # bytes
        self.workers = 0 if isinstance(images, ImageSet) else _workers(workers, world, len(self._ends), share)

    @classmethod
    def in_order(cls, images: AnySet, batch: int, image_size: int, *, workers: int | Literal["auto"] = "auto") -> Self:
        """Every image once, in the set's order and without augmentation, for one process."""
        return cls(images, batch=batch, seed=0, image_size=image_size, augment="none", shuffle=False, workers=workers)

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return len(self._ends)

    @property
    def fewest(self) -> int:
        """Images in the smallest share that a rank gets of a batch."""
        return min(end - start for start, end in pairwise([0, *self._ends])) // self.world if self._ends else 0

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on; earlier images are not read."""
        count = len(self.images)
        if self.balanced_groups is not None:
            index = balanced_draws(self.balanced_groups, self.seed, epoch)  # (N,)
        else:
            index = order(count, self.seed, epoch) if self.shuffle else torch.arange(count)  # (N,)
        bounds = list(pairwise([0, *self._ends]))[start:]
        shares = [index[low:high].tensor_split(self.world)[self.rank].clone() for low, high in bounds]
        build = _Builder(self.images, self.image_size, self.augment, self.seed, self.view(epoch))
        batches = in_workers(build, shares, min(self.workers, len(shares)))
        yield from ahead(Batch(as_float(batch.image), batch.label.long(), batch.index) for batch in batches)

    def view(self, epoch: int) -> int:
        """The epoch whose augmentations are used: its own, unless `augmentation_cycle` repeats them."""
        return 0 if self.augment == "none" else epoch % self.augmentation_cycle if self.augmentation_cycle else epoch


@dataclass(frozen=True)
class _Calls(Dataset[Any]):
    """A function as a dataset. A UserError is returned as a value: DataLoader would wrap it in a traceback."""

    call: Callable[[Any], Any]

    def __getitem__(self, item: Any) -> Any:
        try:
            return self.call(item)
        except UserError as error:
            return error


def in_workers(call: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """The results of `call` for all items, in order, computed by worker processes; 0: in this one.

    Workers start in the thread that waits for the first result: in the main thread, a dead worker would raise in the
    middle of a training step.
    """
    if workers == 0:
        yield from map(call, items)
        return
    loader: DataLoader[Any] = DataLoader(
        _Calls(call),
        batch_size=None,
        sampler=items,
        num_workers=workers,
        prefetch_factor=AHEAD,
        generator=torch.Generator().manual_seed(0),  # it draws a seed: not from the global generator
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    try:
        for result in loader:
            if isinstance(result, UserError):
                raise result
            yield result
    except (RuntimeError, ConnectionError, EOFError) as error:  # the last two: it died while sending a result
        raised_by_call = "in DataLoader worker process" in str(error)
        if raised_by_call or (isinstance(error, RuntimeError) and "DataLoader worker" not in str(error)):
            raise
        raise UserError("a worker process died, perhaps out of memory; try fewer --workers, or 0") from None


def _workers(workers: int | Literal["auto"], world: int, batches: int, size: int) -> int:
    """The number of processes for batches of `size` bytes, limited by the number of batches and shared memory."""
    if workers == "auto":
        most = min(hardware.workers(world), torch.get_num_threads())  # a process may use so much of a machine
        workers = 0 if multiprocessing.current_process().daemon else most  # no child may have children
    free = hardware.shared_bytes()
    room = workers if free is None else max(free // max(size, 1) - 1, 0) // AHEAD
    return min(workers, room, batches) if batches > 1 else 0


def _ends(count: int, batch: int, world: int, shuffle: bool, single: bool) -> list[int]:
    """Where the batches of `count` images end; a last one that is too small for the ranks is skipped or joined."""
    ends = [*range(batch, count, batch), count]
    last = ends[-1] - (ends[-2] if len(ends) > 1 else 0)
    if single:  # batches cannot be joined
        return ends[:-1] if shuffle and last < world else ends
    if shuffle and len(ends) > 1 and last == 1:
        return [*ends[:-2], count]
    if last < world:
        return ends[:-1] if shuffle else [*ends[:-2], count]
    return ends


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; a thread computes the next one while this one is used."""
    with ThreadPoolExecutor(1, thread_name_prefix="batch") as pool:
        future = pool.submit(next, items, _END)
        while (item := future.result()) is not _END:
            future = pool.submit(next, items, _END)
            yield cast(Item, item)


def to_device(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches on a device. To CUDA, a thread copies the next from pinned memory while this one trains."""
    if device.type != "cuda":
        for batch in batches:
            yield Batch(*(tensor.to(device) for tensor in _tensors(batch)))
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # copies and networks do not wait for each other
    place = stream.device  # with its number: every thread has its own current device

    def send(batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        """Start copying; the event marks the end."""
        with torch.cuda.stream(stream):
            image, label, index = (tensor.pin_memory().to(place, non_blocking=True) for tensor in _tensors(batch))
            return Batch(image, label, index, batch.index), stream.record_event()

    for batch, copied in ahead(map(send, batches)):
        user = torch.cuda.current_stream(place)
        user.wait_event(copied)
        for tensor in _tensors(batch):
            tensor.record_stream(user)  # its memory is not reused before this stream is done
        yield batch


def _tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.image, batch.label, batch.index


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: two gain 40 % on an idle machine, but on a busy one 4 s became 80."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
