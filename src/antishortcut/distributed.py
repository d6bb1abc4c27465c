"""Rows of all processes, joined. The only place besides the trainer that knows of torch.distributed."""
# W processes, b rows here, B = Σ b rows in all

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from antishortcut.errors import UserError

LOST = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe")  # in torch's words
PEER_LOST = (
    "another process of this run has ended (killed, out of memory, its machine gone, or it says why itself); "
    "the same command goes on from the last saved state"
)
_apart = ContextVar("apart", default=False)
_made: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()  # a world's group of hosts


def world() -> int:
    """Number of processes working together; 1 outside torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() and not _apart.get() else 1


@contextmanager
def single_process() -> Iterator[None]:
    """This process computes something by itself: nothing is joined, and nobody is waited for."""
    before = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(before)


def all_gather_int(number: int) -> list[int]:
    """What every process says, in rank order; from host to host, so that no device is waited for."""
    if world() == 1:
        return [number]
    text = [torch.zeros(1, dtype=torch.int64) for _ in range(world())]
    dist.all_gather(text, torch.tensor([number]), group=_hosts())
    return [int(one) for one in text]


def _hosts() -> dist.ProcessGroup:
    """The processes, joined for what lies in main memory. Kept for no longer than the world they are in."""
    world = cast("dist.ProcessGroup", dist.group.WORLD)
    if dist.get_backend(world) == "gloo":
        return world
    if world not in _made:
        _made[world] = cast("dist.ProcessGroup", dist.new_group(backend="gloo"))
    return _made[world]


def is_lost_peer(error: BaseException) -> bool:
    """Whether this is how torch says that another process is gone."""
    words = isinstance(error, RuntimeError) and any(word in str(error) for word in LOST)
    return words or (dist.is_available() and isinstance(error, dist.DistError))


@contextmanager
def report_lost_peers() -> Iterator[None]:
    """Work that the other processes have a part in: where one of them has ended, a line says so and all end."""
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
    dist.gather_object(own, result, group=_hosts())
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
