"""In how many parts a batch has to be computed so that it fits: tried out on a GPU, reckoned elsewhere.

A GPU says that it is full; a system that runs out of main memory ends the process without a word. Nothing of a training
is touched: what is tried is a copy of the step, before anything of it is on the device.
"""
# n images

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from antishortcut import machine
from antishortcut.errors import UserError
from antishortcut.optimiser import bytes_per_parameter
from antishortcut.parallel import alone, told
from antishortcut.settings import Execution, OptimSettings
from antishortcut.types import Batch, Features

FEW = 4  # images on which memory is measured, and twice as many
WIDER = 1.25  # than reckoned, since allocators and convolutions take up to a fifth more
SURE = 0.9  # of what is free is taken
LATE = 1000.0  # the epoch it is: past any warm-up
Forward = Callable[[nn.Module, int], Tensor]  # the loss of a step and a number of images
SIGNS = ("out of memory", "can't allocate memory", "not enough memory")  # of errors that have no class of their own


class NoMemory(UserError):
    """A step did not fit."""


@dataclass(frozen=True)
class Need:
    """Bytes that a step takes: whatever the number of images, and for each."""

    fixed: float
    image: float

    def of(self, images: int) -> float:
        return WIDER * (self.fixed + self.image * images)


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that memory is short."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


@contextmanager
def shortages(tell: Callable[[], str]) -> Iterator[None]:
    """What says that memory is short becomes a line for the person; other errors stay what they are."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_shortage(error):
            raise
        raise NoMemory(tell()) from None


def settle_parts(
    step: nn.Module,
    batch: Batch,
    asked: Callable[[Batch], Mapping[str, Features]],
    autocast: Callable[[], AbstractContextManager[Any]],
    optim: OptimSettings,
    execution: Execution,
    device: torch.device,
) -> tuple[int, str]:
    """Into how many each part of a batch is cut, the same in all processes, and a line that says why, if need be."""
    rows, per_parameter = max(told(len(batch.index))), bytes_per_parameter(optim)

    def loss(step: nn.Module, images: int) -> Tensor:
        at = torch.arange(images) % len(batch.index)
        some = Batch(*(rows[at].to(device) for rows in (batch.image, batch.label, batch.index)))
        with autocast():
            terms: dict[str, Tensor] = step(some, asked(some), LATE)
        return torch.stack(list(terms.values())).sum()

    def images(parts: int) -> int:
        return -(-rows // (optim.accumulate * parts))

    most, why = max(rows // (2 * optim.accumulate), 1), ""  # batch norm cannot learn from one image
    cards = [device] if device.type == "cuda" else []
    with alone(), torch.random.fork_rng(cards), torch.compiler.set_stance("force_eager"):
        if device.type == "cuda" and not execution.memory:
            found = parts_for(most, lambda parts: tried(step, loss, images(parts), per_parameter, device))
            why = f"a batch of {rows} does not fit"
        else:
            free = _free(execution)
            need = reckoned(copy.deepcopy(step).to(device), loss, rows, per_parameter)
            found = parts_for(most, lambda parts: need.of(images(parts)) <= free)
            why = f"a batch of {rows} takes about {_gb(need.of(images(1)))} at once, and there are {_gb(free)}"
    every = told(found or 0)
    if min(every) == 0:
        raise NoMemory(f"{why}: not even {images(most)} images at a time fit; take a smaller network or more memory")
    parts = max(every)
    return parts, f"{why}: each is computed in {optim.accumulate * parts} parts" if parts > 1 else ""


def _free(execution: Execution) -> float:
    """Bytes that this process may take."""
    if execution.memory:
        return execution.memory * 1e9
    free = machine.free_bytes()
    return float("inf") if free is None else SURE * free / execution.devices


def _gb(count: float) -> str:
    return f"{count / 1e9:,.3g} GB"


def parts_for(most: int, fits: Callable[[int], bool]) -> int | None:
    """The first of 1, 2, 4, … up to `most` with which it fits; None when it never does."""
    parts = 1
    while not fits(parts):
        if parts >= most:
            return None
        parts = min(2 * parts, most)
    return parts


def saved_bytes(forward: Callable[[], Any], known: Iterable[Tensor]) -> tuple[int, int]:
    """Bytes of what a forward pass keeps for the backward one besides `known` tensors: all of it, and the largest."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in known}
    seen: dict[int, int] = {}  # tensors that share their storage count once

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        alive = forward()
    del alive  # until here, so that no place in memory is used twice
    return sum(seen.values()), max(seen.values(), default=0)


def reckoned(step: nn.Module, run: Forward, rows: int, per_parameter: int) -> Need:
    """The need of a step by what it keeps of a few images.

    Beside that the backward pass holds two gradients of the largest map at a time; teachers, who keep nothing, three of
    their maps; and there are gradients and the optimiser's state of every parameter.
    """
    twin, few = copy.deepcopy(step).train(), min(FEW, max(rows // 2, 1))
    known = [*twin.parameters(), *twin.buffers()]
    one, _ = saved_bytes(partial(run, twin, few), known)
    with largest_output() as output:
        two, largest = saved_bytes(partial(run, twin, 2 * few), known)
    kept = max(two - one, 0) / few + largest / few
    parameters = sum(p.numel() for p in step.parameters() if p.requires_grad)
    return Need(max(2 * one - two, 0) + parameters * per_parameter, max(kept, 3 * output[0] / (2 * few)))


@contextmanager
def largest_output() -> Iterator[list[int]]:
    """Bytes of the largest tensor that any module gives in the meantime, as a list of one."""
    found = [0]

    def note(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            found[0] = max(found[0], output.numel() * output.element_size())

    handle = register_module_forward_hook(note)
    try:
        yield found
    finally:
        handle.remove()


def tried(step: nn.Module, run: Forward, images: int, per_parameter: int, device: torch.device) -> bool:
    """Whether forward and backward pass of so many images go through on this device, beside the optimiser's state."""
    twin, beside = None, list[Tensor]()
    try:
        twin = copy.deepcopy(step).to(device).train()
        trained = [p for p in twin.parameters() if p.requires_grad]
        beside = [torch.empty(p.numel() * (per_parameter - 4), dtype=torch.uint8, device=device) for p in trained]
        torch.autograd.backward(run(twin, images))
        return True
    except Exception as error:
        if not is_shortage(error):
            raise
        return False
    finally:
        del twin, beside
        if device.type == "cuda":
            torch.cuda.empty_cache()
