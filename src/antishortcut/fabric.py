"""Devices and precision of a run, by Lightning Fabric."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from subprocess import Popen
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.launchers import subprocess_script

from antishortcut import machine
from antishortcut.errors import UserError
from antishortcut.frozen import fastest
from antishortcut.parallel import ENDED, lost
from antishortcut.run import Execution
from antishortcut.signals import asked_by, stopped_by

warnings.filterwarnings("ignore", message=".*broadcast_buffers. is deprecated")  # its successor is not in older torch

# for every fabric that is made it would say which precision it has; a run's settings do
logging.getLogger("lightning_fabric.utilities.rank_zero").addFilter(lambda said: "(AMP)" not in said.getMessage())

STARTER = "ANTISHORTCUT_STARTER"  # in the environment: the process that starts one for each of its other devices
LOOK = 1.0  # seconds between looks at another process
ALONE = 20.0  # seconds after it is gone, in which a process mostly learns that by itself, and ends in order


def check_device(execution: Execution) -> None:
    """Say now that a device is not here, before anything is written for it."""
    wanted = execution.accelerator
    there = torch.cuda.is_available() if wanted == "cuda" else wanted != "mps" or torch.backends.mps.is_available()
    if not there:
        raise UserError(f"--device {wanted}: there is none here; use cpu or auto (asd doctor tells more)")


def make_fabric(execution: Execution) -> Fabric:
    """Devices and precision, by Lightning Fabric. Launched: other processes run the same command."""
    check_device(execution)
    execution = resolved(execution)
    try:
        fabric = Fabric(
            accelerator=execution.accelerator,
            devices=execution.devices,
            num_nodes=execution.nodes,
            precision=cast(Any, execution.precision),  # auto is resolved
            # what methods remember is the same everywhere, and batch statistics are scored and saved as the first one's
            strategy=DDPStrategy(broadcast_buffers=False) if execution.devices * execution.nodes > 1 else "auto",
        )
    except (RuntimeError, ValueError) as error:  # no such device, fewer than asked for, no such precision there
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--device {execution.accelerator} --devices {execution.devices}: {reason}") from None
    if fabric.device.type == "cpu" and execution.precision == "16-mixed":
        raise UserError("--precision 16-mixed needs a GPU; bf16-mixed works on a CPU")
    if execution.threads:
        torch.set_num_threads(execution.threads)
    met = threading.Event()
    try:
        with _staying_with_the_first(met):
            fabric.launch()
    except RuntimeError as error:
        if not lost(error):
            raise
        raise UserError(ENDED) from None
    return fabric


@contextmanager
def _staying_with_the_first(met: threading.Event) -> Iterator[None]:
    """Where Fabric starts the other processes, none outlives the others, wherever one was killed.

    One that waits to meet another, in torch's own code, would wait for half an hour, and hear no signal. Only those
    that are started in here are told of it: others that this process starts later have their own. Lightning would look
    after them too, but it kills the first, by SIGKILL, as soon as any ends other than well: while it saves, maybe.
    """
    if int(os.environ.get("LOCAL_RANK", "0") or 0) > 0:
        if starter := os.environ.get(STARTER):
            threading.Thread(target=_end_after, args=(int(starter),), daemon=True, name="starter").start()
        yield
        return
    os.environ[STARTER] = str(os.getpid())
    theirs = subprocess_script._launch_process_observer
    subprocess_script._launch_process_observer = partial(_look_after, met)
    try:
        yield
        met.set()
    finally:
        subprocess_script._launch_process_observer = theirs
        del os.environ[STARTER]


def _look_after(met: threading.Event, others: list[Popen[bytes]]) -> None:
    threading.Thread(target=_end_with, args=(met, others), daemon=True, name="others").start()


def _end_with(met: threading.Event, others: list[Popen[bytes]]) -> None:
    """End the first process, and all, when another has ended other than well."""
    while not any(codes := [other.poll() for other in others]):
        if all(code == 0 for code in codes):
            return
        time.sleep(LOOK)
    if met.is_set():
        time.sleep(ALONE)
    for other in others:
        other.kill()
    number = asked_by(next(code for code in codes if code))
    print(f"asd: {stopped_by(number) if number else ENDED}", file=sys.stderr, flush=True)
    os._exit(128 + number if number else 2)


def _end_after(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(LOOK)
    time.sleep(ALONE)
    print(f"asd: {ENDED}", file=sys.stderr, flush=True)
    os._exit(2)


def resolved(execution: Execution) -> Execution:
    """With a worker for every core or thread it may use, and the precision the student's device is fastest in."""
    if execution.workers == "auto":
        most = machine.workers(execution.devices)
        execution = execution.model_copy(update={"workers": min(most, execution.threads or most)})
    if execution.precision != "auto":
        return execution
    cuda = execution.accelerator in ("auto", "cuda") and torch.cuda.is_available()
    other = execution.accelerator if execution.accelerator != "auto" else "cpu"
    mixed = fastest(torch.device("cuda" if cuda else other)) == "bfloat16"
    return execution.model_copy(update={"precision": "bf16-mixed" if mixed else "32-true"})
