"""Moments of features, gathered block by block; their directions, angles, energy, and how stable these are."""
# N samples, n rows of a block, B of a batch, D features (d a student's), K directions (k' ≤ K there are), M negatives

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from antishortcut.subspace import (
    abandoned_directions,
    leading_eigenvectors,
    principal_angles,
    projection,
    random_angle,
    random_projection,
    top_directions,
    unit,
)

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


# --- Energy of features in a subspace, and how stable it is over samples and batches ---

Kind = Literal["displaced", "abandoned"]
LEFT = 0.5  # a direction counts as abandoned when less than this share of its early energy is left


def energy(features: Tensor, basis: Tensor) -> float:
    """Mean of ‖Uᵀh‖² / ‖h‖² over rows (N, D) that are not zero (S-Sec. A.3.8); K/D for a random basis (D, K)."""
    total, count = 0.0, 0
    for (rows,) in blocks(features):
        rows = rows[rows.any(dim=1)]
        total += float(((rows @ basis.to(rows)).square().sum(dim=1) / rows.square().sum(dim=1)).sum())
        count += len(rows)
    return ratio(total, count) if basis.shape[1] > 0 else math.nan


def reuse(moments: Moments, basis: Tensor) -> dict[str, Any]:
    """Whether training abandoned or reused each direction of a basis (D, K).

    {"early", "final": E[(uᵀh)²] / E‖h‖² of each direction, "kept": what is left of it, final / early, "abandoned": how
    many have less than half left, "random": 1/D, the share of a random direction}
    """
    early, final = (
        [ratio(value, state.power) for value in state.energy(basis).tolist()]
        for state in (moments.early, moments.final)
    )
    left = [ratio(after, before) for before, after in zip(early, final, strict=True)]
    abandoned = sum(share < LEFT for share in left)
    return {"early": early, "final": final, "kept": left, "abandoned": abandoned, "random": 1 / moments.width}


def held_out_directions(
    early: Tensor, final: Tensor, fit: Tensor, test: Tensor, k: int = 4, kind: Kind = "displaced"
) -> dict[str, Any]:
    """A candidate for the early state: directions of the samples `fit`, measured on the samples `test`.

    Features (N, D) and indices of their rows.
    """
    fitted, tested = Moments(final[fit], early[fit]), Moments(final[test], early[test])
    basis, other = (each.shortcut(k) if kind == "displaced" else each.abandoned(k) for each in (fitted, tested))
    before, after, there = energy(early[test], basis), energy(final[test], basis), basis.shape[1]
    inside = float(tested.delta.energy(basis).sum())
    return {
        "select": kind,
        "directions": there,
        "early": before,  # energy of the early features in them (mean of ratios)
        "final": after,
        "lost": 1 - ratio(after, before),  # the share that training abandoned, negative where energy grew
        "random": there / tested.width if there > 0 else math.nan,  # K/D, the energy in a random subspace
        "explained": ratio(inside, tested.delta.power) if there > 0 else math.nan,  # E‖UᵀΔh‖² / E‖Δh‖² of `test`
        "agreement": angles(basis, other),  # between the directions of the two halves
        "reuse": reuse(tested, basis),
    }


