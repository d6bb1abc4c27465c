"""Devices and precision of a run, by Lightning Fabric."""

import logging
import os
import sys
import threading
import time
import warnings
from subprocess import Popen
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from antishortcut import hardware as machine
from antishortcut.config.recipe import Execution
from antishortcut.distributed import PEER_LOST, is_lost_peer
from antishortcut.errors import UserError
from antishortcut.teachers.frozen import fastest_precision
from antishortcut.training.signals import stop_signal_of, stopped_by

warnings.filterwarnings("ignore", message=".*broadcast_buffers. is deprecated")  # its successor is not in older torch

# for every fabric that is made it would say which precision it has; a run's settings do
logging.getLogger("lightning_fabric.utilities.rank_zero").addFilter(lambda record: "(AMP)" not in record.getMessage())

STARTER = "ANTISHORTCUT_STARTER"  # environment variable: process id of the one that started this one
POLL = 1.0  # seconds between looks at another process
GRACE = 20.0  # seconds in which a process mostly learns by itself that another one has ended, and ends in order


def check_device(execution: Execution) -> None:
    """Raise if a device is not here, before anything is written for it."""
    device = execution.accelerator
    present = torch.cuda.is_available() if device == "cuda" else device != "mps" or torch.backends.mps.is_available()
    if not present:
        raise UserError(f"--device {device}: there is none here; use cpu or auto (asd doctor tells more)")


def build_fabric(execution: Execution) -> Fabric:
    """Devices and precision, by Lightning Fabric. Launched: other processes run the same command."""
    check_device(execution)
    execution = resolve_execution(execution)
    try:
        fabric = Fabric(
            accelerator=execution.accelerator,
            devices=execution.devices,
            num_nodes=execution.nodes,
            precision=cast(Any, execution.precision),  # auto is resolved
            # what methods remember is the same everywhere, and batch statistics are scored and saved as the first one's
            strategy=_DDP(broadcast_buffers=False) if execution.devices * execution.nodes > 1 else "auto",
        )
    except (RuntimeError, ValueError) as error:  # no such device, fewer than requested, no such precision there
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--device {execution.accelerator} --devices {execution.devices}: {reason}") from None
    if fabric.device.type == "cpu" and execution.precision == "16-mixed":
        raise UserError("--precision 16-mixed needs a GPU; bf16-mixed works on a CPU")
    if execution.threads:
        torch.set_num_threads(execution.threads)
    if starter := os.environ.pop(STARTER, None):
        threading.Thread(target=_end_after, args=(int(starter),), daemon=True, name="starter").start()
    try:
        fabric.launch()
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        raise UserError(PEER_LOST) from None
    return fabric


class _Launcher(_SubprocessScriptLauncher):
    """Lightning's launcher without its observer, which kills the first process, even while it saves, if another fails.

    Here no process outlives the others either, but one that notices by itself has time to end in order. One that still
    waits to meet a killed one, in torch's own code, would wait for half an hour and hear no signal.
    """

    def _call_children_scripts(self) -> None:
        os.environ[STARTER] = str(os.getpid())
        super()._call_children_scripts()
        del os.environ[STARTER]
        children, self.procs = self.procs, []  # an empty list: nothing for Lightning's observer to look after
        threading.Thread(target=_end_with, args=(children,), daemon=True, name="children").start()


class _DDP(DDPStrategy):
    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = _Launcher(self.cluster_environment, self.num_processes, self.num_nodes)


def _end_with(children: list[Popen[bytes]]) -> None:
    """End the first process, and all, when another has failed."""
    while not any(codes := [child.poll() for child in children]):
        if all(code == 0 for code in codes):
            return
        time.sleep(POLL)
    if torch.distributed.is_initialized():  # they have met
        time.sleep(GRACE)
    for child in children:
        child.kill()
    number = stop_signal_of(next(code for code in codes if code))
    print(f"asd: {stopped_by(number) if number else PEER_LOST}", file=sys.stderr, flush=True)
    os._exit(128 + number if number else 2)


def _end_after(starter: int) -> None:
    """End this process when the one that started it is gone."""
    while os.getppid() == starter:
        time.sleep(POLL)
    time.sleep(GRACE)
    print(f"asd: {PEER_LOST}", file=sys.stderr, flush=True)
    os._exit(2)


def resolve_execution(execution: Execution) -> Execution:
    """With a worker for every core or thread it may use, and the precision the student's device is fastest in."""
    if execution.workers == "auto":
        most = machine.workers(execution.devices)
        execution = execution.model_copy(update={"workers": min(most, execution.threads or most)})
    if execution.precision != "auto":
        return execution
    cuda = execution.accelerator in ("auto", "cuda") and torch.cuda.is_available()
    other = execution.accelerator if execution.accelerator != "auto" else "cpu"
    mixed = fastest_precision(torch.device("cuda" if cuda else other)) == "bfloat16"
    return execution.model_copy(update={"precision": "bf16-mixed" if mixed else "32-true"})
