"""Features as they come: chunks of rows by role, read block by block and never held all at once."""
# N samples, n rows at a time, D features, K directions
# n values at a time

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

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
    result: dict[int, Tensor] = {}
    outputs = 0
    for (rows,) in blocks(chunks, role):
        result |= {place[outputs + at]: rows[at].clone() for at in range(len(rows)) if outputs + at in place}
        outputs += len(rows)
    if len(result) < len(place):
        raise ValueError(f"index names rows that the stream of {outputs} rows does not have")
    width = rows.shape[1]
    return torch.stack([result[at] for at in range(len(index))]) if result else torch.empty(0, width).double()


def project(chunks: Stream, basis: Tensor, role: str) -> Tensor:
    """uᵀh of every row and direction of a basis (D, K). (N, K)"""
    return torch.cat([rows @ basis_of(basis, rows) for (rows,) in blocks(chunks, role)])


def basis_of(basis: Tensor, rows: Tensor) -> Tensor:
    """A basis (D, K) in the rows' precision and on their device, once its width is theirs."""
    if basis.ndim != 2 or basis.shape[0] != rows.shape[1]:
        raise ValueError(f"a basis {tuple(basis.shape)} is not one for rows of {rows.shape[1]} features")
    return basis.detach().to(rows)


# --- What a diagnostic found ---

BINS = 40


def plain(value: Any) -> Any:
    """Floats, lists and dicts only; None where a number is not finite."""
    if isinstance(value, Found):
        return value.values()
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(frozen=True)
class Found:
    """What every result is: undefined numbers are NaN in its fields, None in `values()`."""

    def values(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self)}


@dataclass(frozen=True)
class Spread(Found):
    """How one number per row is spread: mean, standard deviation (ddof 1), counts in equal bins from low to high."""

    count: int
    undefined: int  # rows that have no such number: a zero vector has no direction
    mean: float
    std: float
    low: float
    high: float
    histogram: tuple[int, ...]


class Tally:
    """Gathers a Spread chunk by chunk, without cancellation (Chan, Golub & LeVeque 1979)."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high
        self.count, self.undefined, self.mean, self.square = 0, 0, 0.0, 0.0
        self.histogram = torch.zeros(BINS, dtype=torch.float64)

    def update(self, values: Tensor, defined: Tensor) -> None:
        """Adds values (n,), of which only the `defined` ones (n,) count."""
        self.undefined += int((~defined).sum())
        values = values[defined].clamp(self.low, self.high)  # rounding may step over an end
        if len(values) == 0:
            return
        n, total, mean = len(values), self.count + len(values), float(values.mean())
        shift = mean - self.mean
        self.square += float((values - mean).square().sum()) + shift**2 * self.count * n / total
        self.mean += shift * n / total
        self.count = total
        self.histogram += torch.histc(values, BINS, self.low, self.high)

    def spread(self) -> Spread:
        mean = self.mean if self.count > 0 else math.nan
        std = math.sqrt(self.square / (self.count - 1)) if self.count > 1 else math.nan
        bins = tuple(int(each) for each in self.histogram)
        return Spread(self.count, self.undefined, mean, std, self.low, self.high, bins)


def ratio(part: float, whole: float) -> float:
    """part / whole, NaN where there is no whole."""
    return part / whole if whole > 0 else math.nan
