"""One teacher or student, trained here or in a command of its own, which Fabric starts again for every device.

`python -m antishortcut.experiments.task FOLDER`: FOLDER/work.pickle, written by the process that waits for it, says what to
do, FOLDER/result.json what came of it.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from antishortcut.config.recipe import Recipe
from antishortcut.errors import UserError, first_line, of_disk, one_line
from antishortcut.exits import own_code
from antishortcut.experiments.place import Item, Place, Result
from antishortcut.run_dir import InUse, read_json, write_json
from antishortcut.training.signals import Asked, Stopped, ending

GRACE = 60.0  # seconds to save a state in
MARKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def open_worker(place: Place) -> Callable[[Item], Result]:
    """What trains and scores in this process. Torch is imported here."""
    from antishortcut.experiments.work import Worker
    from antishortcut.training.pipeline import Workshop

    shop = Workshop(place.runs, place.root, place.download, place.execution, quiet=True, reuse=True)
    worker = Worker(shop, place.at)
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
        if isinstance(error, MemoryError) or (memory is not None and memory.is_shortage(error)):
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
        command = [sys.executable, "-m", "antishortcut.experiments.task", self._folder.name]
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
        with ending(Asked()):  # before and after training, which has its own way to stop
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
    with own_code():
        main(Path(sys.argv[1]))
