"""A student's features in the teacher's space, by one ruler for all methods: the affine map of ridge regression."""
# N samples, n rows at a time, d student features, D teacher features

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antishortcut.analysis.moments import Scatter
from antishortcut.analysis.stream import Chunk, Stream, blocks


class Cross:
    """Moments of rows (n, d) and their cross-moment with rows (n, D), gathered without cancellation as in `Scatter`."""

    def __init__(self, width: int, target: int) -> None:
        self.source = Scatter(width)
        self.target_mean = torch.zeros(target, dtype=torch.float64)
        self.cross = torch.zeros(width, target, dtype=torch.float64)  # Σ (x − x̄)(y − ȳ)ᵀ

    @classmethod
    def of(cls, chunks: Stream, source: str = "student", target: str = "final") -> Cross:
        """One pass over a stream that has both roles."""
        stream = blocks(chunks, source, target, equal=False)
        first = next(stream)
        found = cls(first[0].shape[1], first[1].shape[1])
        for x, y in itertools.chain([first], stream):
            found.update(x, y)
        return found

    def update(self, x: Tensor, y: Tensor) -> None:
        """Adds rows (n, d) and (n, D) of float64."""
        n, count = len(x), self.source.count
        x_mean, y_mean = x.mean(dim=0), y.mean(dim=0)
        x_shift, y_shift = x_mean - self.source.mean, y_mean - self.target_mean
        self.cross.addmm_((x - x_mean).T, y - y_mean).addr_(x_shift, y_shift, alpha=count * n / (count + n))
        self.target_mean = self.target_mean + y_shift * (n / (count + n))
        self.source.update(x)

    def ridge(self, strength: float = 1e-3) -> tuple[Tensor, Tensor]:
        """(matrix (d, D), offset (D,)) of least squares, ridge = strength × mean feature variance; float64."""
        moment = self.source.moment(centred=True)  # (d, d)
        ridge = strength * moment.diagonal().mean() + torch.finfo(torch.float64).tiny
        loaded = moment + ridge * torch.eye(len(moment), dtype=moment.dtype)
        matrix = torch.linalg.solve(loaded, self.cross / self.source.count)
        return matrix, self.target_mean - self.source.mean @ matrix


def ridge_map(source: Tensor, target: Tensor, strength: float = 1e-3) -> tuple[Tensor, Tensor]:
    """The affine map of least squares from rows (N, d) to rows (N, D), ridge = strength × mean feature variance.

    Returns (matrix (d, D), offset (D,)): a student's features in the teacher's space, by one ruler for all methods.
    """
    matrix, offset = Cross.of([{"source": source, "target": target}], "source", "target").ridge(strength)
    return matrix.to(source), offset.to(source)


@dataclass(frozen=True)
class Mapped:
    """A stream with one role's rows moved by an affine map; can be read again where `chunks` can."""

    chunks: Stream
    matrix: Tensor  # (d, D)
    offset: Tensor  # (D,)
    role: str = "student"

    def __iter__(self) -> Iterator[Chunk]:
        for chunk in self.chunks:
            rows = chunk[self.role]
            yield {**chunk, self.role: rows @ self.matrix.to(rows) + self.offset.to(rows)}
