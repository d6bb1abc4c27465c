"""Devices and precision of a run, by Lightning Fabric."""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from antishortcut import machine
from antishortcut.errors import UserError
from antishortcut.frozen import fastest
from antishortcut.run import Execution

warnings.filterwarnings("ignore", message=".*broadcast_buffers. is deprecated")  # its successor is not in older torch


def make_fabric(execution: Execution) -> Fabric:
    """Devices and precision, by Lightning Fabric. Launched: other processes run the same command."""
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
    fabric.launch()
    return fabric


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
