"""The processes that make copies: every one knows the clean images and fills in the rows of whole chunks."""
# N images, B images of a chunk, S side

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

import numpy as np
from PIL import Image

from ...errors import UserError
from ...machine import cores
from ...types import AnySet, FileSet
from ..copies import fill
from ..loading import MARGIN
from ..pictures import fit, read
from .chunks import corrupt
from .constants import CHUNK, SEVERITIES, table_of
from .frost import Frost
from .noise import Bytes

FEW = 200_000_000  # pixels that one process has nearly done when others have started


@dataclass(frozen=True)
class Work:
    """What every process knows."""

    images: Bytes | tuple[Path, ...]  # (N, S, S, 3), or files
    side: int
    seed: int
    frost: Frost | None = None

    @property
    def chunks(self) -> int:
        return -(-len(self.images) // CHUNK[table_of(self.side)])

    def clean(self, chunk: int) -> tuple[int, Bytes]:
        """Where a chunk starts, and its images (B, S, S, 3); files are cut as they are for evaluation."""
        size = CHUNK[table_of(self.side)]
        part = self.images[chunk * size : (chunk + 1) * size]
        if isinstance(part, tuple):
            part = np.stack([np.asarray(fit(read(path), self.side, MARGIN)) for path in part])
        return chunk * size, part

    def make(self, name: str, chunk: int, path: Path) -> None:
        """Fill in the rows of one chunk at all severities."""
        start, clean = self.clean(chunk)
        for severity in SEVERITIES:
            made = corrupt(clean, name, severity, seed=self.seed, chunk=chunk, frost=self.frost)
            fill(path, (severity - 1) * len(self.images) + start, made)


def pixels(images: AnySet, side: int) -> Bytes | tuple[Path, ...]:
    """Images in memory as (N, S, S, 3), resized when they have another side; files as they are."""
    if isinstance(images, FileSet):
        return images.paths
    held = images.image.permute(0, 2, 3, 1).contiguous().numpy()
    if held.shape[1:3] == (side, side):
        return held
    return np.stack([np.asarray(fit(Image.fromarray(image), side)) for image in held])


def clean_chunk(images: AnySet, side: int, chunk: int) -> Bytes:
    """The images of a chunk before they are corrupted, (B, S, S, 3)."""
    return Work(pixels(images, side), side, 0).clean(chunk)[1]


Job = tuple[str, int, Path]


@contextmanager
def workers(work: Work, files: int, processes: int | None) -> Iterator[Callable[[list[Job]], Iterable[int]]]:
    """A function that does jobs and counts them, here or in other processes; None: as many as the work is worth."""
    if processes is None:
        processes = cores() if files * len(SEVERITIES) * len(work.images) * work.side**2 > FEW else 1
    processes = min(processes, work.chunks)
    if processes == 1:
        yield lambda jobs: _one_by_one(work, jobs)
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _enter, (work,))
    try:
        with _single_threaded():
            yield lambda jobs: _side_by_side(pool, jobs)
    except BrokenProcessPool:
        hint = "for want of memory perhaps, or a script of yours does not guard its main part; try processes=1"
        raise UserError(f"a process that made copies has died, {hint}") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _one_by_one(work: Work, jobs: list[Job]) -> Iterator[int]:
    for done, job in enumerate(jobs, start=1):
        work.make(*job)
        yield done


def _side_by_side(pool: ProcessPoolExecutor, jobs: list[Job]) -> Iterator[int]:
    futures: list[Future[None]] = [pool.submit(_do, *job) for job in jobs]
    try:
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            yield done
    except BaseException:
        for future in futures:
            future.cancel()
        wait(futures)  # the file is removed next: nobody may be at it
        raise


_work: Work | None = None  # of a worker process


def _enter(work: Work) -> None:
    """A worker begins. Ctrl-C is for its parent; when that dies without a word, so does the worker."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _do(name: str, chunk: int, path: Path) -> None:
    assert _work is not None
    _work.make(name, chunk, path)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes started meanwhile use one thread each: numpy's and torch's libraries read this when they load."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
