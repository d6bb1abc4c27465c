"""What a direction means: factors that explain it, images at its ends, how much a classifier reads it, and its name."""
# N samples, K directions, G groups of a factor, C classes, D features, S statistics, H × W pixels

import math
from typing import Any

import torch
from torch import Tensor

from antishortcut.analysis.moments import ratio
from antishortcut.data.image_io import fit, in_threads, picture_at, pixels
from antishortcut.subspace import random_bases, unit
from antishortcut.types import AnySet, ImageSet


def variance_explained(projection: Tensor, factor: Tensor) -> tuple[list[float], float]:
    """Share of the variance of projections (N, K) that a factor (N,) of integers explains: per direction, and pooled.

    η² = between groups / total rises with the number of groups by chance. ε² = 1 − (1 − η²)(N − 1)/(N − G) (Kelley
    1935), which is returned, corrects for that: without any relation it is 0 on average. NaN without variance.
    """
    x = projection.detach().cpu().double()
    names, at = torch.unique(factor.cpu(), return_inverse=True)
    n, g = len(x), len(names)
    centred = x - x.mean(dim=0)  # (N, K)
    total = centred.square().sum(dim=0)  # (K,)
    sums = torch.zeros(g, x.shape[1], dtype=x.dtype).index_add_(0, at, centred)  # (G, K)
    between = (sums.square() / torch.bincount(at, minlength=g)[:, None]).sum(dim=0)  # (K,)
    rounding = n * (torch.finfo(x.dtype).eps * x.abs().amax(dim=0) * n).square()
    known = total > rounding  # equal values vary only by rounding

    def adjusted(between: float, total: float) -> float:
        return 1 - (1 - min(ratio(between, total), 1.0)) * (n - 1) / (n - g) if n > g else math.nan

    between, total = between * known, total * known
    each = [adjusted(b, t) for b, t in zip(between.tolist(), total.tolist(), strict=True)]
    return each, adjusted(float(between.sum()), float(total.sum()))


