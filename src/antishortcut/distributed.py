"""Gather rows and numbers over processes. Besides the trainer, the only module that uses torch.distributed."""
# W processes, b rows here, B = Σ b rows in all

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from antishortcut.errors import UserError

LOST_SIGNS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
PEER_LOST = (
    "another process of this run has ended (killed, out of memory, its machine gone, or see its own message); "
    "run the same command again to resume from the last saved state"
)
_single = ContextVar("single", default=False)
_cpu_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()  # by world


def world() -> int:
    """Number of processes of this run; 1 outside torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() and not _single.get() else 1


@contextmanager
def single_process() -> Iterator[None]:
    """Compute something in this process alone: nothing is gathered, and no other process is waited for."""
    before = _single.set(True)
    try:
        yield
    finally:
        _single.reset(before)


def all_gather_int(number: int) -> list[int]:
    """All-gather one integer per rank over the CPU group, so that no device is waited for."""
    if world() == 1:
        return [number]
    numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(world())]
    dist.all_gather(numbers, torch.tensor([number]), group=_cpu_group())
    return [int(each) for each in numbers]


def _cpu_group() -> dist.ProcessGroup:
    """A gloo group of all processes, kept no longer than the world it belongs to."""
    world = cast("dist.ProcessGroup", dist.group.WORLD)
    if dist.get_backend(world) == "gloo":
        return world
    if world not in _cpu_groups:
        _cpu_groups[world] = cast("dist.ProcessGroup", dist.new_group(backend="gloo"))
    return _cpu_groups[world]


def is_lost_peer(error: BaseException) -> bool:
    """Whether torch raised this because another process is gone."""
    words = isinstance(error, RuntimeError) and any(word in str(error) for word in LOST_SIGNS)
    return words or (dist.is_available() and isinstance(error, dist.DistError))


@contextmanager
def report_lost_peers() -> Iterator[None]:
    """Turn the error that torch raises when another process has ended into one line."""
    try:
        yield
    except RuntimeError as error:
        if world() == 1 or not is_lost_peer(error):
            raise
        raise UserError(PEER_LOST) from None


def gather(rows: Tensor) -> Tensor:
    """The rows (b, …) of every process in rank order (B, …), with gradient; the input itself in a single process.

    When every process computes the same loss of the joined rows and DDP averages the gradients, the result is the
    gradient of that loss: the backward pass sums over W processes what DDP then divides by W.
    """
    if world() == 1:
        return rows
    joined: Tensor = _Gather.apply(rows)
    return joined


def own_slice(count: int) -> slice:
    """Where this process's rows, so many, lie among the rows of all."""
    sizes = all_gather_int(count)
    start = sum(sizes[: dist.get_rank()]) if len(sizes) > 1 else 0
    return slice(start, start + count)


def broadcast_from_rank0(tensors: Iterable[Tensor]) -> None:
    """Have every process hold what the first one does, in place."""
    if world() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def rank_local_buffers(module: nn.Module) -> list[dict[str, Tensor]]:
    """Of a module's buffers those that differ between processes, like batch statistics; by process, without the first.

    Known to the first one alone; to the others, and to a process alone, it is an empty list.
    """
    if world() == 1:
        return []
    own, learned = dict[str, Tensor](), dict(module.named_parameters())  # the same everywhere, by DDP
    for name, value in module.state_dict().items():
        if name not in learned and isinstance(value, Tensor) and value.numel():
            here = value.detach().contiguous().reshape(-1).view(torch.uint8)  # of any kind of number
            first = here.clone()
            dist.broadcast(first, 0)
            if not torch.equal(first, here):
                own[name] = value.detach().cpu()
    result: list[Any] | None = [None] * world() if dist.get_rank() == 0 else None
    dist.gather_object(own, result, group=_cpu_group())
    return (result or [])[1:]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        sizes = all_gather_int(len(rows))
        most = max(sizes)  # shares may differ by a row: pad, exchange, cut
        padded = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])]).contiguous()
        pieces = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(pieces, padded)
        ctx.start, ctx.rows = sum(sizes[: dist.get_rank()]), len(rows)
        return torch.cat([part[:size] for part, size in zip(pieces, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.start : ctx.start + ctx.rows]
