"""What a teacher's trajectory shows: the directions in which its features moved, and whether training abandoned them.

This depends on a teacher and one of its early states, not on a student. Evaluation measures it once for all students
(artifacts/directions-<state>.json); the audit uses the same functions.
"""
# N images, D features, K directions, C classes

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from antishortcut.analysis.attribution import (
    class_means,
    extremes,
    head_share,
    head_shift,
    name_directions,
    variance_explained,
)
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
    reuse,
)
from antishortcut.data.image_io import fit, picture_at, pixels
from antishortcut.data.splits import take
from antishortcut.fileio import atomic_write
from antishortcut.models import Network
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