def extremes(projection: Tensor, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """The `count` samples with the largest and the smallest projections (N, K) of each direction; ties by number."""
    order = (projection.argsort(dim=0, descending=first, stable=True) for first in (True, False))
    high, low = (each[:count].T.tolist() for each in order)
    return high, low


def class_means(projection: Tensor, label: Tensor, classes: int) -> Tensor:
    """Mean projection (N, K) of each class; NaN of a class without samples. (C, K)"""
    sums = torch.zeros(classes, projection.shape[1], dtype=projection.dtype).index_add_(0, label, projection)
    return sums / torch.bincount(label, minlength=classes)[:, None]  # 0/0 is NaN


def head_share(weight: Tensor, basis: Tensor, draws: int = 200, seed: int = 0) -> dict[str, float]:
    """How much of a head W (C, D) reads an orthonormal basis U (D, K): norms of W U Uᵀ, of W, and their ratios.

    The random shares are means over seeded random subspaces of as many dimensions.
    """
    w, u = weight.detach().cpu().double(), basis.detach().cpu().double()
    d, k = u.shape
    whole = _norms(w)
    result: dict[str, float] = {"directions": k}
    inside = _norms(w @ u) if k > 0 else (math.nan, math.nan)  # ‖W U Uᵀ‖ = ‖W U‖
    random = [_norms(w @ other) for other in random_bases(d, k, draws, seed)] if k > 0 else []
    chance = [math.fsum(norms) / draws for norms in zip(*random, strict=True)] or (math.nan, math.nan)
    for at, name in enumerate(("spectral", "frobenius")):
        result |= {
            name: inside[at],
            f"whole_{name}": whole[at],
            f"{name}_share": ratio(inside[at], whole[at]),
            f"random_{name}_share": ratio(chance[at], whole[at]),
        }
    return result


def head_shift(weight: Tensor, basis: Tensor, size: float = 1.0, draws: int = 1000, seed: int = 0) -> dict[str, float]:
    """Change of the logits ‖W η‖ under random shifts η = U a of length `size`: mean, largest, bound ‖W U‖ · size.

    `random` is the mean under shifts of the same length in any direction.
    """
    w, u = weight.detach().cpu().double(), basis.detach().cpu().double()
    d, k = u.shape
    generator = torch.Generator().manual_seed(seed)
    anywhere = size * unit(torch.randn(draws, d, generator=generator, dtype=torch.float64))  # (draws, D)
    inside = size * unit(torch.randn(draws, k, generator=generator, dtype=torch.float64)) if k > 0 else anywhere[:, :0]
    moved = torch.linalg.vector_norm(inside @ (w @ u).T, dim=1) if k > 0 else torch.tensor([math.nan])  # (draws,)
    return {
        "size": size,
        "mean": float(moved.mean()),
        "largest": float(moved.max()),
        "bound": size * _norms(w @ u)[0] if k > 0 else math.nan,
        "random": float(torch.linalg.vector_norm(anywhere @ w.T, dim=1).mean()),
    }


def _norms(matrix: Tensor) -> tuple[float, float]:
    """Spectral and Frobenius norm."""
    values = torch.linalg.svdvals(matrix)
    return float(values[0]), float(values.square().sum().sqrt())


# --- Statistics of the images that go along with the projections: names for directions ---

SIDE = 64  # pixels that image files are brought to
MOST = 2_000  # images that are looked at
CHUNK = 256
FEW = 10  # images for every statistic, below which nothing is named
CLEAR = 0.25  # adjusted R² of all statistics together, from which a direction gets a name
STRONG = 0.3  # |r| of a statistic in a name
NAMED = 2  # statistics in a name
LUMA = (0.299, 0.587, 0.114)
OBJECT = ("object size", "object further right", "object further down")  # where it is known which pixels it covers
STATISTICS = ("brightness", "contrast", "saturation", "red tint", "green-blue tint", "edges", "border brightness")


def image_statistics(image: Tensor) -> Tensor:
    """Of images (N, 3, H, W) in [0, 1]: a column for each of STATISTICS. (N, S)

    contrast: standard deviation of the brightness. saturation: mean of (max − min) / max of a pixel's channels.
    The tints are the two coordinates of the mean hue: R − (G + B) / 2 and √3/2 (G − B). edges: mean brightness
    difference of neighbouring pixels. The border is an eighth of the shorter side.
    """
    red, green, blue = image.unbind(dim=1)  # (N, H, W)
    luma = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    top, bottom = image.amax(dim=1), image.amin(dim=1)
    height, width = luma.shape[1:]
    edge = max(min(height, width) // 8, 1)
    frame = torch.ones(height, width, dtype=torch.bool)
    frame[edge : height - edge, edge : width - edge] = False
    columns = (
        luma.mean(dim=(1, 2)),
        luma.flatten(1).std(dim=1, correction=0),
        ((top - bottom) / top.clamp(min=1e-12)).mean(dim=(1, 2)),
        (red - (green + blue) / 2).mean(dim=(1, 2)),
        (3**0.5 / 2 * (green - blue)).mean(dim=(1, 2)),
        (luma.diff(dim=1).abs().mean(dim=(1, 2)) + luma.diff(dim=2).abs().mean(dim=(1, 2))) / 2,
        luma[:, frame].mean(dim=1),
    )
    return torch.stack(columns, dim=1)


def object_statistics(cover: Tensor) -> Tensor:
    """Of how much of each pixel the object covers (N, H, W) in [0, 1]: a column for each of OBJECT. (N, 3)

    Its share of the image, and the centre of what it covers, from 0 to 1; the middle where it covers nothing.
    """
    size, centres = cover.sum(dim=(1, 2)), []
    for along in (1, 2):  # the other side is summed over: (N, W), then (N, H)
        profile = cover.sum(dim=along)
        place = (torch.arange(profile.shape[1], dtype=cover.dtype) + 0.5) / profile.shape[1]
        centres.append(torch.where(size > 0, profile @ place / size.clamp(min=1e-12), 0.5))
    return torch.stack([size / cover[0].numel(), *centres], dim=1)


def correlations(statistics: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
    """Pearson's r (S, K) of statistics (N, S) with projections (N, K), and the adjusted R² (K,) of all together.

    R²_adj = 1 − (1 − R²)(N − 1)/(N − S − 1), which is 0 on average where nothing is related. 0 where nothing varies.
    """
    x, y = (_standardised(values.detach().cpu().double()) for values in (statistics, projection))
    n, varying = len(x), int((x.abs().amax(dim=0) > 0).sum())
    r = x.T @ y / n  # (S, K)
    if n <= varying + 1 or varying == 0:
        return r, torch.zeros(y.shape[1], dtype=torch.float64)
    fitted = x @ (torch.linalg.pinv(x) @ y)  # (N, K)
    unexplained = (y - fitted).square().mean(dim=0)  # y has variance 1, or none at all
    adjusted = 1 - unexplained * (n - 1) / (n - varying - 1)
    return r, torch.where(y.abs().amax(dim=0) > 0, adjusted, 0.0)


def _standardised(values: Tensor) -> Tensor:
    """Columns of mean 0 and variance 1; zeros where one varies only by rounding."""
    centred = values - values.mean(dim=0)
    deviation = centred.square().mean(dim=0).sqrt()
    known = deviation > 1e-9 * values.abs().amax(dim=0)
    return torch.where(known, centred / deviation.clamp(min=1e-300), 0.0)


def name_directions(images: AnySet, projection: Tensor) -> list[dict[str, Any]]:
    """What goes along with each direction, from projections (N, K) of the images on them.

    `r` of every statistic, `r2` of all together, and `name`: "brightness (r −0.79), edges (r 0.41)", or "" where the
    statistics explain too little, none of them much, or there are too few images.
    """
    at = torch.linspace(0, len(images) - 1, min(len(images), MOST)).round().long()  # spread over the set
    statistics, names = statistics_of(images, at), list(STATISTICS)
    if isinstance(images, ImageSet) and images.cover is not None:
        statistics = torch.cat([statistics, object_statistics(images.cover[at].double())], dim=1)
        names += OBJECT
    r, r2 = correlations(statistics, projection[at])
    certain, result = len(at) >= FEW * len(names), []
    for each, whole in zip(r.T.tolist(), r2.tolist(), strict=True):
        known = dict(zip(names, each, strict=True))
        strong = sorted((name for name in known if abs(known[name]) >= STRONG), key=lambda name: -abs(known[name]))
        words = [f"{name} (r {known[name]:.2f})".replace("-0", "−0").replace("-1", "−1") for name in strong[:NAMED]]
        result.append({"r": known, "r2": whole, "name": ", ".join(words) if certain and whole >= CLEAR else ""})
    return result


def statistics_of(images: AnySet, at: Tensor) -> Tensor:
    """Of these images of a set; files are made small first. (n, S)"""
    if isinstance(images, ImageSet) and images.painter is None:
        rows = images.image[at]
    else:
        rows = torch.empty(len(at), 3, SIDE, SIDE, dtype=torch.uint8)

        def fill(row: int) -> None:
            rows[row] = pixels(fit(picture_at(images, int(at[row])), SIDE))

        in_threads(fill, len(at))
    return torch.cat(
        [image_statistics(rows[start : start + CHUNK].double() / 255) for start in range(0, len(at), CHUNK)]
    )
