"""What a teacher's trajectory shows: the directions in which its features moved, and whether training abandoned them.

This depends on a teacher and one of its early states, not on a student. Evaluation measures it once for all students
(artifacts/directions-<state>.json); the audit uses the same functions.
"""
# N images, D features, K directions, G groups of a factor, C classes, S statistics, H × W pixels

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from antishortcut.analysis.moments import (
    LEFT,
    Moments,
    angles,
    batch_angles,
    batch_sizes,
    bootstrap,
    energy,
    folds,
    project,
    ratio,
    reuse,
)
from antishortcut.data.image_io import fit, in_threads, picture_at, pixels
from antishortcut.data.splits import take
from antishortcut.fileio import atomic_write
from antishortcut.models import Network
from antishortcut.subspace import random_bases, unit
from antishortcut.types import AnySet, DataSplits, ImageSet

K = 4  # directions of the shortcut eigenspace
ROBUST = 8  # of the robust one, where projections on it are measured
FOLDS = 10  # of the training set, for the bootstrap
ENDS = 12  # images at either end of a direction
NAMED = 3  # classes named at either end
TILE = 48  # smallest side in pixels of an image in a strip
GROWN = 2.0  # a direction has grown when its share of the energy is more than this many times the early one

States = Mapping[str, Tensor]  # features (N, D) of the same images by state


def examine_states(
    pool: States,
    early: str,
    train: States,
    images: AnySet,
    names: Sequence[str | int],
    classes: Sequence[str],
    folder: Path,
    final: Network,
    cues: tuple[States, AnySet] | None,
) -> dict[str, Any]:
    """All that is measured of a teacher with the early state `early`.

    pool: features of `images` in every state, "final" too. train: features "early" and "final" of training images.
    names of the images; pictures are written to `folder`. cues: features of the images of `cue_images`, and the images.
    """
    moments = Moments(pool["final"], pool[early])
    result = geometry(moments, pool) | stability(train["final"], train["early"])
    result["directions"] = describe(moments, pool[early], images, names, classes, folder)
    if cues is not None:
        result["explained"] = explain(result["directions"], moments, *cues)
    if (head := read_by_head(final, moments.shortcut(K))) is not None:
        result["head"] = head
    return result


def displaced_and_abandoned(moments: Moments) -> dict[str, Tensor]:
    """Top eigenvectors of E[Δh Δhᵀ], and directions strong in Δh and weak in h_F. Each (D, K)"""
    return {"displaced": moments.shortcut(K), "abandoned": moments.abandoned(K)}


def geometry(moments: Moments, pool: States) -> dict[str, Any]:
    """Angles, spectrum, and the energy of every state of the trajectory in the shortcut and the robust subspace."""
    bases = {"shortcut": moments.shortcut(K), "robust": moments.pca("final", K)}
    pairs = moments.geometry(K)
    return {
        "count": moments.count,
        "width": moments.width,
        "K": K,
        "moved": moments.moved(),
        "angles": pairs | {"random": pairs["shortcut_final"]["random"]},
        "spectrum": {
            "uncentred": moments.spectrum(centred=False),
            "centred": moments.spectrum(centred=True),
            "eigengap": {"uncentred": moments.eigengap(K, centred=False), "centred": moments.eigengap(K, centred=True)},
        },
        "energy": [
            {"state": state} | {name: energy(rows, basis) for name, basis in bases.items()}
            for state, rows in pool.items()
        ],
        "energy_random": K / moments.width,
    }


