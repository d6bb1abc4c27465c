"""One teacher or student in a process of its own: `python -m antishortcut.experiments.worker FOLDER`.

The parent imports this module too, so torch is imported only where something is trained.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from antishortcut.config.recipe import Execution, Recipe
from antishortcut.errors import UserError, first_line, of_disk, one_line
from antishortcut.experiments.jobs import Job
from antishortcut.progress import first_process, one_line_warnings, own_exit_code
from antishortcut.run_dir import InUse, RunDir, read_json, write_json
from antishortcut.training.signals import Stopped, StopRequest, interruptible

if TYPE_CHECKING:
    from antishortcut.training.pipeline import Session

Item = Recipe | Job  # a teacher to train, by its recipe, or a student
Result = dict[str, Any]  # "run", "score" and "seconds"; or "error", perhaps with "busy"; or "stopped"
GRACE = 60.0  # seconds to save a checkpoint in
SAFE_PATH = {"PYTHONSAFEPATH": "1"}  # -m would look for every module, of Python itself too, in the current folder first
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Place:
    """Where runs and images are, and how each run is computed."""

    runs: Path
    root: Path | None = None
    at: dict[str, Path] = field(default_factory=dict)  # images of evaluations
    execution: Execution = field(default_factory=Execution)
    download: bool = False

    def with_threads(self, threads: int) -> Place:
        return replace(self, execution=self.execution.model_copy(update={"threads": threads}))


def data_root(root: Path | None) -> Path:
    return root or Path(os.environ.get("ANTISHORTCUT_DATA") or "data")


WORK = TypeAdapter(tuple[Place, Item, int])  # what a process is told: the run, and the id of the process that waits


# --- In the parent ---


class Command:
    """An item in a process and session of its own, so a terminal's Ctrl-C does not reach it."""

    def __init__(self, place: Place, item: Item, gpus: str | None = None, directory: Path | None = None) -> None:
        """directory: where to run if it exists, since a recipe may name files relative to it."""
        self.gpus, self._folder = gpus, tempfile.TemporaryDirectory(prefix="asd-")
        (Path(self._folder.name) / "work.json").write_bytes(WORK.dump_json((place, item, os.getpid())))
        env = without_ranks(os.environ) | ({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}) | SAFE_PATH
        command = [sys.executable, "-m", "antishortcut.experiments.worker", self._folder.name]
        cwd = directory if directory is not None and directory.is_dir() else None
        self.process = subprocess.Popen(command, env=env, cwd=cwd, stdout=subprocess.DEVNULL, start_new_session=True)

    def result(self) -> Result:
        """Wait for it. Interrupted, it saves its state; interrupted again or after GRACE seconds, it is killed."""
        path = Path(self._folder.name) / "result.json"
        try:
            while self.process.poll() is None:  # Ray's cancel does not interrupt a blocking wait
                time.sleep(0.05)
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


def without_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what torchrun or Slurm set, so that Fabric starts its own processes."""
    return {key: value for key, value in environ.items() if key not in RANK_VARIABLES and not key.startswith("SLURM_")}


def guarded(work: Callable[[], Result]) -> Result:
    """The result, or the error as plain values, which travel between processes."""
    try:
        return work()
    except (Stopped, KeyboardInterrupt):
        return {"stopped": True}
    except InUse as error:
        return {"error": str(error), "busy": True}
    except UserError as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": of_disk(error)}
    except Exception as error:
        from antishortcut.training.microbatch import is_out_of_memory

        if is_out_of_memory(error):
            hint = "use a smaller batch, fewer --jobs or more memory"
            return {"error": one_line(f"out of memory ({first_line(error)}); {hint}")}
        traceback.print_exc()  # a bug
        return {"error": f"{type(error).__name__}: {error}"}


# --- In the process of a run ---


def main(folder: Path) -> None:
    place, item, parent = WORK.validate_json((folder / "work.json").read_bytes())
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0
    if first:
        threading.Thread(target=_stop_without, args=(parent,), daemon=True).start()

    def work() -> Result:
        from antishortcut.training.pipeline import Session

        with interruptible(StopRequest()):  # before and after training, which has its own handlers
            session = Session(place.runs, place.root, place.download, place.execution, quiet=True, reuse=True)
            return run_item(item, session, place.at)

    result = guarded(work)
    if first:
        write_json(folder / "result.json", result)


def _stop_without(parent: int) -> None:
    """If the parent dies, stop as if it had said so."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def run_item(item: Item, session: Session, at: Mapping[str, Path]) -> Result:
    """Train a teacher, or train and score a student."""
    from antishortcut.evaluation import evaluate
    from antishortcut.evaluation.context import EvalContext, evaluate_teacher
    from antishortcut.experiments.dial import choose
    from antishortcut.training.pipeline import distill, teach

    if isinstance(item, Recipe):
        return _summary(RunDir(teach(item, session).folder(session.runs)))
    *_, source = [teach(recipe, session) for recipe in item.teachers]
    early = item.early if item.early is None or item.other is None else f"{source.hash}/{item.early}"
    names = item.model_dump(include={"suite", "name", "seed", "method", "options"})
    if item.budget is not None:
        choice = choose(item.recipe, session, seed=item.seed, suite=item.suite, budget=item.budget)
        names["options"] |= choice.options
    run = distill(item.recipe, session, early=early, **names)
    folder = RunDir(run.folder(session.runs))
    if first_process():  # of several that share a run, one scores it
        sets, root = session.sets(item.recipe.data), data_root(session.root)
        context = EvalContext(sets, session.runs, root, at, limit=item.images)
        device = eval_device(session.execution.accelerator)
        evaluate(folder, context, item.on, device=device)
        evaluate_teacher(folder, context, item.on, device)
    return _summary(folder)


def eval_device(accelerator: str) -> str:
    """Students are scored where they are trained."""
    import torch

    return accelerator if accelerator != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def _summary(folder: RunDir) -> Result:
    result, (name, value) = folder.result(), folder.primary_metric()
    score = f"{result['set']} {name} {value:.3f}"
    return {"run": str(folder.path), "score": score, "seconds": result.get("seconds", 0.0)}


if __name__ == "__main__":
    with own_exit_code(), one_line_warnings():
        main(Path(sys.argv[1]))
