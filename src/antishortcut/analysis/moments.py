"""Moments of features, gathered block by block, and the directions and angles that follow from them."""
# N samples, n rows of a block, D features, K directions requested, k' ≤ K directions there are, d student features

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from antishortcut.subspace import abandoned_directions, leading_eigenvectors, principal_angles, random_angle

BLOCK = 512  # rows converted to float64 at a time: 8 MB at D = 2048
EPS = torch.finfo(torch.float64).eps


def blocks(*features: Tensor, size: int = BLOCK) -> Iterator[tuple[Tensor, ...]]:
    """Features (N, D) of the same samples as float64 on the CPU, `size` rows at a time."""
    if len({len(rows) for rows in features}) > 1:
        raise ValueError(f"features of {[len(rows) for rows in features]} samples: they must be of the same samples")
    for start in range(0, len(features[0]), size):
        yield tuple(rows[start : start + size].detach().cpu().double() for rows in features)


def project(features: Tensor, basis: Tensor) -> Tensor:
    """uᵀh of every row (N, D) and direction of a basis (D, K). (N, K)"""
    return torch.cat([rows @ basis.to(rows) for (rows,) in blocks(features)])


def ratio(part: float, whole: float) -> float:
    """part / whole, NaN where there is no whole."""
    return part / whole if whole > 0 else math.nan


def to_json(value: Any) -> Any:
    """The same value with None where a number is not finite."""
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RunningCovariance:
    """Count, mean and Σ (x − x̄)(x − x̄)ᵀ of rows (n, D), gathered without cancellation (Chan, Golub & LeVeque 1979).

    Centred sums are stored, and the mean is added for an uncentred moment: subtracting a large mean instead would lose
    the digits of a small variance.
    """

    def __init__(self, width: int, rows: Iterable[Tensor] = ()) -> None:
        """rows: blocks (n, D) of float64."""
        self.count = 0
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.centred = torch.zeros(width, width, dtype=torch.float64)
        for block in rows:
            self.update(block)

    def update(self, rows: Tensor) -> None:
        """Add rows (n, D) of float64."""
        n, mean = len(rows), rows.mean(dim=0)
        around, shift, total = rows - mean, mean - self.mean, self.count + n
        self.centred.addmm_(around.T, around).addr_(shift, shift, alpha=self.count * n / total)
        self.mean = self.mean + shift * (n / total)
        self.count = total

    def moment(self, *, centred: bool) -> Tensor:
        """E[(x − x̄)(x − x̄)ᵀ] or E[x xᵀ], both over N. (D, D)"""
        moment = self.centred / max(self.count, 1)
        return moment if centred else moment.addr_(self.mean, self.mean)

    @property
    def power(self) -> float:
        """E‖x‖²."""
        return float(self.centred.diagonal().sum()) / max(self.count, 1) + float(self.mean.square().sum())

    def directions(self, k: int, *, centred: bool) -> Tensor:
        """Leading eigenvectors of the moment, each with its largest entry positive. (D, k')"""
        basis, values = leading_eigenvectors(self.moment(centred=centred), k)
        return oriented(basis[:, values > self._rounding()])

    def spectrum(self, *, centred: bool) -> Tensor:
        """All eigenvalues of the moment, largest first; those within rounding are 0. (D,)"""
        values = torch.linalg.eigvalsh(self.moment(centred=centred)).flip(0)
        return torch.where(values > self._rounding(), values, 0.0)

    def energy(self, basis: Tensor) -> Tensor:
        """E[(uᵀx)²] of each direction of a basis (D, K). (K,)"""
        u = basis.detach().cpu().double()
        return (u * (self.centred @ u)).sum(dim=0) / max(self.count, 1) + (self.mean @ u).square()

    def _rounding(self) -> float:
        """Variance that equal rows of this size would show by rounding alone."""
        return len(self.mean) * EPS * self.power


