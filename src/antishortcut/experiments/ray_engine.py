"""An engine: tasks on a running Ray cluster, each with the cores and GPUs it needs, retried if a node dies.

Nothing is kept in Ray: a task that is retried resumes from its run folder, so all nodes must see runs and images under
the same paths.
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
from antishortcut.experiments.worker import Command, Item, Place, Result, guarded

RETRIES = 5  # of a run whose process or node was lost
PATIENCE = 120.0  # seconds a retried run waits for its lost process to release its folder
MARK = ".cluster-{token}"  # a file in the runs folder during a suite: a node that does not see it has another folder
CONNECT = 5.0  # seconds to reach the cluster's head


class RayEngine:
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
            raise UserError(  # it would wait for ever
                f"no node of the cluster has {threads * devices} cores and {gpus:g} GPUs for a run; "
                "lower --threads or --cards"
            )
        self.slots = slots or 10_000  # Ray decides how many fit at a time
        self._place = _absolute(place, threads)
        self._token = uuid.uuid4().hex
        self._mark = self._place.runs / MARK.format(token=self._token)
        self._task = ray.remote(num_cpus=threads * devices, num_gpus=gpus, max_retries=RETRIES)(_work)
        self._running: set[Any] = set()
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

    def submit(self, item: Item) -> Any:
        ticket = self._task.remote(self._place, self._token, __version__, Path.cwd(), item)
        self._running.add(ticket)
        return ticket

    def ready(self, tickets: Collection[Any]) -> list[Any]:
        done: list[Any] = []
        while not done:  # in short turns, so that Ctrl-C is handled
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
    """With paths that do not depend on a process's working directory or environment."""
    root = place.root or Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    at = {name: folder.resolve() for name, folder in place.at.items()}
    execution = place.execution.model_copy(update={"threads": threads})
    return replace(place, runs=place.runs.resolve(), root=root.resolve(), at=at, execution=execution)


# --- On a node ---


def _work(place: Place, token: str, version: str, directory: Path, item: Item, patience: float = PATIENCE) -> Result:
    """Run the item in a process, again while a lost node's process, which may outlive it, holds the folder."""

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
