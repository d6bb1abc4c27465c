"""Processes of this machine, one for each run, with its threads and devices shared out. No torch in this one."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from antishortcut.experiments.launcher import Command, Item, Place, Result
from antishortcut.hardware import cores

CARDS = Path("/proc/driver/nvidia/gpus")  # a folder for every GPU, where the driver is


class Processes:
    """An engine: so many commands at a time."""

    def __init__(self, place: Place, slots: int) -> None:
        self.slots, devices = slots, place.execution.devices
        threads = place.execution.threads or max(cores() // (slots * devices), 1)
        self._place = replace(place, execution=place.execution.model_copy(update={"threads": threads}))
        self._free = shared_out(slots, place.execution.accelerator, os.environ, CARDS, devices)
        self._running: dict[Command, str | None] = {}  # its GPUs

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exc: object) -> None:
        for command in list(self._running):
            self.result(command)

    def submit(self, item: Item) -> Command:
        cards = self._free.pop(0) if self._free else None
        command = Command(self._place, item, cards)
        self._running[command] = cards
        return command

    def ready(self, tickets: Collection[Command]) -> list[Command]:
        while not (done := [command for command in tickets if command.process.poll() is not None]):
            time.sleep(0.05)
        return done

    def result(self, ticket: Command) -> Result:
        result, cards = ticket.result(), self._running.pop(ticket)
        if cards is not None:
            self._free.append(cards)
        return result

    def stop(self) -> None:
        for command in self._running:
            command.process.terminate()


def shared_out(slots: int, accelerator: str, environ: Mapping[str, str], cards: Path, each: int = 1) -> list[str]:
    """The GPUs of each slot, as CUDA_VISIBLE_DEVICES names them, in turn; none where there is none."""
    if accelerator not in ("auto", "cuda"):
        return []
    if (named := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        there = [name.strip() for name in named.split(",") if name.strip()]
    else:
        there = [str(number) for number in range(len(list(cards.iterdir())))] if cards.is_dir() else []
    many = min(each, len(there))
    return [
        ",".join(there[(slot * many + number) % len(there)] for number in range(many)) for slot in range(slots) if there
    ]
