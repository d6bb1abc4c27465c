"""Processes of this machine, with its threads and devices shared out. No torch in the first process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from antishortcut.errors import UserError
from antishortcut.launch.place import Done, Place
from antishortcut.launch.several import worker_of
from antishortcut.launch.task import told
from antishortcut.machine import cores
from antishortcut.run import Recipe
from antishortcut.suites import Job

STOPS = (signal.SIGINT, signal.SIGTERM)
CARDS = Path("/proc/driver/nvidia/gpus")  # a folder for every card, where the driver is


class Processes:
    """An engine: a pool of processes that live as long as the suite."""

    def __init__(self, place: Place, slots: int) -> None:
        self.slots = slots
        each = place.execution.devices
        threads = place.execution.threads or max(cores() // (slots * each), 1)
        here = replace(place, execution=place.execution.model_copy(update={"threads": threads}))
        context = multiprocessing.get_context("spawn")
        cards = context.SimpleQueue()  # one for every process to take, or several
        for card in shared_out(slots, place.execution.accelerator, os.environ, CARDS, each):
            cards.put(card)
        self._pool = ProcessPoolExecutor(slots, context, _open, (here, None if cards.empty() else cards))

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def teach(self, recipe: Recipe) -> Future[Done]:
        return self._submit(_teach, recipe)

    def learn(self, job: Job) -> Future[Done]:
        return self._submit(_learn, job)

    def _submit(self, work: Callable[[Any], Done], of: Any) -> Future[Done]:
        """A process that starts here holds signals back until it knows what to do with them (`_open`)."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            return self._pool.submit(work, of)
        except BrokenProcessPool:
            raise _ended() from None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def ready(self, tickets: Collection[Future[Done]]) -> list[Future[Done]]:
        return list(wait(tickets, return_when=FIRST_COMPLETED).done)

    def told(self, ticket: Future[Done]) -> Done:
        try:
            return ticket.result()
        except BrokenProcessPool:
            raise _ended() from None

    def stop(self) -> None:
        for process in list((self._pool._processes or {}).values()):
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGTERM)


def _ended() -> UserError:
    return UserError("a process ended from outside (out of memory?); the same command goes on")


def shared_out(slots: int, accelerator: str, environ: Mapping[str, str], cards: Path, each: int = 1) -> list[str]:
    """The cards of each process, as CUDA_VISIBLE_DEVICES names them, in turn; none where there is none."""
    if accelerator not in ("auto", "cuda"):
        return []
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        there = [name.strip() for name in named.split(",") if name.strip()]
    else:
        there = [str(number) for number in range(len(list(cards.iterdir())))] if cards.is_dir() else []
    many = min(each, len(there))
    return [
        ",".join(there[(slot * many + number) % len(there)] for number in range(many)) for slot in range(slots) if there
    ]


# what a process of the pool remembers
_worker: Any = None  # opened once, so that images are too
_busy = _stopping = False


def _open(place: Place, cards: SimpleQueue[str] | None) -> None:
    global _worker
    os.setpgrp()  # a terminal's Ctrl-C is for the first process, which passes it on once
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that came before that
    signal.signal(signal.SIGTERM, _note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    threading.Thread(target=_orphaned, daemon=True).start()
    if cards is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = cards.get()  # before torch is imported
    _worker = worker_of(place)


def _orphaned() -> None:
    """When the first process is gone, killed or with its terminal, stop as if it had asked to, and end."""
    first = multiprocessing.parent_process()
    if first is not None:
        first.join()
        os.kill(os.getpid(), signal.SIGTERM)
        while _busy:
            time.sleep(0.05)
        os._exit(1)


def _note(number: int, frame: object) -> None:
    """Begin nothing more, and leave what prepares or scores a training. A training has its own way to stop."""
    global _stopping
    _stopping = True
    if _busy:
        raise KeyboardInterrupt


def _teach(recipe: Recipe) -> Done:
    return _told(lambda: _worker.teach(recipe))


def _learn(job: Job) -> Done:
    return _told(lambda: _worker.learn(job))


def _told(work: Callable[[], Done]) -> Done:
    """A race with `_note`: it raises only while this is busy, and then what it raises is caught."""
    global _busy, _stopping

    def begun() -> Done:
        global _busy
        _busy = True
        return work()

    try:
        found = {"stopped": True} if _stopping else told(begun)
    except KeyboardInterrupt:
        found = {"stopped": True}
    finally:
        _busy = False
    _stopping = _stopping or "stopped" in found
    return found
