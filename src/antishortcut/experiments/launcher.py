"""Many runs: teachers first, students as soon as their teachers are there. No training in this process.

Nothing is recorded beside the run folders: a finished run is known by its folder, an interrupted one resumes, so the
same command again does what is left. An engine does the work: processes of this machine, or a Ray cluster.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from antishortcut.config.recipe import Execution, Recipe, Run, rewind_run, teach_run
from antishortcut.distributed import own_exit_code
from antishortcut.errors import UserError, first_line, of_disk, one_line
from antishortcut.evaluation import EvalContext, evaluate
from antishortcut.experiments.suites import Job, folder_of, teacher_key
from antishortcut.progress import first_process
from antishortcut.run_dir import InUse, RunDir, read_json, write_json
from antishortcut.training.pipeline import Session, distill, teach
from antishortcut.training.signals import AGAIN, Ended, Stopped, StopRequest, ending, handled

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


# --- Where a suite's runs lie ---

Item = Recipe | Job  # a teacher to train, by its recipe, or a student
Result = dict[
    str, Any
]  # "run", "score", "seconds", or "error", or "stopped": plain values that travel between processes
Pairs = dict[str, tuple[Any, Any]]  # setting → there, here

# evaluations on images that nobody makes here, and the folder below the data root where they are looked for
GIVEN = {
    "stylized": "{data}-stylized",
    "cue-conflict": "cue-conflict",
    "imagenet-r": "imagenet-r",
    "imagenet-a": "imagenet-a",
}
# all but clean; a test compares
OTHERS = (*GIVEN, "corruptions", "groups", "attack", "hard", "mechanism", "scenes", "cost")


@dataclass(frozen=True)
class Place:
    """Where runs and images lie, and how each run is computed."""

    runs: Path
    root: Path | None = None
    at: dict[str, Path] = field(default_factory=dict)
    execution: Execution = field(default_factory=Execution)
    download: bool = False


def finished(job: Job, runs: Path) -> bool:
    """Trained; scores that are missing are made by the next start."""
    return (folder_of(job, runs) / "result.json").exists()


def scored(job: Job, runs: Path) -> bool:
    """Whether every evaluation has left a score; of clean images, whose sets have names of their own, any."""
    there = {path.stem for path in (folder_of(job, runs) / "scores").glob("*.json")}
    return all(bool(there.difference(OTHERS)) if name == "clean" else name in there for name in job.on)


def state(job: Job, runs: Path) -> str:
    """ "finished", "begun", "waiting", or "another" when the folder holds another run."""
    if another(job, runs):
        return "another"
    if finished(job, runs):
        return "finished"
    return "begun" if (folder_of(job, runs) / "run.json").exists() else "waiting"


def another(job: Job, runs: Path) -> str:
    """Why the run in a job's folder is not this job's, as far as can be told without its images; else nothing."""
    folder, recipe = RunDir(folder_of(job, runs)), job.recipe
    if not (folder.path / "run.json").exists():
        return ""
    try:
        run, _ = folder.read()
    except UserError as error:
        return str(error)
    sections = {
        "student": (run.model, recipe.student),
        "data": (run.data, recipe.data.model_copy(update={"augmentation_cycle": recipe.augmentation_cycle})),
        "optim": (run.optim, recipe.optim),
        "task": (run.task, recipe.task),
    }
    pairs: Pairs = {"length": (run.length, recipe.length), "method": (run.method, job.method)}
    for section, (one, two) in sections.items():
        pairs |= {f"{section}.{key}": (getattr(one, key), value) for key, value in two}
    for key in ("student.weights", "student.digest"):  # the content counts, which is not read here
        pairs.pop(key)
    differences = _differences(pairs) or _differences(_options(run, job)) or _differences(_teacher(run, job))
    if not differences:
        return ""
    return f"{folder.path} holds another run ({'; '.join(differences[:3])}); use another --runs or remove that folder"


def _differences(pairs: Pairs) -> list[str]:
    return [f"{key} {one} there, {two} here" for key, (one, two) in pairs.items() if one != two]


def _options(run: Run, job: Job) -> Pairs:
    """The method's, with the defaults of what nobody set."""
    options = job.recipe.methods.get(job.method, {}) | job.options
    if options.keys() != run.options.keys():
        from antishortcut.methods import method_options  # torch, and only where a run is to be compared with

        try:
            options = method_options(job.method, options)
        except UserError:  # reported when it is carried out
            return {}
    return {f"method.{key}": (run.options.get(key), options.get(key)) for key in run.options | options}


def _teacher(run: Run, job: Job) -> Pairs:
    """Its hash, and the states that are learned from or compared with; a chosen one is known by its teacher."""
    own = job.recipe.teacher
    try:
        teacher, source = (teach_run(recipe, run.fingerprint) for recipe in (job.recipe, job.teachers[-1]))
    except UserError:  # weights that are not there
        return {}
    early = own.early_state
    if own.early == "rewind":
        early = f"{rewind_run(teacher, own.rewind_epochs, own.rewind_lr).hash}/final"
    learned = early if job.early is None else job.early if job.other is None else f"{source.hash}/{job.early}"
    states = {role: learned if role == "early" else role for role in run.roles if role != "chosen"}
    pairs: Pairs = {"teacher": (run.teacher, teacher.hash), "early": (run.early, early)}
    return pairs | {f"state {role}": (run.roles[role], name) for role, name in states.items()}


