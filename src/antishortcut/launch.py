"""Many runs on one machine: teachers first, students as soon as their teachers are there. No torch in this process.

Order and repetition need no book of their own: a finished run is known by its folder, an interrupted one goes on from
its resume state, so the same command again does what is left.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from antishortcut.errors import UserError
from antishortcut.folder import Folder
from antishortcut.run import Execution, Recipe
from antishortcut.suites import Job, folder_of, teacher_key

Say = Callable[[str], None]
Done = dict[str, Any]
STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Place:
    """Where runs and images lie, and how each run is computed."""

    runs: Path
    root: Path | None = None
    at: dict[str, Path] = field(default_factory=dict)
    execution: Execution = field(default_factory=Execution)
    download: bool = False


@dataclass(frozen=True)
class Outcome:
    done: int
    failed: dict[str, str]  # run → what was wrong
    stopped: bool


def finished(job: Job, runs: Path) -> bool:
    """Trained; scores that are missing are made by the next start."""
    return (folder_of(job, runs) / "result.json").exists()


def another(job: Job, runs: Path) -> str:
    """In what the run in a job's folder is another, as far as can be told without its images; else nothing."""
    folder = Folder(folder_of(job, runs))
    if not (folder.path / "run.json").exists():
        return ""
    try:
        there, _ = folder.read()
    except UserError as error:
        return str(error)
    recipe = job.recipe
    pairs: dict[str, tuple[Any, Any]] = {"epochs": (there.epochs, recipe.epochs), "method": (there.method, job.method)}
    pairs |= {"student": (there.model.name, recipe.student.name)}
    pairs |= {f"method.{key}": (there.options.get(key), value) for key, value in job.options.items()}
    for name, one, two in (("data", there.data, recipe.data), ("optim", there.optim, recipe.optim)):
        keys = [key for key in type(one).model_fields if key != "views"]  # a run holds them resolved
        pairs |= {f"{name}.{key}": (getattr(one, key), getattr(two, key)) for key in keys}
    found = [f"{name} {one} there, {two} here" for name, (one, two) in pairs.items() if one != two]
    if not found:
        return ""
    return f"{folder.path} holds another run ({'; '.join(found[:3])}); use another --runs or remove that folder"


def state(job: Job, runs: Path) -> str:
    """ "finished", "begun", "waiting", or "another" when the folder holds another run."""
    if another(job, runs):
        return "another"
    if finished(job, runs):
        return "finished"
    return "begun" if (folder_of(job, runs) / "run.json").exists() else "waiting"


def carry_out(jobs: Sequence[Job], place: Place, processes: int, say: Say) -> Outcome:
    """Do all jobs, `processes` at a time; what is wrong with one run stops no other."""
    failed = {job.title: why for job in jobs if (why := another(job, place.runs))}
    for why in failed.values():
        say(f"failed: {why}")
    total, jobs = len(jobs), [job for job in jobs if job.title not in failed]
    teachers = {teacher_key(recipe): recipe for job in jobs for recipe in job.teachers}
    waiting = {job.title: {teacher_key(recipe) for recipe in job.teachers} for job in jobs}
    by_title = {job.title: job for job in jobs}
    done, stopped, started = 0, False, time.monotonic()
    todo = {job.title for job in jobs if not finished(job, place.runs)}  # the others take no time worth counting
    many = len(todo)
    with _pool(place, processes) as pool, _interrupted() as asked:
        running: dict[Future[Done], str] = {}
        try:
            for key, recipe in teachers.items():
                running[_submit(pool, _teach, recipe)] = key
            while running:
                ready, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ready:
                    title = running.pop(future)
                    told = future.result()
                    if told.get("stopped"):
                        raise KeyboardInterrupt
                    if "error" in told:
                        lost = [title] if title in by_title else [t for t, need in waiting.items() if title in need]
                        failed |= dict.fromkeys(lost, told["error"])
                        say(f"failed: {', '.join(lost[:3])}{' …' if len(lost) > 3 else ''}: {told['error']}")
                        waiting = {t: need for t, need in waiting.items() if t not in lost}
                    elif title in by_title:
                        done += 1
                        todo -= {title, *failed}
                        left = (time.monotonic() - started) / max(many - len(todo), 1) * len(todo)
                        say(f"{done + len(failed)}/{total} {title}: {_line(told, left)}")
                    else:
                        say(f"teacher {told['run']}: {told['set']} accuracy {told['accuracy']:.3f}")
                        for need in waiting.values():
                            need.discard(title)
                for title in [t for t, need in waiting.items() if not need]:
                    del waiting[title]
                    running[_submit(pool, _learn, by_title[title])] = title
        except KeyboardInterrupt:
            stopped = True
            say("stopping: runs save their state")
            asked.then = lambda: _stop(pool)
            _stop(pool)
            pool.shutdown(wait=True, cancel_futures=True)
        except BrokenProcessPool:
            raise UserError("a process ended from outside (out of memory?); the same command goes on") from None
    return Outcome(done, failed, stopped)


def _line(told: Done, left: float) -> str:
    return f"{told['set']} accuracy {told['accuracy']:.3f}, {told['seconds']:.0f} s; about {left / 60:.0f} min left"


def _pool(place: Place, processes: int) -> ProcessPoolExecutor:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = place.execution.threads or max(cores // processes, 1)
    here = replace(place, execution=place.execution.model_copy(update={"threads": threads}))
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _open, (here,))


def _submit(pool: ProcessPoolExecutor, work: Callable[[Any], Done], of: Any) -> Future[Done]:
    """A process that starts here holds signals back until it knows what to do with them (`_open`)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        return pool.submit(work, of)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


class _Asked:
    then: Callable[[], None] | None = None


@contextmanager
def _interrupted() -> Iterator[_Asked]:
    """Ctrl-C and SIGTERM are a KeyboardInterrupt the first time; later ones do what was put in `then`."""
    asked = _Asked()

    def note(number: int, frame: object) -> None:
        if asked.then is None:
            raise KeyboardInterrupt
        asked.then()

    before = {number: signal.signal(number, note) for number in STOPS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(pool: ProcessPoolExecutor) -> None:
    """Ask the processes to stop; a training saves its state first, and asked again stops at once."""
    for process in list((pool._processes or {}).values()):
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGTERM)


# what a process of the pool remembers
_worker: Any = None  # opened once, so that images are too
_busy = _stopping = False


def _open(place: Place) -> None:
    global _worker
    os.setpgrp()  # a terminal's Ctrl-C is for the first process, which passes it on once
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that came before that
    signal.signal(signal.SIGTERM, _note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    threading.Thread(target=_orphaned, daemon=True).start()
    from antishortcut.work import Worker
    from antishortcut.workflow import Workshop

    shop = Workshop(place.runs, place.root, place.download, place.execution, quiet=True)
    _worker = Worker(shop, place.at)


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
    """What came of it, as plain values: an exception may not survive the way between processes."""
    global _busy, _stopping
    from antishortcut.train import Stopped

    try:
        if not _stopping:
            _busy = True
            return work()
    except (Stopped, KeyboardInterrupt):
        _stopping = True
    except UserError as error:
        return {"error": str(error)}
    except Exception as error:
        traceback.print_exc()  # a mistake of ours: where it happened must not be lost
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        _busy = False
    return {"stopped": True}
