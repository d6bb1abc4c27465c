"""Many runs: teachers first, students as soon as their teachers are trained. No training in this process.

Nothing is recorded beside the run folders: a finished run is skipped and an interrupted one resumes, so the same
command again does what is left. An engine starts the runs: processes of this machine, or a Ray cluster.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from antishortcut.config.recipe import Run, distill_run, rewind_run, teach_run
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS
from antishortcut.experiments.jobs import Job, folder_of, teacher_key
from antishortcut.experiments.worker import Item, Place, Result
from antishortcut.run_dir import RunDir
from antishortcut.training.signals import AGAIN, Ended, handled

# evaluation → the folder of its images below the data root
IMAGE_FOLDERS = {
    "stylized": "{data}-stylized",
    "cue-conflict": "cue-conflict",
    "imagenet-r": "imagenet-r",
    "imagenet-a": "imagenet-a",
}


@dataclass(frozen=True)
class Outcome:
    done: int
    failed: dict[str, str]  # run → the error
    stopped: bool
    code: int = 130  # exit code if stopped


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


def run_jobs(jobs: Sequence[Job], place: Place, engine: Engine, say: Callable[[str], None]) -> Outcome:
    """Do all jobs; one that fails stops no other."""
    failed = {job.title: why for job in jobs if (why := mismatch(job, place.runs))}
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


# --- The folders of a suite ---


def finished(job: Job, runs: Path) -> bool:
    """Whether it is trained; it may still be scored."""
    return (folder_of(job, runs) / "result.json").exists()


def scored(job: Job, runs: Path) -> bool:
    """Whether every evaluation has left a score. `clean` has a file per test set, under other names."""
    names = {path.stem for path in (folder_of(job, runs) / "scores").glob("*.json")}
    return all(bool(names.difference(EVALUATIONS)) if name == "clean" else name in names for name in job.on)


def state(job: Job, runs: Path) -> str:
    """ "finished", "begun", "waiting", or "another" if the folder holds another run."""
    if mismatch(job, runs):
        return "another"
    if finished(job, runs):
        return "finished"
    return "begun" if (folder_of(job, runs) / "run.json").exists() else "waiting"


def mismatch(job: Job, runs: Path) -> str:
    """How the run in a job's folder differs from the job, on the same images; else an empty string."""
    folder = RunDir(folder_of(job, runs))
    if not (folder.path / "run.json").exists():
        return ""
    try:
        run, _ = folder.read()
    except UserError as error:
        return str(error)
    try:
        expected = _expected_run(job, run)
    except UserError:  # missing weights, a wrong option: reported when it is trained
        return ""
    there, here = _flat(run), _flat(expected)
    keys = [key for key in there | here if there.get(key) != here.get(key)]
    differences = [f"{key} {there.get(key)} there, {here.get(key)} here" for key in keys]
    if not differences:
        return ""
    return f"{folder.path} holds another run ({'; '.join(differences[:3])}); use another --runs or remove that folder"


def _expected_run(job: Job, run: Run) -> Run:
    """The run of a job on the images of another run. A state that is chosen during training is that run's."""
    from antishortcut.methods import method_options, method_roles

    recipe, settings = job.recipe, job.recipe.teacher
    teacher, source = (teach_run(each, run.fingerprint) for each in (recipe, job.teachers[-1]))
    early = settings.early_state
    if settings.early == "rewind":
        early = f"{rewind_run(teacher, settings.rewind_epochs, settings.rewind_lr).hash}/final"
    learned = early if job.early is None else job.early if job.other is None else f"{source.hash}/{job.early}"
    options = method_options(job.method, recipe.methods.get(job.method, {}) | job.options)
    states = {"early": learned, "chosen": run.roles.get("chosen", "")}
    roles = {role: states.get(role, role) for role in method_roles(job.method, options)}
    names: dict[str, Any] = {"suite": job.suite, "name": job.name, "seed": job.seed}
    return distill_run(
        recipe,
        run.fingerprint,
        method=job.method,
        options=options,
        roles=roles,
        teacher=teacher.hash,
        early=early,
        **names,
    )


def _flat(run: Run) -> dict[str, Any]:
    flat = dict[str, Any]()
    for key, value in run.model_dump(mode="json", exclude={"keep": True, "model": {"weights"}}).items():
        flat |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def check_images(jobs: Iterable[Job], place: Place) -> None:
    """Images of evaluations that are missing are reported before anything is trained."""
    root = place.root or Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    missing: dict[tuple[str, Path], int] = {}
    for job in jobs:
        for name in job.on:
            if name in IMAGE_FOLDERS and name not in place.at:
                folder = root / IMAGE_FOLDERS[name].format(data=job.recipe.data.name.partition(":")[0])
                if not folder.is_dir():
                    missing[name, folder] = missing.get((name, folder), 0) + 1
    if missing:
        lines = [f"{name} (no folder {folder}; {count} runs)" for (name, folder), count in missing.items()]
        flags = " ".join(f"--at {name}=FOLDER" for name in dict.fromkeys(name for name, _ in missing))
        hint = "; asd stylize makes stylised copies" if any(name == "stylized" for name, _ in missing) else ""
        raise UserError(f"images to score on are not there: {', '.join(lines)}; add {flags}{hint}")
