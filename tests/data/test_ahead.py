"""Batches that are made and carried ahead of their use: the same, in the same order, errors included."""

from __future__ import annotations

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
from PIL import Image

from antishortcut import hardware as machine
from antishortcut.data import Loader, to_device
from antishortcut.data import loader as loading
from antishortcut.data.image_io import read
from antishortcut.data.loader import CopyStream, ahead
from antishortcut.errors import UserError
from antishortcut.types import Batch, FileSet, ImageSet

CPU = torch.device("cpu")


def batches(count: int, log: list[int] | None = None) -> Iterator[Batch]:
    for at in range(count):
        if log is not None:
            log.append(at)
        yield Batch(torch.full((2, 3, 4, 4), float(at)), torch.tensor([at, at]), torch.tensor([2 * at, 2 * at + 1]))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batch")]


def test_the_next_is_made_while_this_one_is_used_and_no_more() -> None:
    log: list[int] = []
    built = ahead(batches(5, log))
    assert log == []
    for at, batch in enumerate(built):
        assert int(batch.label[0]) == at
        assert len(log) <= at + 2
    assert log == [0, 1, 2, 3, 4]
    assert threads() == []


def test_errors_come_in_their_place() -> None:
    def broken() -> Iterator[Batch]:
        yield from batches(2)
        raise UserError("the third is bad")

    for built in (ahead(broken()), to_device(broken(), CPU), to_device(ahead(broken()), CPU)):
        outputs: list[Batch] = []
        with pytest.raises(UserError, match="the third is bad"):
            outputs.extend(built)
        assert [int(batch.label[0]) for batch in outputs] == [0, 1]
    assert threads() == []


def test_closing_stops_the_thread_and_what_it_asks() -> None:
    closed = []

    def endless() -> Iterator[int]:
        try:
            at = 0
            while True:
                yield (at := at + 1)
        finally:
            closed.append(True)

    built = ahead(endless())
    assert [next(built), next(built)] == [1, 2]
    assert len(threads()) == 1
    built.close()  # type: ignore[attr-defined]
    assert closed == [True]
    assert threads() == []
    for _ in to_device(Loader(memory(40), batch=4, seed=0, image_size=8).epoch(0), CPU):
        break
    assert threads() == []


def memory(count: int) -> ImageSet:
    image = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageSet(image, torch.arange(count) % 5)


def test_batches_go_to_cuda_through_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    monkeypatch.setattr(torch.Tensor, "record_stream", MagicMock())
    monkeypatch.setattr(loading, "CopyStream", lambda device: CopyStream(CPU))
    sent = list(to_device(batches(4), torch.device("cuda")))
    assert [int(batch.label[0]) for batch in sent] == [0, 1, 2, 3]
    assert threads() == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_batches_are_what_they_were() -> None:
    plain, device = Loader(memory(22), batch=4, seed=3, image_size=8), torch.device("cuda")
    for here, there in zip(plain.epoch(1), to_device(plain.epoch(1), device), strict=True):
        assert there.image.is_cuda
        assert torch.equal(here.image, there.image.cpu())
        assert torch.equal(here.label, there.label.cpu())
        assert torch.equal(here.index, there.index.cpu())


# Workers


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FileSet:
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    paths = tuple(folder / f"{at}.png" for at in range(40))
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(path)
    return FileSet(paths, torch.zeros(40, dtype=torch.int64))


def workers(images: Any, **options: Any) -> int:
    return Loader(images, **{"batch": 4, "seed": 0, "image_size": 8, **options}).workers


def test_as_many_workers_as_there_is_work_and_room_for(files: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 6)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(machine, "shared_bytes", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert workers(files) == 2  # no more than the process has threads
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    assert workers(files) == 6
    assert workers(files, world=2) == 3  # processes share the cores
    assert workers(files, world=8, batch=8) == 1
    assert workers(files, workers=0) == 0
    assert workers(files, workers=2) == 2
    assert workers(files, batch=10) == 4  # batches
    assert workers(files, batch=40) == 0  # one batch: nothing to do beside it
    assert workers(memory(40)) == workers(memory(40), workers=3) == 0
    monkeypatch.setattr(machine, "shared_bytes", lambda: 9 * 4 * 3 * 64)  # nine batches: two a worker, one in use
    assert workers(files) == workers(files, workers=5) == 4
    monkeypatch.setattr(machine, "shared_bytes", lambda: 1000)
    assert workers(files) == 0
    monkeypatch.setattr(machine, "shared_bytes", lambda: None)
    monkeypatch.setattr("sys.platform", "darwin")  # where they would be spawned, and a script would need a guard
    assert (workers(files), workers(files, workers=2)) == (0, 2)


def test_a_killed_worker_is_one_line(files: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()

    def deadly(path: Path) -> Image.Image:
        if os.getpid() != here and path == files.paths[10]:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(path)

    monkeypatch.setattr(loading, "read", deadly)
    with pytest.raises(UserError, match=r"has died.*--workers") as caught:
        list(Loader(files, batch=4, seed=0, image_size=8, workers=2, shuffle=False).epoch(0))
    assert "\n" not in str(caught.value)


def test_a_worker_killed_while_it_hands_a_batch_over_is_one_line(
    files: FileSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> Iterator[Batch]:
        yield next(batches(1))
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(loading, "DataLoader", lost)
    with pytest.raises(UserError, match=r"has died.*--workers"):
        list(Loader(files, batch=4, seed=0, image_size=8, workers=2).epoch(0))


def test_what_a_worker_raises_is_not_called_its_death(files: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> Image.Image:
        raise RuntimeError("of the decoder's own")

    monkeypatch.setattr(loading, "read", broken)
    with pytest.raises(RuntimeError, match="of the decoder's own"):
        list(Loader(files, batch=4, seed=0, image_size=8, workers=2, shuffle=False).epoch(0))
