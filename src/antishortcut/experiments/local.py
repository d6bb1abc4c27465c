"""An engine: processes of this machine, one per run, which share its cores and GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from antishortcut.experiments.worker import Command, Item, Place, Result
from antishortcut.hardware import cores

GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for every GPU, if the driver is there


class LocalEngine:
    def __init__(self, place: Place, slots: int) -> None:
        self.slots, devices = slots, place.execution.devices
        threads = place.execution.threads or max(cores() // (slots * devices), 1)
        self._place = replace(place, execution=place.execution.model_copy(update={"threads": threads}))
        self._free = share_gpus(slots, place.execution.accelerator, os.environ, GPUS, devices)
        self._running: dict[Command, str | None] = {}  # → its GPUs

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        for command in list(self._running):
            self.result(command)

    def submit(self, item: Item) -> Command:
        gpus = self._free.pop(0) if self._free else None
        command = Command(self._place, item, gpus)
        self._running[command] = gpus
        return command

    def ready(self, tickets: Collection[Command]) -> list[Command]:
        while not (done := [command for command in tickets if command.process.poll() is not None]):
            time.sleep(0.05)
        return done

    def result(self, ticket: Command) -> Result:
        result, gpus = ticket.result(), self._running.pop(ticket)
        if gpus is not None:
            self._free.append(gpus)
        return result

    def stop(self) -> None:
        for command in self._running:
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
