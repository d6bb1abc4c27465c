"""Moments of the teacher's features in one pass, and the directions and angles that follow from them."""
# N samples, n rows at a time, D features, K directions asked for, k' ≤ K directions there are
# N samples, n rows at a time, d student features, D teacher features

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from antishortcut.analysis.stream import Chunk, Found, Stream, blocks, ratio, split
from antishortcut.subspace import abandoned_directions, leading_eigenvectors, principal_angles, random_angle

Role = Literal["final", "early"]
EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Angles(Found):
    """Principal angles between two subspaces in degrees, smallest first, beside the mean of two random ones."""

    mean: float
    each: tuple[float, ...]
    random: float


@dataclass(frozen=True)
class Geometry(Found):
    """Angles between the shortcut eigenspace and the leading principal components of both states (S-Sec. A.3.3)."""

    shortcut_final: Angles
    shortcut_early: Angles
    final_early: Angles


@dataclass(frozen=True)
class Moved(Found):
    """How far the features moved: E‖Δh‖² / E‖h_F‖², and the share ‖E Δh‖² / E‖Δh‖² that all samples have in common."""

    count: int
    width: int
    size: float
    common: float


@dataclass(frozen=True)
class Gap(Found):
    """λ_K − λ_{K+1}, and that over λ₁: the paper's 0.059 and 0.029 (S-Sec. A.7, centred)."""

    absolute: float
    relative: float


