"""Many runs: teachers first, students as soon as their teachers are there. No training in this process.

Order and repetition need no book of their own: a finished run is known by its folder, an interrupted one goes on from
its resume state, so the same command again does what is left. Where the work is done is an engine's business: processes
of this machine, or a Ray cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from antishortcut.launch.place import Done, Place, Say, another, check_images, finished, scored, state
from antishortcut.run import Recipe
from antishortcut.signals import AGAIN, Ended, handled
from antishortcut.suites import Job, teacher_key

__all__ = ["Engine", "Outcome", "Place", "another", "carry_out", "check_images", "finished", "scored", "state"]


@dataclass(frozen=True)
class Outcome:
    done: int
    failed: dict[str, str]  # run → what was wrong
    stopped: bool
    code: int = 130  # of the command, when stopped


class Engine(AbstractContextManager["Engine"], Protocol):
    """Does pieces of work somewhere. A ticket stands for one that was begun; leaving the engine waits for what runs."""

    slots: int  # pieces at a time

    def teach(self, recipe: Recipe) -> Any: ...
    def learn(self, job: Job) -> Any: ...
    def ready(self, tickets: Collection[Any]) -> list[Any]:
        """Wait until one of them at least is done; those that are."""
        ...

    def told(self, ticket: Any) -> Done:
        """What came of it: values, or "error", or "stopped"."""
        ...

    def stop(self) -> None:
        """Ask for an end: trainings save their state; asked again, they end at once."""
        ...


def carry_out(jobs: Sequence[Job], place: Place, engine: Engine, say: Say) -> Outcome:
    """Do all jobs; what is wrong with one run stops no other."""
    failed = {job.title: why for job in jobs if (why := another(job, place.runs))}
    for why in failed.values():
        say(f"failed: {why}")
    total, jobs = len(jobs), [job for job in jobs if job.title not in failed]
    teachers = {teacher_key(recipe): recipe for job in jobs for recipe in job.teachers}
    waiting = {job.title: {teacher_key(recipe) for recipe in job.teachers} for job in jobs}
    by_title = {job.title: job for job in jobs}
    done, stopped, code, started = 0, False, 130, time.monotonic()
    todo = {job.title for job in jobs if not finished(job, place.runs)}  # the others take no time worth counting
    many = len(todo)
    with _interrupted() as asked, engine:
        queue, running = list(teachers), dict[Any, str]()  # keys of teachers and titles of jobs; ticket → key or title
        try:
            while queue or running:
                while queue and len(running) < engine.slots:
                    key = queue.pop(0)
                    ticket = engine.learn(by_title[key]) if key in by_title else engine.teach(teachers[key])
                    running[ticket] = key
                for ticket in engine.ready(running):
                    key = running.pop(ticket)
                    told = engine.told(ticket)
                    if told.get("stopped"):
                        raise KeyboardInterrupt
                    if "error" in told:
                        lost = [key] if key in by_title else [t for t, need in waiting.items() if key in need]
                        failed |= dict.fromkeys(lost, str(told["error"]))
                        say(f"failed: {', '.join(lost[:3])}{' …' if len(lost) > 3 else ''}: {told['error']}")
                        waiting = {t: need for t, need in waiting.items() if t not in lost}
                    elif key in by_title:
                        done += 1
                        todo -= {key, *failed}
                        left = (time.monotonic() - started) / max(many - len(todo), 1) * len(todo)
                        say(f"{done + len(failed)}/{total} {key}: {_line(told, left)}")
                    else:
                        say(f"teacher {told['run']}: {told['told']}")
                        for need in waiting.values():
                            need.discard(key)
                queue += [title for title, need in waiting.items() if not need]
                waiting = {title: need for title, need in waiting.items() if need}
        except KeyboardInterrupt as signal:
            stopped, code = True, getattr(signal, "code", code)
            say("stopping: runs save their state")
            asked.then = engine.stop
            engine.stop()
    return Outcome(done, failed, stopped, code)


def _line(told: Done, left: float) -> str:
    return f"{told['told']}, {told['seconds']:.0f} s; about {left / 60:.0f} min left"


class _Asked:
    then: Callable[[], None] | None = None
    at: float | None = None  # the first time


@contextmanager
def _interrupted() -> Iterator[_Asked]:
    """A signal that asks for an end is a KeyboardInterrupt the first time; later ones do what was put in `then`."""
    asked = _Asked()

    def note(number: int, frame: object) -> None:
        if asked.at is None:
            asked.at = time.monotonic()
            raise Ended(number)
        if asked.then is not None and time.monotonic() - asked.at > AGAIN:
            asked.then()

    with handled(note):
        yield asked
