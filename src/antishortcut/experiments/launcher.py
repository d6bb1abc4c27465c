"""Many runs: teachers first, students as soon as their teachers are trained. No training in this process.

Nothing is recorded beside the run folders: a finished run is skipped and an interrupted one resumes, so the same
command again does what is left. An engine starts the runs: processes of this machine, or a running Ray cluster.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from antishortcut import __version__
from antishortcut.config.recipe import DIALS, Run, distill_run, early_state, teach_run
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS
from antishortcut.experiments.jobs import Job, teacher_key
from antishortcut.experiments.worker import Command, Item, Place, Result, data_root, guarded
from antishortcut.hardware import cores
from antishortcut.run_dir import RunDir, difference
from antishortcut.training.signals import AGAIN, Interrupted, handled


@dataclass(frozen=True)
class Outcome:
    done: int
    failed: dict[str, str]  # run → the error
    stopped: int = 0  # the exit code if it was stopped


def run_jobs(jobs: Sequence[Job], place: Place, engine: Engine, say: Callable[[str], None]) -> Outcome:
    """Do all jobs; one that fails stops no other."""
    failed = {job.title: why for job in jobs if (why := mismatch(job, place.runs))}
    for why in failed.values():
        say(f"failed: {why}")
    fit = [job for job in jobs if job.title not in failed]
    done_before = [job.title for job in fit if _done(job, place)]
    todo = {job.title: job for job in fit if job.title not in done_before}
    teachers = {teacher_key(recipe): recipe for job in todo.values() for recipe in job.teachers}
    waiting = {title: {teacher_key(recipe) for recipe in job.teachers} for title, job in todo.items()}
    started, done = time.monotonic(), len(done_before)
    items: dict[str, Item] = {**teachers, **todo}
    queue, running = list(teachers), set[str]()  # keys of teachers and titles of jobs
    with _signals(engine.stop), engine:
        try:
            while queue or running:
                while queue and len(running) < engine.slots:
                    key = queue.pop(0)
                    engine.submit(key, items[key])
                    running.add(key)
                for key, result in engine.wait().items():
                    running.remove(key)
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
            engine.stop()
            return Outcome(done, failed, getattr(signal, "code", 130))
    return Outcome(done, failed)


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """A stop signal is a KeyboardInterrupt the first time; later ones call `stop`."""
    first = list[float]()

    def handle(number: int, frame: object) -> None:
        if not first:
            first.append(time.monotonic())
            raise Interrupted(number)
        if time.monotonic() - first[0] > AGAIN:
            stop()

    with handled(handle):
        yield


# --- The folders of a suite ---


def _done(job: Job, place: Place) -> bool:
    """Whether nothing is left to do. With --at the images may be others: the run itself compares them."""
    return RunDir(place.runs / job.title).finished and scored(job, place.runs) and not place.at


def scored(job: Job, runs: Path) -> bool:
    """Whether every evaluation has left a score that can be read. `clean` has a file per test set, by its own name."""
    folder = RunDir(runs / job.title)
    readable = {name.partition(" ")[0] for name in folder.scores()}
    damaged = {path.stem.partition(" ")[0] for path in (folder.path / "scores").glob("*.json")} - readable
    if "clean" in job.on and not (readable - EVALUATIONS.keys() and damaged <= EVALUATIONS.keys()):
        return False
    return readable >= set(job.on) - {"clean"}


def state(job: Job, runs: Path) -> str:
    """ "finished", "begun", "waiting", or "another" if the folder holds another run."""
    if mismatch(job, runs):
        return "another"
    if RunDir(runs / job.title).finished:
        return "finished"
    return "begun" if (runs / job.title / "run.json").exists() else "waiting"


def mismatch(job: Job, runs: Path) -> str:
    """How the run in a job's folder differs from the job, on the same images, or is damaged; else an empty string."""
    folder = RunDir(runs / job.title)
    if not (folder.path / "run.json").exists():
        return ""
    try:
        run, _ = folder.read()
        if folder.finished:
            folder.result()  # of a damaged one, an error
    except UserError as error:
        return str(error)
    try:
        expected = _expected_run(job, run)
    except UserError:  # missing weights, a wrong option: reported when it is trained
        return ""
    if run == expected:
        return ""
    return f"{folder.path} holds another run ({difference(run, expected)}); use another --runs or remove that folder"


