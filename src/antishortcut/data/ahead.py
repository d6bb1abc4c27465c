"""The next batch is made, and carried to where it is used, while this one trains."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import torch
from torch import Tensor

from ..types import Batch

T = TypeVar("T")
_END = object()


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items; a thread makes the next one while this one is used."""
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="batch") as pool:
            coming = pool.submit(next, items, _END)
            while (item := coming.result()) is not _END:
                coming = pool.submit(next, items, _END)
                yield cast(T, item)
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
