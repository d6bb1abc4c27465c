"""How stable the shortcut eigenspace is: between disjoint parts of the data, and as batches grow."""
# N samples, n rows at a time, B rows of a batch, D features, K directions

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antishortcut.analysis.moments import Scatter, positive
from antishortcut.analysis.stream import BLOCK, Found, Stream, basis_of, blocks
from antishortcut.subspace import principal_angles, random_angle, top_directions

ROOM = 2**27  # bytes of moments held at a time


@dataclass(frozen=True)
class Bootstrap(Found):
    """Mean principal angle in degrees between the eigenspaces of disjoint parts, mean ± std (ddof 1) over all pairs."""

    parts: int
    rows: int  # of the smallest part
    pairs: int
    mean: float
    std: float
    to_whole: float  # mean over parts of the angle to the eigenspace of all of them together
    to_whole_std: float
    random: float  # mean angle of two random subspaces


@dataclass(frozen=True)
class Growth(Found):
    """Mean principal angles in degrees of batches of B rows: to the whole data's subspace, and between batches.

    The references fall as 1/√B from the first angle, the rate of Davis–Kahan.
    """

    batch: tuple[int, ...]
    batches: tuple[int, ...]  # disjoint batches of each size that were seen
    to_whole: tuple[float, ...]
    between: tuple[float, ...]
    to_whole_reference: tuple[float, ...]
    between_reference: tuple[float, ...]
    random: float


def bootstrap(chunks: Stream, part: Tensor, k: int = 4) -> Bootstrap:
    """Top-K eigenspaces of E[Δh Δhᵀ] of each part, compared (S-Sec. A.3.5). `part` (N,) is from `parts`; −1 is none.

    A D × D matrix of float64 for each part, as many at a time as ROOM holds: one pass up to D = 1295, then more.
    """
    names = sorted(set(part[part >= 0].tolist()))
    bases: list[Tensor] = []
    whole: Scatter | None = None
    rows, at = len(part), 0
    while at < len(names):
        scatters = _scatters(chunks, part, names[at:])
        for scatter in scatters:
            bases.append(scatter.directions(k, centred=False))
            whole = scatter if whole is None else whole + scatter
            rows = min(rows, scatter.count)
        at += len(scatters)
    if whole is None:
        raise ValueError(f"{len(part)} rows are assigned to no part")
    space = whole.directions(k, centred=False)
    between, to_whole = _between(bases), [_angle(basis, space) for basis in bases]
    return Bootstrap(len(bases), rows, len(between), *_summary(between), *_summary(to_whole), _random(space))


def _scatters(chunks: Stream, part: Tensor, names: Sequence[int]) -> list[Scatter]:
    """One pass: the displacement's moments in the first of the named parts, as many as fit into ROOM."""
    result: dict[int, Scatter] = {}
    outputs = 0
    # a part gets a tenth of a block, and small blocks are slow
    for final, early in blocks(chunks, "final", "early", size=4 * BLOCK):
        delta, own = early - final, part[outputs : outputs + len(final)].cpu()
        outputs += len(final)
        if outputs > len(part):
            break
        if not result:
            width = delta.shape[1]
            result = {name: Scatter(width) for name in names[: max(1, ROOM // (8 * width**2))]}
        for name in set(own.tolist()) & result.keys():
            result[name].update(delta[own == name])
    if outputs != len(part):
        raise ValueError(f"{len(part)} rows are assigned to parts, the stream has {outputs} or more")
    return list(result.values())


def batch_sizes(count: int, smallest: int = 32) -> tuple[int, ...]:
    """32, 64, 128, … up to half of the rows, so that two disjoint batches exist."""
    return tuple(itertools.takewhile(lambda size: 2 * size <= count, (smallest * 2**i for i in itertools.count())))


def growth(chunks: Stream, whole: Tensor, sizes: Sequence[int], batches: int = 10) -> Growth:
    """Angles of the top-K eigenspaces of the first `batches` consecutive batches of each size to `whole` (D, K).

    One pass. Batches are consecutive rows: give them in random order, as training does (`Chunks` with a seed).
    """
    if not sizes or min(sizes) < 1 or batches < 1:
        raise ValueError(f"batches of {tuple(sizes)} rows, {batches} of each: all must be at least 1")
    sizes = sorted(set(sizes))  # the references start at the smallest
    fillers = [_Filler(size, batches, whole.shape[1]) for size in sizes]
    for final, early in blocks(chunks, "final", "early"):
        delta = early - final
        basis_of(whole, delta)  # or the wrong subspace would be noticed only at the end
        for filler in fillers:
            filler.update(delta)
    to_whole = tuple(_summary([_angle(basis, whole) for basis in filler.bases])[0] for filler in fillers)
    between = tuple(_summary(_between(filler.bases))[0] for filler in fillers)
    falling = [math.sqrt(sizes[0] / size) for size in sizes]
    return Growth(
        tuple(sizes),
        tuple(len(filler.bases) for filler in fillers),
        to_whole,
        between,
        tuple(to_whole[0] * factor for factor in falling),
        tuple(between[0] * factor for factor in falling),
        _random(whole),
    )


class _Filler:
    """Fills one batch after another and keeps the directions of each; the rows themselves only where B < D."""

    def __init__(self, size: int, batches: int, k: int) -> None:
        self.size, self.batches, self.k = size, batches, k
        self.bases: list[Tensor] = []  # each (D, k')
        self.rows: list[Tensor] = []
        self.scatter: Scatter | None = None
        self.filled = 0

    def update(self, delta: Tensor) -> None:
        while len(delta) > 0 and len(self.bases) < self.batches:
            taken, delta = delta[: self.size - self.filled], delta[self.size - self.filled :]
            self.filled += len(taken)
            if self.size < delta.shape[1]:
                self.rows.append(taken)
            else:
                self.scatter = self.scatter or Scatter(delta.shape[1])
                self.scatter.update(taken)
            if self.filled == self.size:
                self._finish()

    def _finish(self) -> None:
        if self.k == 0:  # the whole data have no direction, so there is nothing to compare
            basis = torch.zeros(0, 0)
        elif self.scatter is not None:
            basis = self.scatter.directions(self.k, centred=False)
        else:
            basis = top_directions(torch.cat(self.rows), positive(self.k))[0]  # by the B × B side
        self.bases.append(basis)
        self.rows, self.scatter, self.filled = [], None, 0


def _angle(a: Tensor, b: Tensor) -> float:
    """Mean principal angle in degrees, NaN where one has no direction."""
    if min(a.shape[1], b.shape[1]) == 0:
        return math.nan
    return math.degrees(float(principal_angles(a.double(), b.cpu().double()).mean()))


def _between(bases: Sequence[Tensor]) -> list[float]:
    return [_angle(a, b) for a, b in itertools.combinations(bases, 2)]


def _summary(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (ddof 1) of the values that are defined."""
    known = torch.tensor([value for value in values if not math.isnan(value)], dtype=torch.float64)
    mean = float(known.mean()) if len(known) > 0 else math.nan
    return mean, float(known.std()) if len(known) > 1 else math.nan


def _random(basis: Tensor) -> float:
    d, k = basis.shape
    return math.degrees(random_angle(k, k, d)) if k > 0 else math.nan