def _expected_run(job: Job, run: Run) -> Run:
    """The run of a job on the images of another run. What is chosen during training, by the dial too, is that run's."""
    from antishortcut.methods import method_options, method_roles

    recipe = job.recipe
    teacher, source = (teach_run(each, run.fingerprint) for each in (recipe, job.teachers[-1]))
    early = early_state(recipe, teacher)
    learned = f"{source.hash}/{job.early}" if job.other is not None else early_state(recipe, teacher, job.early)
    options = method_options(job.method, recipe.methods.get(job.method, {}) | job.options)
    if job.budget is not None:
        options |= {key: run.options[key] for key in (*DIALS[job.method], "reference") if key in run.options}
    other = {"early": learned, "chosen": run.roles.get("chosen", "")}
    roles = {role: other.get(role, role) for role in method_roles(job.method, options, weak=job.weak)}
    names = job.model_dump(include={"suite", "name", "seed", "method"})
    taught = teacher.hash if recipe.data.unlabelled is None else run.teacher  # on images with another fingerprint
    names |= {"options": options, "roles": roles, "teacher": taught, "early": early}
    expected = distill_run(recipe, run.fingerprint, **names)
    model = expected.model.model_copy(update={"weights": run.model.weights})  # their digest is compared
    return expected.model_copy(update={"model": model})


def check_images(jobs: Iterable[Job], place: Place) -> None:
    """Images of evaluations that are missing are reported before anything is trained."""
    needed = Counter(
        (name, data_root(place.root) / EVALUATIONS[name].folder_of(job.recipe.data.name))
        for job in jobs
        for name in job.on
        if EVALUATIONS[name].folder and name not in place.at
    )
    missing = {key: count for key, count in needed.items() if not key[1].is_dir()}
    if missing:
        lines = [f"{name} (no folder {folder}; {count} runs)" for (name, folder), count in missing.items()]
        flags = " ".join(f"--at {name}=FOLDER" for name in dict.fromkeys(name for name, _ in missing))
        hint = "; asd stylize makes stylised copies" if any(name == "stylized" for name, _ in missing) else ""
        raise UserError(f"images to score on are not there: {', '.join(lines)}; add {flags}{hint}")


# --- Engines: both start each run with `worker.Command` ---

# Nothing is kept in Ray: a task that is retried because a node died resumes from its run folder, so all nodes must see
# runs and images under the same paths.

GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for every GPU, if the driver is there
RETRIES = 5  # of a run whose process or node was lost
PATIENCE = 120.0  # seconds a retried run waits for its lost process to release its folder
CONNECT = 5.0  # seconds to reach the cluster's head


class Engine(AbstractContextManager["Engine"], Protocol):
    """Trains teachers and students somewhere. Leaving it waits for those that run."""

    slots: int  # how many at a time

    def submit(self, key: str, item: Item) -> None:
        """Start on it."""

    def wait(self) -> dict[str, Result]:
        """Wait until at least one is done; the results of those that are, by key."""

    def stop(self) -> None:
        """Trainings save their state and end; called again, they end at once."""