def stability(final: Tensor, early: Tensor) -> dict[str, Any]:
    """How much the eigenspace depends on the sample: ten folds of the training set, and batches of growing size."""
    count = len(final)
    whole = Moments(final, early).shortcut(K)
    return {
        "bootstrap": bootstrap(final, early, folds(count, min(FOLDS, count)), K),
        "batches": batch_angles(final, early, whole, batch_sizes(count) or (max(count // 2, 1),)),
        "batches_random": angles(whole, whole)["random"],
    }


def fate(left: float | None) -> str | None:
    """What became of a direction, by its final over its early share of the energy: fixed limits, not a test."""
    if left is None or math.isnan(left):
        return None
    return "abandoned" if left < LEFT else "reused" if left <= GROWN else "grown"


def describe(
    moments: Moments, early: Tensor, images: AnySet, names: Sequence[str | int], classes: Sequence[str], folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Each direction: its energy early and final, the images and classes at its ends (by early features (N, D)), and
    the statistics of the images that go along with it.

    `names` of the images. Strips of images are written to `folder` and named relative to its parent.
    """
    result: dict[str, list[dict[str, Any]]] = {}
    for kind, basis in displaced_and_abandoned(moments).items():
        projected = project(early, basis)  # (N, K)
        projected = projected - projected.mean(dim=0)
        means = class_means(projected, images.label, len(classes)).nan_to_num(nan=0.0)  # (C, K)
        named = name_directions(images, projected)
        ends, shares = dict(zip(("high", "low"), extremes(projected, ENDS), strict=True)), reuse(moments, basis)
        result[kind] = []
        for at in range(basis.shape[1]):
            order = means[:, at].argsort(descending=True).tolist()
            direction: dict[str, Any] = {
                "number": at + 1,
                "energy_early": shares["early"][at],
                "energy_final": shares["final"][at],
                "kept": shares["kept"][at],
                "fate": fate(shares["kept"][at]),
                "energy_random": shares["random"],
                "classes_high": [classes[number] for number in order[:NAMED]],
                "classes_low": [classes[number] for number in order[::-1][:NAMED]],
                "statistics": named[at],
            }
            for end, numbers in ends.items():
                direction[f"images_{end}"] = [names[number] for number in numbers[at]]
                path = folder / f"{kind}-{at + 1}-{end}.png"
                with atomic_write(path) as file:
                    strip(take(images, torch.tensor(numbers[at]))).save(file, format="PNG")
                direction[end] = f"{folder.name}/{path.name}"
            result[kind].append(direction)
    return result


def strip(images: AnySet) -> Image.Image:
    """The images side by side, small ones enlarged without smoothing."""
    if isinstance(images, ImageSet):
        rows = images.image
    else:
        rows = torch.stack([pixels(fit(picture_at(images, at), 2 * TILE)) for at in range(len(images))])
    zoom = max(1, round(TILE / rows.shape[2]))
    tiles = [np.asarray(row.permute(1, 2, 0)).repeat(zoom, axis=0).repeat(zoom, axis=1) for row in rows]
    gap = np.full((tiles[0].shape[0], 2, 3), 255, dtype=np.uint8)
    return Image.fromarray(np.concatenate([array for tile in tiles for array in (tile, gap)][:-1], axis=1))


def cue_images(sets: DataSplits) -> AnySet | None:
    """The test set whose images have a known texture, independent of their shape, if there is one."""
    images = sets.tests.get("uncorrelated")
    return images if images is not None and "texture" in images.cues else None


def explain(directions: Mapping[str, list[dict[str, Any]]], moments: Moments, features: States, images: AnySet) -> Any:
    """Add to each direction the share of its variance that texture and shape explain, in every state; return pooled.

    Features of the images of `cue_images`. {kind: {state: {factor: share}}}; shares are ε², which is 0 by chance.
    """
    factors = {"texture": images.cues["texture"], "shape": images.label}
    pooled: dict[str, dict[str, dict[str, float]]] = {}
    for kind, basis in displaced_and_abandoned(moments).items():
        pooled[kind] = {}
        for state, rows in features.items():
            projected = project(rows, basis)
            shares = {name: variance_explained(projected, factor) for name, factor in factors.items()}
            pooled[kind][state] = {name: whole for name, (_, whole) in shares.items()}
            for at, direction in enumerate(directions[kind]):
                own = {name: each[at] for name, (each, _) in shares.items()}
                direction.setdefault("explained", {})[state] = own
    return pooled


def read_by_head(network: Network, basis: Tensor) -> dict[str, Any] | None:
    """How much the classifier reads the directions (D, K), and its logits' change under shifts along them (S-Prop. 3).

    None if the network has no linear classifier of its embedding.
    """
    if network.head is None or network.head.in_features != len(basis):
        return None
    return {"share": head_share(network.head.weight, basis), "shift": head_shift(network.head.weight, basis)}


# --- What a direction means: factors that explain it, images at its ends, how a classifier reads it, its name ---


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
IN_A_NAME = 2  # statistics
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
        words = [f"{name} (r {known[name]:.2f})".replace("-0", "−0").replace("-1", "−1") for name in strong[:IN_A_NAME]]
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
