"""A piece of work over several devices: a command of its own, which Fabric starts again for every device.

`python -m antishortcut.launch.several FOLDER`: FOLDER/piece.json says what to do, FOLDER/told.json what came of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from antishortcut.exits import own_code
from antishortcut.folder import InUse, read_json, write_json
from antishortcut.launch.place import Done, Kind, Place
from antishortcut.launch.task import carried_out, open_worker, told
from antishortcut.run import Execution, Recipe
from antishortcut.suites import Job

if TYPE_CHECKING:
    from antishortcut.work import Worker

GRACE = 60.0  # seconds to save a state in
MARKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def worker_of(place: Place) -> Worker | Several:
    return Several(place) if place.execution.devices > 1 else open_worker(place)


class Several:
    """Does what a worker does, in processes of their own."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def teach(self, recipe: Recipe) -> Done:
        return self._carried_out("teach", recipe)

    def learn(self, job: Job) -> Done:
        return self._carried_out("learn", job)

    def _carried_out(self, kind: Kind, of: Recipe | Job) -> Done:
        with tempfile.TemporaryDirectory(prefix="asd-") as folder:
            write_json(Path(folder) / "piece.json", _written(self._place, kind, of))
            command = [sys.executable, "-m", "antishortcut.launch.several", folder]
            process = subprocess.Popen(command, env=own(os.environ), start_new_session=True)
            try:
                process.wait()
            except BaseException:  # asked to stop: it saves its state; asked again, or after a while, it is ended
                process.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
                raise
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # the others have nothing to do without the first
                process.wait()
            found = Path(folder) / "told.json"
            if not found.exists():
                return {"error": f"a process of a run over several devices ended with code {process.returncode}"}
            done = dict(read_json(found))
            if busy := done.pop("busy", None):
                raise InUse(Path(busy))
            return done


def own(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Fabric counts processes itself, whoever started this one."""
    return {key: value for key, value in environ.items() if key not in MARKS and not key.startswith("SLURM_")}


def _written(place: Place, kind: Kind, of: Recipe | Job) -> Done:
    return {
        "kind": kind,
        "of": of.model_dump(mode="json"),
        "runs": str(place.runs),
        "root": None if place.root is None else str(place.root),
        "at": {name: str(folder) for name, folder in place.at.items()},
        "execution": place.execution.model_dump(),
        "download": place.download,
        "parent": os.getpid(),
    }


# --- in that command ---------------------------------------------------------------------------------------------


def main(folder: Path) -> None:
    piece = read_json(folder / "piece.json")
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0
    if first:
        threading.Thread(target=_orphaned, args=(piece["parent"],), daemon=True).start()
    place = Place(
        Path(piece["runs"]),
        None if piece["root"] is None else Path(piece["root"]),
        {name: Path(at) for name, at in piece["at"].items()},
        Execution.model_validate(piece["execution"]),
        piece["download"],
    )
    of = (Recipe if piece["kind"] == "teach" else Job).model_validate(piece["of"])
    found = told(lambda: carried_out(open_worker(place), piece["kind"], of))
    if first:
        (folder / "told.json").write_text(json.dumps(found), encoding="utf-8")


def _orphaned(parent: int) -> None:
    """When the process that waits for this one is gone, stop as if it had asked to."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    with own_code():
        main(Path(sys.argv[1]))
