"""A Ray cluster: every run is a task with the threads and devices it needs, and is retried when its node dies.

Nothing is kept in Ray: a task that is done again goes on from its resume state, so runs and images must lie where every
node sees them under the same path.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from antishortcut import __version__
from antishortcut.errors import UserError
from antishortcut.folder import InUse
from antishortcut.launch.place import Done, Kind, Place
from antishortcut.launch.several import worker_of
from antishortcut.launch.task import carried_out, told
from antishortcut.run import Recipe
from antishortcut.suites import Job

RETRIES = 5  # of a run whose process or node was lost
PATIENCE = 120.0  # seconds a retried run waits for its lost process to let go of its folder
MARK = ".cluster-{token}"  # a file in the runs folder while a suite runs: who does not see it sees another folder
CONNECT = 5.0  # seconds to hear from the cluster's head


class Cluster:
    """An engine: tasks on a Ray cluster that is there already.

    Each takes `cards` GPUs, as many as it has devices unless said, and `threads` cores for each device.
    """

    def __init__(self, place: Place, address: str, slots: int | None = None, cards: float | None = None) -> None:
        self._ray = ray = _joined(address)
        there = ray.cluster_resources()
        each, threads = place.execution.devices, place.execution.threads or 1
        cards = (float(each) if _wants_card(place, there) else 0.0) if cards is None else cards
        if each > 1 and 0 < cards < each:
            raise UserError(f"--cards {cards:g}: a run over --devices {each} takes {each} GPUs or none")
        _fits(there, ray.nodes(), threads * each, cards)
        self.slots = slots or 10_000  # how many fit at a time is Ray's to say
        self._place = _absolute(place, threads)
        self._token = uuid.uuid4().hex
        self._mark = self._place.runs / MARK.format(token=self._token)
        needs = {"num_cpus": threads * each, "num_gpus": cards, "max_retries": RETRIES}
        self._task = ray.remote(**needs)(_carried_out)
        self._running: set[Any] = set()
        self._asked = False

    def __enter__(self) -> Cluster:
        self._place.runs.mkdir(parents=True, exist_ok=True)
        self._mark.touch()
        return self

    def __exit__(self, *exc: object) -> None:
        """Asked to stop, tasks are waited for: a training saves its state first."""
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=PATIENCE)
        self._mark.unlink(missing_ok=True)
        self._ray.shutdown()

    def teach(self, recipe: Recipe) -> Any:
        return self._submit("teach", recipe)

    def learn(self, job: Job) -> Any:
        return self._submit("learn", job)

    def _submit(self, kind: Kind, of: Any) -> Any:
        ticket = self._task.remote(self._place, self._token, __version__, str(Path.cwd()), kind, of)
        self._running.add(ticket)
        return ticket

    def ready(self, tickets: Collection[Any]) -> list[Any]:
        done: list[Any] = []
        while not done:  # in short turns, so that Ctrl-C is heard
            done, _ = self._ray.wait(list(tickets), num_returns=1, timeout=1.0)
        return done

    def told(self, ticket: Any) -> Done:
        self._running.discard(ticket)
        lost = self._ray.exceptions
        try:
            return dict(self._ray.get(ticket))
        except (lost.TaskCancelledError, KeyboardInterrupt):
            return {"stopped": True}
        except lost.RayError as error:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}

    def stop(self) -> None:
        """As Ctrl-C in each task; the second time their processes are ended."""
        for ticket in self._running:
            self._ray.cancel(ticket, force=self._asked)
        self._asked = True


def _joined(address: str) -> Any:
    """Ray, connected."""
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs the extra: pip install 'antishortcut[cluster]'") from None
    if address in ("", "local"):
        raise UserError(f"--address {address!r} is no cluster's: give auto or HOST:PORT; start one: ray start --head")
    try:
        _reached(address)
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"no Ray cluster at {address!r} ({reason}); start one: ray start --head") from None
    return ray


def _reached(address: str) -> None:
    """Somebody listens at HOST:PORT: Ray itself would ask for ever."""
    named = address if address != "auto" else os.environ.get("RAY_ADDRESS") or address
    host, _, port = named.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()


def _absolute(place: Place, threads: int) -> Place:
    """As any node finds it: no path depends on where a process stands, nor on its environment."""
    root = place.root or Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    return replace(
        place,
        runs=place.runs.resolve(),
        root=root.resolve(),
        at={name: folder.resolve() for name, folder in place.at.items()},
        execution=place.execution.model_copy(update={"threads": threads}),
    )


def _wants_card(place: Place, there: dict[str, float]) -> bool:
    wanted = place.execution.accelerator
    return wanted == "cuda" or (wanted == "auto" and there.get("GPU", 0) > 0)


def _fits(there: dict[str, float], nodes: list[dict[str, Any]], threads: int, cards: float) -> None:
    """A task that no node can hold would wait for ever."""
    each = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(node.get("CPU", 0) >= threads and node.get("GPU", 0) >= cards for node in each):
        largest = max((node.get("CPU", 0) for node in each), default=0)
        raise UserError(
            f"no node of the cluster has {threads} cores and {cards:g} GPUs for a run (in all {there.get('CPU', 0):g} "
            f"cores, {there.get('GPU', 0):g} GPUs; at most {largest:g} cores on one); lower --threads or --cards"
        )


# --- on a node ---------------------------------------------------------------------------------------------------

_opened: dict[str, Any] = {}  # a process of Ray's serves many tasks: images are read once


def _carried_out(place: Place, token: str, version: str, here: str, kind: Kind, of: Any) -> Done:
    return told(lambda: _work(place, token, version, here, kind, of))


def _work(place: Place, token: str, version: str, here: str, kind: Kind, of: Any) -> Done:
    _check(place.runs, token, version)
    if Path(here).is_dir():
        os.chdir(here)  # a recipe may name files relative to where the suite was started
    if token not in _opened:
        _opened.clear()
        _opened[token] = worker_of(place)
    return _patiently(lambda: carried_out(_opened[token], kind, of))


def _patiently(work: Callable[[], Done], patience: float = PATIENCE) -> Done:
    """A lost node's process may outlive it by a moment, and a run's folder is its own until it has ended."""
    end = time.monotonic() + patience
    while True:
        try:
            return work()
        except InUse:
            if time.monotonic() > end:
                raise
            time.sleep(1.0)


def _check(runs: Path, token: str, version: str) -> None:
    host = socket.gethostname()
    if version != __version__:
        raise UserError(f"node {host} has antishortcut {__version__}, the suite was started with {version}")
    if not (runs / MARK.format(token=token)).exists():
        raise UserError(f"node {host} does not see {runs}: --runs must be a path that all nodes share")