class Scatter:
    """Count, mean and Σ (x − x̄)(x − x̄)ᵀ of rows (n, D), gathered without cancellation (Chan, Golub & LeVeque 1979).

    Centred sums are kept and the mean's part is added where an uncentred moment is asked for: the other way round,
    subtracting, a large mean would eat the digits of a small variance.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.centred = torch.zeros(width, width, dtype=torch.float64)

    def update(self, rows: Tensor) -> None:
        """Adds rows (n, D) of float64."""
        if rows.shape[1] != len(self.mean):
            raise ValueError(f"rows of {rows.shape[1]} features among rows of {len(self.mean)}")
        if len(rows) > 0:
            mean = rows.mean(dim=0)
            around = rows - mean  # (n, D)
            self.centred.addmm_(around.T, around)
            self._meet(len(rows), mean)

    def __add__(self, other: Scatter) -> Scatter:
        if len(other.mean) != len(self.mean):
            raise ValueError(f"rows of {len(other.mean)} features among rows of {len(self.mean)}")
        total = Scatter(0)
        total.count, total.mean, total.centred = self.count, self.mean, self.centred + other.centred
        total._meet(other.count, other.mean)
        return total

    def _meet(self, n: int, mean: Tensor) -> None:
        """What lies between the means of these rows and of n others, whose own scatter is in already."""
        shift, total = mean - self.mean, max(self.count + n, 1)
        self.centred.addr_(shift, shift, alpha=self.count * n / total)
        self.mean = self.mean + shift * (n / total)
        self.count += n

    def moment(self, *, centred: bool) -> Tensor:
        """E[(x − x̄)(x − x̄)ᵀ] or E[x xᵀ], both over N; zero of no rows. (D, D)"""
        moment = self.centred / max(self.count, 1)
        return moment if centred else moment.addr_(self.mean, self.mean)

    @property
    def power(self) -> float:
        """E‖x‖²."""
        return float(self.centred.diagonal().sum()) / max(self.count, 1) + float(self.mean.square().sum())

    def directions(self, k: int, *, centred: bool) -> Tensor:
        """Leading eigenvectors of the moment, each with its largest entry positive. (D, k')"""
        basis, values = leading_eigenvectors(self.moment(centred=centred), positive(k))
        return oriented(basis[:, values > self._rounding()])

    def spectrum(self, *, centred: bool) -> Tensor:
        """All eigenvalues of the moment, largest first, rounding set to 0. (D,)"""
        values = torch.linalg.eigvalsh(self.moment(centred=centred)).flip(0)
        return torch.where(values > self._rounding(), values, 0.0)

    def energy(self, basis: Tensor) -> Tensor:
        """E[(uᵀx)²] of each direction of a basis (D, K). (K,)"""
        u = basis.detach().cpu().double()
        return (u * (self.centred @ u)).sum(dim=0) / max(self.count, 1) + (self.mean @ u).square()

    def _rounding(self) -> float:
        """Variance that rows of this size would show by rounding alone, though they were all equal."""
        return len(self.mean) * EPS * self.power


class Moments:
    """Moments of h_F, h_E and Δh = h_E − h_F. `Moments.of(stream)`; those of disjoint parts add up.

    Three D × D matrices of float64: 100 MB at D = 2048, whatever N.
    """

    def __init__(self, width: int) -> None:
        self.final, self.early, self.delta = Scatter(width), Scatter(width), Scatter(width)

    @classmethod
    def of(cls, chunks: Stream) -> Moments:
        """One pass over a stream of "final" and "early" rows."""
        stream = blocks(chunks, "final", "early")
        first = next(stream)
        result = cls(first[0].shape[1])
        for final, early in itertools.chain([first], stream):
            result._add(final, early)
        return result

    def update(self, chunk: Chunk) -> None:
        """Adds the rows of one more chunk."""
        for final, early in split(chunk, "final", "early"):
            self._add(final, early)

    def _add(self, final: Tensor, early: Tensor) -> None:
        self.final.update(final)
        self.early.update(early)
        self.delta.update(early - final)

    def __add__(self, other: Moments) -> Moments:
        total = Moments(self.width)
        total.final, total.early = self.final + other.final, self.early + other.early
        total.delta = self.delta + other.delta
        return total

    @property
    def count(self) -> int:
        return self.final.count

    @property
    def width(self) -> int:
        return len(self.final.mean)

    def moved(self) -> Moved:
        """How far the features moved between the two states."""
        power = self.delta.power
        common = ratio(float(self.delta.mean.square().sum()), power)
        return Moved(self.count, self.width, ratio(power, self.final.power), common)

    def shortcut(self, k: int = 4) -> Tensor:
        """U, the displaced directions: top eigenvectors of E[Δh Δhᵀ], uncentred (Eq. 4). (D, k')"""
        return self.delta.directions(k, centred=False)

    def abandoned(self, k: int = 4, ridge: float = 0.01) -> Tensor:
        """Directions strong in Δh and weak in h_F: see `subspace.abandoned_directions`. (D, k')"""
        delta, final = self.delta.moment(centred=False), self.final.moment(centred=False)
        return oriented(abandoned_directions(delta, final, positive(k), ridge)[0])

    def pca(self, role: Role, k: int = 4) -> Tensor:
        """Leading principal components of a state, centred; V, the robust subspace, for "final". (D, k')"""
        if role not in ("final", "early"):
            raise ValueError(f"moments of {role!r} are not kept; 'final' and 'early' are")
        scatter = self.final if role == "final" else self.early
        return scatter.directions(k, centred=True)

    def spectrum(self, *, centred: bool, count: int = 32) -> tuple[float, ...]:
        """The leading eigenvalues of Δh's moment, largest first. The training uses the uncentred one."""
        return tuple(self.delta.spectrum(centred=centred)[:count].tolist())

    def eigengap(self, k: int = 4, *, centred: bool) -> Gap:
        """λ_K − λ_{K+1} of Δh's moment; undefined where there is no λ_{K+1} or nothing moved."""
        values = self.delta.spectrum(centred=centred)
        gap = float(values[k - 1] - values[k]) if positive(k) < len(values) and values[0] > 0 else math.nan
        return Gap(gap, gap / float(values[0]) if not math.isnan(gap) else math.nan)

    def geometry(self, k: int = 4) -> Geometry:
        """Principal angles of the K-dimensional shortcut, final and early subspaces, each pair."""
        shortcut, final, early = self.shortcut(k), self.pca("final", k), self.pca("early", k)
        return Geometry(angles(shortcut, final), angles(shortcut, early), angles(final, early))


def angles(a: Tensor, b: Tensor) -> Angles:
    """Principal angles between the spans of orthonormal bases (D, K₁) and (D, K₂); NaN of no direction."""
    if a.ndim != 2 or b.ndim != 2 or len(a) != len(b):
        raise ValueError(f"bases {tuple(a.shape)} and {tuple(b.shape)} are not of one space")
    each = torch.rad2deg(principal_angles(a.double(), b.double())).tolist()
    if not each:
        return Angles(math.nan, (), math.nan)
    return Angles(math.fsum(each) / len(each), tuple(each), math.degrees(random_angle(a.shape[1], b.shape[1], len(a))))


def oriented(basis: Tensor) -> Tensor:
    """Each column with its largest entry positive, so that "most positive" names the same end everywhere. (D, K)"""
    if basis.shape[1] == 0:
        return basis
    largest = basis.gather(0, basis.abs().argmax(dim=0, keepdim=True))  # (1, K)
    return basis * largest.sign()


def positive(k: int) -> int:
    if k < 1:
        raise ValueError(f"{k} directions asked for; at least 1 is needed")
    return k


# --- A student's features in the teacher's space ---


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
        result = cls(first[0].shape[1], first[1].shape[1])
        for x, y in itertools.chain([first], stream):
            result.update(x, y)
        return result

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
