"""Batches. Order and augmentation are pure functions of (seed, epoch, index): no state, so resuming is counting."""
# N images, B batch, S side of the square images

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from antishortcut import hardware as machine
from antishortcut.data import segmentation as dense
from antishortcut.data import transforms as vary
from antishortcut.data.image_io import fit, read
from antishortcut.data.rng import order
from antishortcut.data.transforms import varied
from antishortcut.errors import UserError, suggest
from antishortcut.types import AnySet, Batch, ImageSet, is_dense

AHEAD = 2  # batches that every worker prepares
WHOLE = 2048 * 1024  # pixels that a whole image of unknown size is taken to have
MARGIN = 256 / 224  # images are resized this much larger than the centre that is cut from them

Item = TypeVar("Item")
Result = TypeVar("Result")
_END = object()


@dataclass(frozen=True)
class _Builder:
    """Builds the batch of given places, in this process or in a worker.

    Pixels and maps of labels stay bytes, a quarter or less of what would have to be sent otherwise.
    """

    images: AnySet
    size: int
    augment: str
    seed: int
    epoch: int

    def __call__(self, index: Tensor) -> Batch:
        if is_dense(self.images):
            image, label = dense.pairs(self.images, self.size, self.augment, self.seed, self.epoch, index)
        else:
            image, label = self._pixels(index), self.images.label[index]
        return Batch(image, label, index)

    def _pixels(self, index: Tensor) -> Tensor:
        images, side = self.images, (self.size, self.size)
        if isinstance(images, ImageSet) and self.augment != "imagenet" and images.image.shape[2:] == side:
            image = torch.from_numpy(images.image.numpy()[index.numpy()])  # (B, 3, S, S), one thread as in augment
        else:
            rows = np.empty((len(index), 3, *side), dtype=np.uint8)  # (B, 3, S, S)
            for row, at in zip(rows, index.tolist(), strict=True):
                row[:] = self._one(at)
            image = torch.from_numpy(rows)
        whole = vary.WHOLE_BATCH.get(self.augment)
        return image if whole is None else whole(image, self.seed, self.epoch, index)

    def _one(self, at: int) -> NDArray[np.uint8]:
        if isinstance(self.images, ImageSet):
            picture, margin = Image.fromarray(self.images.image[at].permute(1, 2, 0).numpy()), 1.0
        else:
            picture, margin = read(self.images.paths[at]), MARGIN
        if self.augment == "imagenet":
            return varied(picture, self.size, self.seed, self.epoch, at)
        return np.asarray(fit(picture, self.size, margin)).transpose(2, 0, 1)


class Loader:
    """Batches of a set, epoch by epoch; any batch of any epoch can be had without the ones before it.

    `batch` counts images over all ranks; rank r of `world` receives its contiguous share, so that the ranks together
    hold the batch a single process would. The last batch may be smaller, but in training a last image alone joins the
    batch before it, since batch norm cannot learn from one. Should it have fewer images than there are
    ranks, some rank would go without: in training (`shuffle`) all ranks skip it; in evaluation it joins the batch
    before, so that every image counts exactly once (a set smaller than `world` gives the last ranks an empty batch).

    Of a dense set, labels are maps (B, H, W) int64 that move with their images; VOID stays VOID. Without augmentation
    images keep their own size, so that whole ones are evaluated. Those on disk may all differ, so whatever `batch` is,
    each comes alone, one for every rank; at the end of an evaluation the last ranks may get an empty batch.

    `workers` processes decode images on disk, on Linux one for every core unless said, but no more than there are
    batches, or shared memory for what they hand over; images in memory are quicker to cut than to send between
    processes. Nothing depends on their number.
    With `augmentation_cycle`, augmentations repeat after that many epochs; the order does not.
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
    ) -> None:
        if augment not in vary.AUGMENTS:
            raise UserError(f"unknown augmentation {augment!r}{suggest(augment, vary.AUGMENTS)}")
        dense.check(images, augment)
        if batch < world:
            raise UserError(f"a batch of {batch} cannot be shared by {world} processes; make it at least {world}")
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world}")
        if len(images) == 0:
            raise UserError("the set has no images")
        single = dense.alone(images, augment)
        batch = world if single else batch
        self.images, self.batch, self.seed, self.image_size = images, batch, seed, image_size
        self.augment, self.shuffle, self.rank, self.world = augment, shuffle, rank, world
        self.augmentation_cycle = augmentation_cycle
        self._ends = _ends(len(images), batch, world, shuffle, single)
        share = -(-batch // world) * (WHOLE if single else image_size**2) * (4 if is_dense(images) else 3)  # bytes
        self.workers = 0 if isinstance(images, ImageSet) else _workers(workers, world, len(self._ends), share)

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return len(self._ends)

    @property
    def fewest(self) -> int:
        """Images in the smallest share that a rank gets of a batch."""
        return min(end - start for start, end in pairwise([0, *self._ends])) // self.world if self._ends else 0

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on; the images of earlier ones are not touched."""
        if start < 0:
            raise ValueError(f"start {start}")
        build = _Builder(self.images, self.image_size, self.augment, self.seed, self.view(epoch))
        shares = self._shares(epoch, start)
        yield from ahead(map(_as_float, in_workers(build, shares, min(self.workers, len(shares)))))

    def view(self, epoch: int) -> int:
        """The epoch whose augmentation this one has: its own, unless `augmentation_cycle` repeats them."""
        return 0 if self.augment == "none" else epoch % self.augmentation_cycle if self.augmentation_cycle else epoch

    def _shares(self, epoch: int, start: int) -> list[Tensor]:
        """Places of this rank's images in every batch from `start` on."""
        count = len(self.images)
        places = order(count, self.seed, epoch) if self.shuffle else torch.arange(count)  # (N,)
        bounds = list(pairwise([0, *self._ends]))[start:]
        return [places[low:high].tensor_split(self.world)[self.rank].clone() for low, high in bounds]