def folds(count: int, number: int = 10, seed: int = 0) -> tuple[Tensor, ...]:
    """A random split of `count` rows into `number` disjoint folds of equal size: indices (count // number,) of each."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    size = count // number
    return tuple(order[size * at : size * (at + 1)].sort().values for at in range(number))


def bootstrap(final: Tensor, early: Tensor, index: Sequence[Tensor], k: int = 4) -> dict[str, float]:
    """Top-K eigenspaces of E[Δh Δhᵀ] of each fold, compared (S-Sec. A.3.5); features (N, D), `index` from `folds`.

    Mean principal angle in degrees, mean ± std (ddof 1): over all pairs of folds, and to the eigenspace of all folds.
    """
    bases = [_eigenspace(final, early, fold, k) for fold in index]
    whole = _eigenspace(final, early, torch.cat(list(index)), k)
    pairs = _between(bases)
    result: dict[str, float] = {"parts": len(bases), "rows": len(index[0]), "pairs": len(pairs)}
    result["mean"], result["std"] = _mean_std(pairs)
    result["to_whole"], result["to_whole_std"] = _mean_std([angles(basis, whole)["mean"] for basis in bases])
    return result | {"random": angles(whole, whole)["random"]}


def batch_sizes(count: int, smallest: int = 32) -> tuple[int, ...]:
    """32, 64, 128, … up to half of the rows, so that two disjoint batches exist."""
    return tuple(itertools.takewhile(lambda size: 2 * size <= count, (smallest * 2**i for i in itertools.count())))


def batch_angles(
    final: Tensor, early: Tensor, whole: Tensor, sizes: Sequence[int], batches: int = 10, seed: int = 0
) -> list[dict[str, float]]:
    """Mean angles in degrees of the eigenspaces of batches of each size: to `whole` (D, K), and between batches.

    Batches are consecutive rows in a random order, as in training. The reference falls as 1/√B from the first angle,
    the rate of Davis–Kahan.
    """
    order = torch.randperm(len(final), generator=torch.Generator().manual_seed(seed))
    rows: list[dict[str, float]] = []
    for size in sizes:
        starts = range(0, size * min(batches, len(order) // size), size)
        bases = [_eigenspace(final, early, order[start : start + size], whole.shape[1]) for start in starts]
        to_whole, _ = _mean_std([angles(basis, whole)["mean"] for basis in bases])
        reference = (rows[0]["to_whole"] if rows else to_whole) * math.sqrt(sizes[0] / size)
        row = {"batch": size, "to_whole": to_whole, "between": _mean_std(_between(bases))[0], "reference": reference}
        rows.append(row)
    return rows


def _eigenspace(final: Tensor, early: Tensor, index: Tensor, k: int) -> Tensor:
    """Top-K eigenvectors of E[Δh Δhᵀ] of the rows `index`, by the smaller Gram matrix. (D, k')"""
    final, early = final[index], early[index]
    width = final.shape[1]
    if k == 0:
        return torch.zeros(width, 0)
    if len(index) < width:
        return top_directions(early.cpu().double() - final.cpu().double(), k)[0]
    return RunningCovariance(width, (h_e - h_f for h_f, h_e in blocks(final, early))).directions(k, centred=False)


def _between(bases: Sequence[Tensor]) -> list[float]:
    return [angles(a, b)["mean"] for a, b in itertools.combinations(bases, 2)]


def _mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (ddof 1) of the values that are defined."""
    known = torch.tensor([value for value in values if not math.isnan(value)], dtype=torch.float64)
    mean = float(known.mean()) if len(known) > 0 else math.nan
    return mean, float(known.std()) if len(known) > 1 else math.nan


# --- What a student relies on: where its features lie between the two teacher states, and how far they project ---

BINS = 40
THRESHOLD = -0.1  # ε_diag: a signed cosine above it is not anti-aligned enough (S-Sec. A.3.1)
MARGIN = 0.1  # ε of L_SS (Eq. 7)


@dataclass(frozen=True)
class Distribution:
    """Mean and histogram, in equal bins from low to high, of one number per row."""

    mean: float
    low: float
    high: float
    histogram: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor, defined: Tensor, low: float, high: float) -> Self:
        """Of the `defined` ones among the values (N,): a zero vector has no direction."""
        values = values[defined].clamp(low, high)  # rounding may step over an end
        mean = float(values.mean()) if len(values) > 0 else math.nan
        return cls(mean, low, high, tuple(int(count) for count in torch.histc(values, BINS, low, high)))


def state_cosines(student: Tensor, final: Tensor, early: Tensor) -> dict[str, Any]:
    """Cosines of h_S to h_F, to h_E and, signed, to Δh = h_E − h_F (S-Sec. A.3.1), with the shares the paper quotes.

    Features (N, D) of the same samples; a pair with a zero row has no cosine and is left out. {"final", "early",
    "displacement": Distribution, "closer_to_final", "above_threshold": share of samples}
    """
    cosines, defined = [], []
    for h_s, h_f, h_e in blocks(student, final, early):
        targets = (h_f, h_e, h_e - h_f)
        cosines.append(torch.stack([(unit(h_s) * unit(other)).sum(dim=1) for other in targets]))  # (3, n)
        defined.append(torch.stack([h_s.any(dim=1) & other.any(dim=1) for other in targets]))
    (to_final, to_early, signed), (has_final, has_early, moved) = torch.cat(cosines, dim=1), torch.cat(defined, dim=1)
    both = has_final & has_early
    return {
        "final": Distribution.of(to_final, has_final, -1, 1),
        "early": Distribution.of(to_early, has_early, -1, 1),
        "displacement": Distribution.of(signed, moved, -1, 1),
        "closer_to_final": ratio(int((to_final > to_early)[both].sum()), int(both.sum())),
        "above_threshold": ratio(int((signed > THRESHOLD)[moved].sum()), int(moved.sum())),
    }


def subspace_projection(features: Tensor, basis: Tensor, margin: float = MARGIN) -> dict[str, Any]:
    """‖h̄ᵀU‖ of rows (N, D) and an orthonormal basis (D, K): U of the shortcuts, V of the robust subspace (Eq. 7).

    {"length": Distribution, "random": √(K/D), "above_margin": share of rows, "hinge": mean [‖h̄ᵀU‖ − ε]₊, i.e. L_SS}
    """
    d, k = basis.shape
    both = [(projection(rows, basis.to(rows)), rows.any(dim=1) & (k > 0)) for (rows,) in blocks(features)]
    lengths, defined = (torch.cat(each) for each in zip(*both, strict=True))  # (N,), (N,)
    excess = (lengths - margin)[defined]
    return {
        "length": Distribution.of(lengths, defined, 0, 1),
        "random": random_projection(k, d) if k > 0 else math.nan,
        "above_margin": ratio(int((excess > 0).sum()), len(excess)),
        "hinge": ratio(float(excess.clamp(min=0).sum()), len(excess)),
    }


def infonce(
    student: Tensor, final: Tensor, early: Tensor, negatives: int, temperature: float = 0.07
) -> dict[str, float]:
    """Lower bounds on mutual information in nats, of normalised features (N, D) of the same samples.

    binary     log 2 − E[L], the positive against the one temporal negative
    full       log(M + 1) − E[L̃_TC], M final features as negatives (Eq. 11): the first `negatives` + 1 without the row's
               own, or without the last of them
    ceiling    log(M + 1), which `full` cannot exceed
    """
    pool = unit(final[: negatives + 1].detach().cpu().double())  # (M + 1, D)
    m, count = len(pool) - 1, len(student)
    binary = full = 0.0
    start = 0
    for block in blocks(student, final, early, size=max(1, min(BLOCK, 2**21 // len(pool)))):
        z_s, z_f, z_e = (unit(rows) for rows in block)
        positive, temporal = (z_s * z_f).sum(dim=1) / temperature, (z_s * z_e).sum(dim=1) / temperature  # (n,)
        binary += float(F.softplus(temporal - positive).sum())
        left_out = torch.arange(start, start + len(z_s)).clamp(max=m)[:, None]  # (n, 1)
        logits = (z_s @ pool.T / temperature).scatter(1, left_out, -math.inf)  # (n, M + 1)
        full += float((torch.logaddexp(positive, logits.logsumexp(dim=1)) - positive).sum())  # Eq. 6
        start += len(z_s)
    ceiling = math.log(m + 1) if m > 0 else math.nan
    return {"binary": math.log(2) - binary / count, "full": ceiling - full / count, "ceiling": ceiling}
