"""A Ray cluster: every run is a task with the threads and devices it needs, and is retried when its node dies.

Nothing is kept in Ray: a task that is done again resumes from the run folder, so runs and images must lie where every
node sees them under the same path.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from antishortcut import __version__
from antishortcut.errors import UserError
from antishortcut.experiments.launcher import Command, Item, Place, Result, guarded

RETRIES = 5  # of a run whose process or node was lost
PATIENCE = 120.0  # seconds a retried run waits for its lost process to let go of its folder
MARK = (
    ".cluster-{token}"  # a file in the runs folder while a suite runs: a node that does not see it has another folder
)
CONNECT = 5.0  # seconds to hear from the cluster's head


class Cluster:
    """An engine: tasks on a Ray cluster that is running already.

    Each takes `cards` GPUs, by default as many as it has devices, and `threads` cores for each device.
    """

    def __init__(self, place: Place, address: str, slots: int | None = None, cards: float | None = None) -> None:
        self._ray = ray = _connect(address)
        devices, threads = place.execution.devices, place.execution.threads or 1
        if cards is None:
            required = place.execution.accelerator
            gpus = required == "cuda" or (required == "auto" and ray.cluster_resources().get("GPU", 0) > 0)
            cards = float(devices) if gpus else 0.0
        if devices > 1 and 0 < cards < devices:
            raise UserError(f"--cards {cards:g}: a run over --devices {devices} takes {devices} GPUs or none")
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= threads * devices and node.get("GPU", 0) >= cards for node in nodes):
            raise UserError(  # it would wait for ever
                f"no node of the cluster has {threads * devices} cores and {cards:g} GPUs for a run; "
                "lower --threads or --cards"
            )
        self.slots = slots or 10_000  # Ray decides how many fit at a time
        self._place = _absolute(place, threads)
        self._token = uuid.uuid4().hex
        self._mark = self._place.runs / MARK.format(token=self._token)
        self._task = ray.remote(num_cpus=threads * devices, num_gpus=cards, max_retries=RETRIES)(_work)
        self._running: set[Any] = set()
        self._stopped = False

    def __enter__(self) -> Cluster:
        self._place.runs.mkdir(parents=True, exist_ok=True)
        self._mark.touch()
        return self

    def __exit__(self, *exc: object) -> None:
        """After a stop, tasks are waited for: a training saves its state first."""
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=PATIENCE)
        self._mark.unlink(missing_ok=True)
        self._ray.shutdown()

    def submit(self, item: Item) -> Any:
        ticket = self._task.remote(self._place, self._token, __version__, Path.cwd(), item)
        self._running.add(ticket)
        return ticket

    def ready(self, tickets: Collection[Any]) -> list[Any]:
        done: list[Any] = []
        while not done:  # in short turns, so that Ctrl-C is heard
            done, _ = self._ray.wait(list(tickets), num_returns=1, timeout=1.0)
        return done

    def result(self, ticket: Any) -> Result:
        self._running.discard(ticket)
        errors = self._ray.exceptions
        try:
            return dict(self._ray.get(ticket))
        except (errors.TaskCancelledError, KeyboardInterrupt):
            return {"stopped": True}
        except errors.RayError as error:
            return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}

    def stop(self) -> None:
        """As Ctrl-C in each task; the second time their processes are killed."""
        for ticket in self._running:
            self._ray.cancel(ticket, force=self._stopped)
        self._stopped = True


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs the extra: pip install 'antishortcut[cluster]'") from None
    if address in ("", "local"):
        raise UserError(f"--address {address!r} is no cluster's: give auto or HOST:PORT; start one: ray start --head")
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


def _absolute(place: Place, threads: int) -> Place:
    """With paths that depend neither on a process's working directory nor on its environment."""
    root = place.root or Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    return replace(
        place,
        runs=place.runs.resolve(),
        root=root.resolve(),
        at={name: folder.resolve() for name, folder in place.at.items()},
        execution=place.execution.model_copy(update={"threads": threads}),
    )


# --- on a node ---------------------------------------------------------------------------------------------------


def _work(place: Place, token: str, version: str, directory: Path, item: Item, patience: float = PATIENCE) -> Result:
    """In a command of its own, started again while a lost node's process, which may outlive it, holds the folder."""

    def work() -> Result:
        _check(place.runs, token, version)
        end = time.monotonic() + patience
        while "busy" in (result := Command(place, item, directory=directory).result()) and time.monotonic() < end:
            time.sleep(1.0)
        return result

    return guarded(work)


def _check(runs: Path, token: str, version: str) -> None:
    host = socket.gethostname()
    if version != __version__:
        raise UserError(f"node {host} has antishortcut {__version__}, the suite was started with {version}")
    if not (runs / MARK.format(token=token)).exists():
        raise UserError(f"node {host} does not see {runs}: --runs must be a path that all nodes share")
