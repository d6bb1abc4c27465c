"""Many runs: teachers first, students as soon as their teachers are there. No training in this process.

Nothing is recorded beside the run folders: a finished run is known by its folder, an interrupted one resumes, so the
same command again does what is left. An engine does the work: processes of this machine, or a Ray cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from antishortcut.experiments.place import Item, Place, Result, another, check_images, finished, scored, state
from antishortcut.experiments.suites_suites import Job, teacher_key
from antishortcut.training.signals import AGAIN, Ended, handled

__all__ = ["Engine", "Outcome", "Place", "another", "carry_out", "check_images", "finished", "scored", "state"]


@dataclass(frozen=True)
class Outcome:
    done: int
    failed: dict[str, str]  # run → what was wrong
    stopped: bool
    code: int = 130  # of the command, when stopped


class Engine(AbstractContextManager["Engine"], Protocol):
    """Trains teachers and students somewhere. Leaving it waits for what runs."""

    slots: int  # how many at a time

    def submit(self, item: Item) -> Any:
        """Start on it; returns a ticket."""
        ...

    def ready(self, tickets: Collection[Any]) -> list[Any]:
        """Wait until at least one is done; those that are."""
        ...

    def result(self, ticket: Any) -> Result: ...
    def stop(self) -> None:
        """Trainings save their state and end; called again, they end at once."""
        ...


def carry_out(jobs: Sequence[Job], place: Place, engine: Engine, say: Callable[[str], None]) -> Outcome:
    """Do all jobs; one that fails stops no other."""
    failed = {job.title: why for job in jobs if (why := another(job, place.runs))}
    for why in failed.values():
        say(f"failed: {why}")
    fit = [job for job in jobs if job.title not in failed]
    todo = {job.title: job for job in fit if not finished(job, place.runs) or not scored(job, place.runs)}
    teachers = {teacher_key(recipe): recipe for job in todo.values() for recipe in job.teachers}
    waiting = {title: {teacher_key(recipe) for recipe in job.teachers} for title, job in todo.items()}
    started, done = time.monotonic(), len(fit) - len(todo)
    queue, running = list(teachers), dict[Any, str]()  # keys of teachers and titles of jobs
    with _signals() as again, engine:
        try:
            while queue or running:
                while queue and len(running) < engine.slots:
                    key = queue.pop(0)
                    running[engine.submit(todo.get(key) or teachers[key])] = key
                for ticket in engine.ready(running):
                    key, result = running.pop(ticket), engine.result(ticket)
                    if result.get("stopped"):
                        raise KeyboardInterrupt
                    if "error" in result:
                        lost = [key] if key in todo else [title for title, need in waiting.items() if key in need]
                        failed |= dict.fromkeys(lost, str(result["error"]))
                        waiting = {title: need for title, need in waiting.items() if title not in lost}
                        say(f"failed: {', '.join(lost[:3])}{' …' if len(lost) > 3 else ''}: {result['error']}")
                    elif key in todo:
                        done += 1
                        left = len(jobs) - done - len(failed)
                        minutes = (time.monotonic() - started) / (len(todo) - left) * left / 60
                        line = f"{result['score']}, {result['seconds']:.0f} s; about {minutes:.0f} min left"
                        say(f"{len(jobs) - left}/{len(jobs)} {key}: {line}")
                    else:
                        say(f"teacher {result['run']}: {result['score']}")
                        for need in waiting.values():
                            need.discard(key)
                queue += [title for title, need in waiting.items() if not need]
                waiting = {title: need for title, need in waiting.items() if need}
        except KeyboardInterrupt as signal:
            say("stopping: runs save their state")
            again.append(engine.stop)
            engine.stop()
            return Outcome(done, failed, True, getattr(signal, "code", 130))
    return Outcome(done, failed, False)


@contextmanager
def _signals() -> Iterator[list[Callable[[], None]]]:
    """A stop signal is a KeyboardInterrupt the first time; later ones call what is in the list."""
    first, again = list[float](), list[Callable[[], None]]()

    def handle(number: int, frame: object) -> None:
        if not first:
            first.append(time.monotonic())
            raise Ended(number)
        if time.monotonic() - first[0] > AGAIN:
            for call in again:
                call()

    with handled(handle):
        yield again