class Moments:
    """Moments of h_F, h_E and Δh = h_E − h_F: features (N, D) of the final and an early state.

    Three D × D matrices of float64: 100 MB at D = 2048, whatever N.
    """

    def __init__(self, final: Tensor, early: Tensor) -> None:
        self.count, self.width = final.shape
        self.final = RunningCovariance(self.width, (h_f for (h_f,) in blocks(final)))
        self.early = RunningCovariance(self.width, (h_e for (h_e,) in blocks(early)))
        self.delta = RunningCovariance(self.width, (h_e - h_f for h_f, h_e in blocks(final, early)))

    def moved(self) -> dict[str, float]:
        """How far features moved: E‖Δh‖² / E‖h_F‖², and the share ‖E Δh‖² / E‖Δh‖² that all samples have in common."""
        power = self.delta.power
        common = ratio(float(self.delta.mean.square().sum()), power)
        return {"count": self.count, "width": self.width, "size": ratio(power, self.final.power), "common": common}

    def shortcut(self, k: int = 4) -> Tensor:
        """U, the displaced directions: top eigenvectors of E[Δh Δhᵀ], uncentred (Eq. 4). (D, k')"""
        return self.delta.directions(k, centred=False)

    def abandoned(self, k: int = 4) -> Tensor:
        """Directions strong in Δh and weak in h_F: see `subspace.abandoned_directions`. (D, k')"""
        return oriented(abandoned_directions(self.delta.moment(centred=False), self.final.moment(centred=False), k)[0])

    def pca(self, state: Literal["final", "early"], k: int = 4) -> Tensor:
        """Leading principal components of a state, centred; V, the robust subspace, for "final". (D, k')"""
        return (self.final if state == "final" else self.early).directions(k, centred=True)

    def spectrum(self, *, centred: bool, count: int = 32) -> tuple[float, ...]:
        """The leading eigenvalues of Δh's moment, largest first. Training uses the uncentred one."""
        return tuple(self.delta.spectrum(centred=centred)[:count].tolist())

    def eigengap(self, k: int = 4, *, centred: bool) -> dict[str, float]:
        """λ_K − λ_{K+1} of Δh's moment, and that over λ₁: the paper's 0.059 and 0.029 (S-Sec. A.7, centred)."""
        values = self.delta.spectrum(centred=centred)
        gap = float(values[k - 1] - values[k]) if k < len(values) and values[0] > 0 else math.nan
        return {"absolute": gap, "relative": gap if math.isnan(gap) else gap / float(values[0])}

    def geometry(self, k: int = 4) -> dict[str, dict[str, Any]]:
        """Angles between the K-dimensional shortcut, final and early subspaces, each pair (S-Sec. A.3.3)."""
        shortcut, final, early = self.shortcut(k), self.pca("final", k), self.pca("early", k)
        return {
            "shortcut_final": angles(shortcut, final),
            "shortcut_early": angles(shortcut, early),
            "final_early": angles(final, early),
        }


def angles(a: Tensor, b: Tensor) -> dict[str, Any]:
    """Principal angles in degrees, smallest first, between the spans of orthonormal bases (D, K₁) and (D, K₂).

    {"mean", "each", "random": the mean of two random subspaces}; NaN if one has no direction.
    """
    each = torch.rad2deg(principal_angles(a.double(), b.double())).tolist()
    if not each:
        return {"mean": math.nan, "each": [], "random": math.nan}
    random = math.degrees(random_angle(a.shape[1], b.shape[1], len(a)))
    return {"mean": math.fsum(each) / len(each), "each": each, "random": random}


def oriented(basis: Tensor) -> Tensor:
    """Each column with its largest entry positive, so that "most positive" names the same end everywhere. (D, K)"""
    if basis.shape[1] == 0:
        return basis
    return basis * basis.gather(0, basis.abs().argmax(dim=0, keepdim=True)).sign()


def ridge_map(source: Tensor, target: Tensor, strength: float = 1e-3) -> tuple[Tensor, Tensor]:
    """The affine least-squares map from rows (N, d) to rows (N, D), with ridge = strength × mean feature variance.

    Returns (matrix (d, D), offset (D,)): a student's features in the teacher's space, the same for all methods.
    """
    covariance = RunningCovariance(source.shape[1], (x for (x,) in blocks(source)))
    moment = covariance.moment(centred=True)  # (d, d)
    y_mean = torch.stack([y.sum(dim=0) for (y,) in blocks(target)]).sum(dim=0) / len(target)  # (D,)
    cross = torch.zeros(source.shape[1], target.shape[1], dtype=torch.float64)
    for x, y in blocks(source, target):
        cross.addmm_((x - covariance.mean).T, y - y_mean, alpha=1 / len(target))
    ridge = strength * moment.diagonal().mean() + torch.finfo(torch.float64).tiny
    matrix = torch.linalg.solve(moment + ridge * torch.eye(len(moment), dtype=moment.dtype), cross)
    return matrix.to(source), (y_mean - covariance.mean @ matrix).to(source)


def student_views(student: Tensor, final: Tensor, train: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A student's features in its teacher's space, each (N, D).

    aligned    after a ridge map onto T_final's features, fitted on training images: for every width
    raw        unchanged, where the widths are equal
    """
    matrix, offset = ridge_map(train["student"], train["final"])
    views = {"aligned": student @ matrix + offset}
    return views | ({"raw": student} if student.shape[1] == final.shape[1] else {})