def check_images(jobs: Iterable[Job], place: Place) -> None:
    """Images of evaluations that are missing are reported before anything is trained."""
    root = place.root or Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    missing: dict[tuple[str, Path], int] = {}
    for job in jobs:
        for name in job.on:
            if name in GIVEN and name not in place.at:
                folder = root / GIVEN[name].format(data=job.recipe.data.name.partition(":")[0])
                if not folder.is_dir():
                    missing[name, folder] = missing.get((name, folder), 0) + 1
    if missing:
        lines = [f"{name} (no folder {folder}; {count} runs)" for (name, folder), count in missing.items()]
        ways = " ".join(f"--at {name}=FOLDER" for name in dict.fromkeys(name for name, _ in missing))
        hint = "; asd stylize makes stylised copies" if any(name == "stylized" for name, _ in missing) else ""
        raise UserError(f"images to score on are not there: {', '.join(lines)}; add {ways}{hint}")


# --- One teacher or student ---

GRACE = 60.0  # seconds to save a state in
MARKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def open_worker(place: Place) -> Callable[[Item], Result]:
    """What trains and scores in this process. Torch is imported here."""
    from antishortcut.training.pipeline import Session

    session = Session(place.runs, place.root, place.download, place.execution, quiet=True, reuse=True)
    worker = Worker(session, place.at)
    return lambda item: worker.teach(item) if isinstance(item, Recipe) else worker.learn(item)


def guarded(work: Callable[[], Result]) -> Result:
    """The result as plain values: an exception may not survive the way between processes."""
    try:
        return work()
    except (Stopped, KeyboardInterrupt):
        return {"stopped": True}
    except InUse as error:
        return {"error": str(error), "busy": True}
    except UserError as error:
        return {"error": str(error)}
    except OSError as error:  # a full disk, a folder that may not be written
        return {"error": of_disk(error)}
    except Exception as error:
        memory = sys.modules.get(
            "antishortcut.training.microbatch"
        )  # comes with the trainer; importing it would import torch
        if isinstance(error, MemoryError) or (memory is not None and memory.is_out_of_memory(error)):
            what = f"memory is short ({first_line(error)}); take a smaller batch, fewer --jobs or a larger machine"
            return {"error": one_line(what)}
        traceback.print_exc()  # a bug: where it happened must not be lost
        return {"error": f"{type(error).__name__}: {error}"}


class Command:
    """An item in a command of its own, in a session of its own: a terminal's Ctrl-C does not reach it."""

    def __init__(self, place: Place, item: Item, cards: str | None = None, directory: Path | None = None) -> None:
        """directory: where it runs if that is there, since a recipe may name files relative to it."""
        self._folder = tempfile.TemporaryDirectory(prefix="asd-")
        (Path(self._folder.name) / "work.pickle").write_bytes(pickle.dumps((place, item, os.getpid())))
        environ = environment(os.environ) | ({} if cards is None else {"CUDA_VISIBLE_DEVICES": cards})
        command = [sys.executable, "-m", "antishortcut.experiments.launcher", self._folder.name]
        cwd = directory if directory is not None and directory.is_dir() else None
        self.process = subprocess.Popen(
            command, env=environ, cwd=cwd, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def result(self) -> Result:
        """Wait for it. Stopped meanwhile, it saves its state; stopped again, or after a while, it is killed."""
        path = Path(self._folder.name) / "result.json"
        try:
            self.process.wait()
            if path.exists():
                return dict(read_json(path))
            return {"error": f"its process ended with code {self.process.returncode} (out of memory?)"}
        except BaseException:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # the processes of other devices end with the first
            self.process.wait()
            self._folder.cleanup()


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """In which Fabric counts processes itself, whoever started this one."""
    return {key: value for key, value in environ.items() if key not in MARKS and not key.startswith("SLURM_")}


def main(folder: Path) -> None:
    place, item, parent = pickle.loads((folder / "work.pickle").read_bytes())
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0
    if first:
        threading.Thread(target=_stop_without, args=(parent,), daemon=True).start()

    def work() -> Result:
        with ending(StopRequest()):  # before and after training, which has its own way to stop
            return open_worker(place)(item)

    result = guarded(work)
    if first:
        write_json(folder / "result.json", result)


def _stop_without(parent: int) -> None:
    """When the process that waits for this one is gone, stop as if it had said so."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    with own_exit_code():
        main(Path(sys.argv[1]))


# --- One job of a suite carried out ---


@dataclass(frozen=True)
class Worker:
    """Where a job's evaluations find their images, beside what training needs."""

    session: Session
    at: dict[str, Path]

    def teach(self, recipe: Recipe) -> dict[str, Any]:
        return self._result(RunDir(teach(recipe, self.session).folder(self.session.runs)))

    def learn(self, job: Job) -> dict[str, Any]:
        *_, source = [teach(recipe, self.session) for recipe in job.teachers]
        early = job.early if job.early is None or job.other is None else f"{source.hash}/{job.early}"
        run = distill(
            job.recipe,
            self.session,
            method=job.method,
            options=job.options,
            seed=job.seed,
            suite=job.suite,
            name=job.name,
            early=early,
        )
        folder = RunDir(run.folder(self.session.runs))
        if first_process():  # where several share a run, one of them scores it
            evaluate(folder, self._bench(job), job.on, device=self.device)
        return self._result(folder)

    @property
    def device(self) -> str:
        """Where students are scored: where they are trained, as far as that is known beforehand."""
        required = self.session.execution.accelerator
        return required if required != "auto" else "cuda" if torch.cuda.is_available() else "cpu"

    def _bench(self, job: Job) -> EvalContext:
        sets, session = self.session.sets(job.recipe.data), self.session
        bench = EvalContext(sets, session.runs, at=self.at, limit=job.images)
        return bench if session.root is None else replace(bench, root=session.root)

    def _result(self, folder: RunDir) -> dict[str, Any]:
        result, (name, value) = folder.result(), folder.primary_metric()
        score = f"{result.get('set', '?')} {name} {value:.3f}"
        return {"run": str(folder.path), "score": score, "seconds": result.get("seconds", 0.0)}