class LocalEngine(AbstractContextManager["LocalEngine"]):
    """One process per run; they share the cores and GPUs of this machine."""

    def __init__(self, place: Place, slots: int) -> None:
        self.slots, devices = slots, place.execution.devices
        self._place = place.with_threads(place.execution.threads or max(cores() // (slots * devices), 1))
        self._free = share_gpus(slots, place.execution.accelerator, os.environ, GPUS, devices)
        self._running: dict[str, Command] = {}

    def __exit__(self, *exc: object) -> None:
        while self._running:
            self.wait()

    def submit(self, key: str, item: Item) -> None:
        self._running[key] = Command(self._place, item, self._free.pop(0) if self._free else None)

    def wait(self) -> dict[str, Result]:
        while not (done := [key for key, command in self._running.items() if command.process.poll() is not None]):
            time.sleep(0.05)
        commands = {key: self._running.pop(key) for key in done}
        self._free += [command.gpus for command in commands.values() if command.gpus is not None]
        return {key: command.result() for key, command in commands.items()}

    def stop(self) -> None:
        for command in self._running.values():
            command.process.terminate()


def share_gpus(slots: int, accelerator: str, environ: Mapping[str, str], folder: Path, each: int = 1) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each slot, in turn; empty if there is no GPU."""
    if accelerator not in ("auto", "cuda"):
        return []
    if (visible := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        gpus = [name.strip() for name in visible.split(",") if name.strip()]
    else:
        gpus = [str(number) for number in range(len(list(folder.iterdir())))] if folder.is_dir() else []
    many = min(each, len(gpus))
    return [",".join(gpus[(slot * many + n) % len(gpus)] for n in range(many)) for slot in range(slots) if gpus]


class RayEngine(AbstractContextManager["RayEngine"]):
    """A task per run, with the cores and GPUs it needs, retried if its node dies."""

    def __init__(self, place: Place, address: str, slots: int | None = None, gpus: float | None = None) -> None:
        """gpus: of a run, by default as many as it has devices."""
        self._ray = ray = _connect(address)
        execution, devices, threads = place.execution, place.execution.devices, place.execution.threads or 1
        if gpus is None:
            auto = execution.accelerator == "auto" and ray.cluster_resources().get("GPU", 0) > 0
            gpus = float(devices) if auto or execution.accelerator == "cuda" else 0.0
        if devices > 1 and 0 < gpus < devices:
            raise UserError(f"--cards {gpus:g}: a run over --devices {devices} takes {devices} GPUs or none")
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= threads * devices and node.get("GPU", 0) >= gpus for node in nodes):
            needs = f"{threads * devices} cores and {gpus:g} GPUs"  # it would wait for ever
            raise UserError(f"no node of the cluster has {needs} for a run; lower --threads or --cards")
        self.slots = slots or 10_000  # Ray decides how many fit at a time
        self._place = _absolute(place).with_threads(threads)
        self._mark = self._place.runs / f".cluster-{uuid.uuid4().hex}"  # a node that does not see it has another folder
        self._task = ray.remote(num_cpus=threads * devices, num_gpus=gpus, max_retries=RETRIES)(_run_on_node)
        self._running: dict[Any, str] = {}
        self._stopped = False

    def __enter__(self) -> RayEngine:
        self._place.runs.mkdir(parents=True, exist_ok=True)
        self._mark.touch()
        return self

    def __exit__(self, *exc: object) -> None:
        """After a stop, wait for the tasks: trainings save their state first."""
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=PATIENCE)
        self._mark.unlink(missing_ok=True)
        self._ray.shutdown()

    def submit(self, key: str, item: Item) -> None:
        self._running[self._task.remote(self._place, item, self._mark, __version__, Path.cwd())] = key

    def wait(self) -> dict[str, Result]:
        done: list[Any] = []
        while not done:  # in short turns, so that Ctrl-C is handled
            done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=1.0)
        return {self._running.pop(task): self._result(task) for task in done}

    def _result(self, task: Any) -> Result:
        errors = self._ray.exceptions
        try:
            return dict(self._ray.get(task))
        except (errors.TaskCancelledError, KeyboardInterrupt):
            return {"stopped": True}
        except errors.RayError as error:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}

    def stop(self) -> None:
        """As Ctrl-C in each task; the second time their processes are killed."""
        for task in self._running:
            self._ray.cancel(task, force=self._stopped)
        self._stopped = True


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs the extra: pip install 'antishortcut[cluster]'") from None
    try:
        named = address if address != "auto" else os.environ.get("RAY_ADDRESS") or address
        host, _, port = named.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # where nobody listens, Ray would try for ever
            socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"no Ray cluster at {address!r} ({reason}); start one: ray start --head") from None
    return ray


def _absolute(place: Place) -> Place:
    """With paths that do not depend on a process's working directory or environment."""
    at = {name: folder.resolve() for name, folder in place.at.items()}
    return replace(place, runs=place.runs.resolve(), root=data_root(place.root).resolve(), at=at)


def _run_on_node(
    place: Place, item: Item, mark: Path, version: str, directory: Path, patience: float = PATIENCE
) -> Result:
    """Run the item in a process, again while a lost node's process, which may outlive it, holds the folder."""

    def work() -> Result:
        host, end = socket.gethostname(), time.monotonic() + patience
        if version != __version__:
            raise UserError(f"node {host} has antishortcut {__version__}, the suite was started with {version}")
        if not mark.exists():
            raise UserError(f"node {host} does not see {place.runs}: --runs must be a path that all nodes share")
        while "busy" in (result := Command(place, item, directory=directory).result()) and time.monotonic() < end:
            time.sleep(1.0)
        return result

    return guarded(work)
