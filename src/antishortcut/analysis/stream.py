"""Features as they come: chunks of rows by role, read block by block and never held all at once."""
# N samples, n rows at a time, D features, K directions

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from antishortcut.errors import UserError

Chunk = Mapping[str, Tensor]
Stream = Iterable[Chunk]
BLOCK = 512  # rows turned to float64 at a time: 8 MB a role at D = 2048, whatever the chunks' size


@dataclass(frozen=True)
class Chunks:
    """Features in memory {role: (N, D)} as a stream that can be read again; in an order drawn from `seed`, if given."""

    features: Chunk
    size: int = 1024
    seed: int | None = None

    def __iter__(self) -> Iterator[Chunk]:
        count = len(next(iter(self.features.values())))
        order = torch.arange(count)
        if self.seed is not None:
            order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed))
        for start in range(0, count, self.size):
            at = order[start : start + self.size]
            yield {role: rows[at] for role, rows in self.features.items()}


def split(chunk: Chunk, *roles: str, size: int = BLOCK, equal: bool = True) -> Iterator[tuple[Tensor, ...]]:
    """A chunk's rows of the roles as float64 on the CPU, `size` at a time; of `equal` width unless told."""
    for role in roles:
        if role not in chunk or chunk[role].ndim != 2:
            shapes = {each: tuple(rows.shape) for each, rows in chunk.items()}
            raise ValueError(f"rows (n, D) of {role!r} are needed; this chunk has {shapes}")
    rows = [chunk[role] for role in roles]
    if len({len(each) for each in rows}) > 1:
        raise ValueError(f"{', '.join(roles)} have {[len(each) for each in rows]} rows: they must be the same samples")
    if equal and len({each.shape[1] for each in rows}) > 1:
        raise ValueError(f"{', '.join(roles)} have {[each.shape[1] for each in rows]} features: map them to one width")
    for start in range(0, len(rows[0]), size):
        block = tuple(each[start : start + size].detach().cpu().double() for each in rows)
        for role, each in zip(roles, block, strict=True):
            if not each.isfinite().all():
                raise UserError(f"features of {role!r} are not finite: has that network diverged?")
        yield block


def blocks(chunks: Stream, *roles: str, size: int = BLOCK, equal: bool = True) -> Iterator[tuple[Tensor, ...]]:
    """`split` over a whole stream, which must have rows."""
    empty = True
    for chunk in chunks:
        for block in split(chunk, *roles, size=size, equal=equal):
            empty = False
            yield block
    if empty:
        raise ValueError("no rows in the stream; a generator can be read only once, so give a list or `Chunks`")


def parts(count: int, number: int = 10, seed: int = 0) -> Tensor:
    """A random split of `count` rows into `number` disjoint parts of equal size: the part of each row. (count,)

    Rows left over, fewer than `number`, belong to no part: −1.
    """
    if number < 1 or count < number:
        raise ValueError(f"{count} rows cannot be split into {number} parts")
    part = torch.full((count,), -1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    size = count // number
    part[order[: size * number]] = torch.arange(number).repeat_interleave(size)
    return part


def pick(chunks: Stream, role: str, index: Tensor) -> Tensor:
    """The rows with the given numbers in the stream, in the order of `index` (M,). (M, D)"""
    place = {number: at for at, number in enumerate(index.tolist())}
    if len(place) < len(index):
        raise ValueError("index names a row twice")
    found: dict[int, Tensor] = {}
    seen = 0
    for (rows,) in blocks(chunks, role):
        found |= {place[seen + at]: rows[at].clone() for at in range(len(rows)) if seen + at in place}
        seen += len(rows)
    if len(found) < len(place):
        raise ValueError(f"index names rows that the stream of {seen} rows does not have")
    width = rows.shape[1]
    return torch.stack([found[at] for at in range(len(index))]) if found else torch.empty(0, width).double()


def project(chunks: Stream, basis: Tensor, role: str) -> Tensor:
    """uᵀh of every row and direction of a basis (D, K). (N, K)"""
    return torch.cat([rows @ basis_of(basis, rows) for (rows,) in blocks(chunks, role)])


def basis_of(basis: Tensor, rows: Tensor) -> Tensor:
    """A basis (D, K) in the rows' precision and on their device, once its width is theirs."""
    if basis.ndim != 2 or basis.shape[0] != rows.shape[1]:
        raise ValueError(f"a basis {tuple(basis.shape)} is not one for rows of {rows.shape[1]} features")
    return basis.detach().to(rows)
