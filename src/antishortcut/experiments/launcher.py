"""Many runs: teachers first, students as soon as their teachers are trained. No training in this process.

Nothing is recorded beside the run folders: a finished run is skipped and an interrupted one resumes, so the same
command again does what is left. An engine starts the runs (see `engines`).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from antishortcut.config.recipe import DIALS, Run, distill_run, early_state, teach_run
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS
from antishortcut.experiments.engines import Engine
from antishortcut.experiments.jobs import Job, teacher_key
from antishortcut.experiments.worker import Item, Place, data_root
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