def _as_float(batch: Batch) -> Batch:
    return Batch(vary.as_float(batch.image), batch.label.long(), batch.index)


@dataclass(frozen=True)
class _Calls(Dataset[Any]):
    """A function as a dataset. Its UserError is handed over as a value: DataLoader would bury it in a traceback."""

    call: Callable[[Any], Any]

    def __getitem__(self, item: Any) -> Any:
        try:
            return self.call(item)
        except UserError as error:
            return error


def in_workers(call: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """The results of `call` for all items, in order, computed by worker processes; 0: in this one.

    Workers start with the first result, in the thread that waits for it: started in the main thread, the loss of one
    would be raised there by a signal, in the midst of a training step.
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
        collate_fn=_as_is,
        generator=torch.Generator().manual_seed(0),  # a seed is drawn: not from the generator of the models
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    try:
        for result in loader:
            if isinstance(result, UserError):
                raise result
            yield result
    except (RuntimeError, ConnectionError, EOFError) as error:  # the last two: it died while it handed a result over
        raised_there = "in DataLoader worker process" in str(error)
        if raised_there or (isinstance(error, RuntimeError) and "DataLoader worker" not in str(error)):
            raise
        raise UserError("a worker process has died, for want of memory perhaps; try fewer --workers, or 0") from None


def _as_is(result: Any) -> Any:
    return result


def _workers(asked: int | Literal["auto"], world: int, batches: int, size: int) -> int:
    """How many processes make batches of `size` bytes: those asked for, as far as there is work and room for them."""
    if asked == "auto":
        most = min(machine.workers(world), torch.get_num_threads())  # threads are what a process may take of a machine
        asked = 0 if multiprocessing.current_process().daemon else most  # no child may have children
    free = machine.shared_bytes()
    room = asked if free is None else max(free // max(size, 1) - 1, 0) // AHEAD
    return min(asked, room, batches) if batches > 1 else 0


def _ends(count: int, batch: int, world: int, shuffle: bool, single: bool) -> list[int]:
    """Where the batches of `count` images end, with a last one that is too small for the ranks skipped or joined."""
    ends = [*range(batch, count, batch), count]
    last = ends[-1] - (ends[-2] if len(ends) > 1 else 0)
    if single:  # none can join another
        return ends[:-1] if shuffle and last < world else ends
    if shuffle and len(ends) > 1 and last == 1:  # batch norm cannot learn from one image: it joins the batch before
        return [*ends[:-2], count]
    if last < world:
        return ends[:-1] if shuffle else [*ends[:-2], count]
    return ends


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; a thread makes the next one while this one is used."""
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="batch") as pool:
            coming = pool.submit(next, items, _END)
            while (item := coming.result()) is not _END:
                coming = pool.submit(next, items, _END)
                yield cast(Item, item)
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


def to_device(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches on a device. To CUDA a thread carries the next, from pinned memory, while this one trains."""
    if device.type != "cuda":
        for batch in batches:
            yield Batch(*(tensor.to(device) for tensor in _tensors(batch)))
        return
    lane = Lane(device)
    for sent in ahead(lane.send(batch) for batch in batches):
        yield lane.receive(*sent)


class Lane:
    """A CUDA stream of its own for copies to a device, so that they and the networks do not wait for each other."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:  # a thread has a current device of its own
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self.stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        """Begin to copy; the event comes when all is there."""
        with torch.cuda.stream(self.stream):
            image, label, index = (tensor.pin_memory().to(self.device, non_blocking=True) for tensor in _tensors(batch))
            return Batch(image, label, index, batch.index), self.stream.record_event()

    def receive(self, batch: Batch, there: torch.cuda.Event) -> Batch:
        """Have the stream that will use the batch wait for it, and its memory kept until that stream is done."""
        user = torch.cuda.current_stream(self.device)
        user.wait_event(there)
        for tensor in _tensors(batch):
            tensor.record_stream(user)
        return batch


def _tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.image, batch.label, batch.index


@contextmanager
def one_thread() -> Iterator[None]:
    """Two threads gain 40 % on an idle machine, but wait for each other on a busy one: 4 s became 80."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
