"""Out-of-memory errors, and `--micro-batches auto`, which halves the micro-batch until a training step fits."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from antishortcut.config.schema import OptimSettings
from antishortcut.data.transforms import with_strong_view
from antishortcut.distributed import all_gather_int, single_process
from antishortcut.errors import UserError
from antishortcut.training.optim import build_optimizer
from antishortcut.types import Batch, Features, StrongView

EPOCHS = (0.0, 1000.0)  # in which steps are tried: the first, perhaps of an initial phase, and one past any warm-up
SIGNS = ("out of memory", "can't allocate memory", "not enough memory")  # of errors that have no class of their own


class OutOfMemory(UserError):
    """A step did not fit."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


@contextmanager
def oom_errors(message: Callable[[], str]) -> Iterator[None]:
    """Turn out-of-memory errors into one line; other errors pass."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(message()) from None


def find_micro_batches(
    step: nn.Module,
    batch: Batch,
    teachers: Callable[[Batch], Mapping[str, Features]],
    autocast: Callable[[], AbstractContextManager[Any]],
    optim: OptimSettings,
    device: torch.device,
) -> tuple[int, str]:
    """The number of micro-batches per accumulation step, equal in all processes, and a line to print if it is not one.

    A copy of the step takes two training steps with the whole micro-batch, then with half of it, and so on.
    """
    size, count = max(all_gather_int(len(batch.index))), 1
    most = max(size // (2 * optim.accumulate), 1)  # batch norm cannot learn from one image

    def images() -> int:
        return -(-size // (optim.accumulate * count))

    cards = [device] if device.type == "cuda" else []
    with single_process(), torch.random.fork_rng(cards), torch.compiler.set_stance("force_eager"):
        while not (fits := _fits(step, batch, images(), teachers, autocast, optim, device)) and count < most:
            count = min(2 * count, most)
    counts = all_gather_int(count if fits else 0)
    if min(counts) == 0:
        raise OutOfMemory(f"not even {images()} images at a time fit into memory; use a smaller model or larger device")
    count = max(counts)
    return count, f"a batch of {size} does not fit: using {optim.accumulate * count} micro-batches" * (count > 1)


def _fits(
    step: nn.Module,
    batch: Batch,
    images: int,
    teachers: Callable[[Batch], Mapping[str, Features]],
    autocast: Callable[[], AbstractContextManager[Any]],
    optim: OptimSettings,
    device: torch.device,
) -> bool:
    """Whether a copy of the step trains on so many images without running out of memory."""
    twin = optimizer = None
    try:
        twin = copy.deepcopy(step).to(device).train()
        optimizer = build_optimizer(optim, twin)
        index = torch.arange(images) % len(batch.index)
        micro = Batch(*(tensor[index].to(device) for tensor in (batch.image, batch.label, batch.index)))
        if isinstance(twin.method, StrongView):
            micro = with_strong_view(micro, 0, 0)
        for epoch in EPOCHS:
            with autocast():
                losses = twin(micro, teachers(micro), epoch)
            torch.autograd.backward(torch.stack(list(losses.values())).sum())
            optimizer.step()
        return True
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        del twin, optimizer
        if device.type == "cuda":
            torch.cuda.empty_cache()
