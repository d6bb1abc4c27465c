"""What a teacher's trajectory shows: the directions in which its features moved, and whether training left them.

Everything here belongs to a teacher and one of its early states, not to a student: it is measured once, written to the
teacher's artifacts/directions-<state>.json, and shared by all its students. The audit uses the same functions.
"""
# N images, D features, K directions

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from antishortcut.analysis import (
    Chunks,
    Moments,
    batch_sizes,
    bootstrap,
    class_means,
    ends,
    energy,
    explained,
    growth,
    head_share,
    head_shift,
    parts,
    plain,
    project,
    reuse,
)
from antishortcut.data.image_io import fit, pixels, read
from antishortcut.data.splits import take
from antishortcut.fileio import atomic_write
from antishortcut.types import AnySet, ImageSet

K = 4  # directions of the shortcut eigenspace
ROBUST = 8  # of the robust one, where projections on it are measured
PARTS = 10  # of the training set, for the bootstrap
ENDS = 12  # pictures at either end of a direction
NAMED = 3  # classes named at either end
TILE = 48  # pixels of a picture's side at least, in a strip


def geometry(pool: Mapping[str, Tensor], early: str) -> dict[str, Any]:
    """Angles, spectrum and energy along the trajectory. `pool` holds the same images in every state, "final" too."""
    moments = Moments.of(Chunks({"final": pool["final"], "early": pool[early]}))
    bases = {"shortcut": moments.shortcut(K), "robust": moments.pca("final", K)}
    course = [
        {"state": state} | {name: energy(rows, basis).mean for name, basis in bases.items()}
        for state, rows in pool.items()
    ]
    angles = moments.geometry(K)
    return {
        "early": early,
        "count": moments.count,
        "width": moments.width,
        "K": K,
        "moved": moments.moved(),
        "angles": angles.values() | {"random": angles.shortcut_final.random},
        "spectrum": {
            "uncentred": moments.spectrum(centred=False),
            "centred": moments.spectrum(centred=True),
            "eigengap": {"uncentred": moments.eigengap(K, centred=False), "centred": moments.eigengap(K, centred=True)},
        },
        "energy": course,
        "energy_random": K / moments.width,
    }


def stability(training: Mapping[str, Tensor]) -> dict[str, Any]:
    """How far the eigenspace depends on the sample: ten parts of the training set, and batches of growing size."""
    count = len(training["final"])
    number = min(PARTS, count)
    parted = bootstrap(Chunks(training), parts(count, number), K)
    whole = Moments.of(Chunks(training)).shortcut(K)
    grown = growth(Chunks(training, seed=0), whole, batch_sizes(count) or (max(count // 2, 1),))
    rows = zip(grown.batch, grown.to_whole, grown.between, grown.to_whole_reference, strict=True)
    return {
        "bootstrap": parted,
        "batches": [dict(zip(("batch", "to_whole", "between", "reference"), row, strict=True)) for row in rows],
        "batches_random": grown.random,
    }


def kinds(pool: Mapping[str, Tensor], early: str) -> dict[str, Tensor]:
    """Displaced directions, top eigenvectors of E[Δh Δhᵀ], and abandoned ones, strong in Δh and weak in h_F. (D, K)"""
    moments = Moments.of(Chunks({"final": pool["final"], "early": pool[early]}))
    return {"displaced": moments.shortcut(K), "abandoned": moments.abandoned(K)}


def describe(
    pool: Mapping[str, Tensor], early: str, images: AnySet, classes: Sequence[str], folder: Path | None
) -> dict[str, Any]:
    """Each direction: its energy early and final, and the images and classes at its ends (by early features).

    Strips of pictures go into `folder`, if one is given; their names are relative to its parent.
    """
    moments = Moments.of(Chunks({"final": pool["final"], "early": pool[early]}))
    result: dict[str, Any] = {}
    for kind, basis in kinds(pool, early).items():
        outputs = project(Chunks({"early": pool[early]}), basis, "early")  # (N, K)
        outputs = outputs - outputs.mean(dim=0)
        far, means, left = ends(outputs, ENDS), class_means(outputs, images.label, len(classes)), reuse(moments, basis)
        result[kind] = [
            {
                "number": at + 1,
                "energy_early": left.early[at],
                "energy_final": left.final[at],
                "kept": left.kept[at],
                "energy_random": left.random,
            }
            | _ends(kind, at, far.positive[at], far.negative[at], means[:, at], images, classes, folder)
            for at in range(basis.shape[1])
        ]
    return result


def _ends(
    kind: str,
    at: int,
    high: Sequence[int],
    low: Sequence[int],
    means: Tensor,
    images: AnySet,
    classes: Sequence[str],
    folder: Path | None,
) -> dict[str, Any]:
    order = means.nan_to_num(nan=0.0).argsort(descending=True).tolist()
    result: dict[str, Any] = {
        "classes_high": [classes[number] for number in order[:NAMED]],
        "classes_low": [classes[number] for number in order[::-1][:NAMED]],
    }
    if folder is not None:
        for end, numbers in (("high", high), ("low", low)):
            path = folder / f"{kind}-{at + 1}-{end}.png"
            with atomic_write(path) as file:
                strip(take(images, torch.tensor(numbers))).save(file, format="PNG")
            result[end] = f"{folder.name}/{path.name}"
    return result


def strip(images: AnySet) -> Image.Image:
    """The images side by side, small ones enlarged without smoothing."""
    if isinstance(images, ImageSet):
        rows = images.image
    else:
        rows = torch.stack([pixels(fit(read(path), 2 * TILE)) for path in images.paths])
    zoom = max(1, round(TILE / rows.shape[2]))
    tiles = [np.asarray(row.permute(1, 2, 0)).repeat(zoom, axis=0).repeat(zoom, axis=1) for row in rows]
    gap = np.full((tiles[0].shape[0], 2, 3), 255, dtype=np.uint8)
    return Image.fromarray(np.concatenate([part for tile in tiles for part in (tile, gap)][:-1], axis=1))


def meaning(
    bases: Mapping[str, Tensor], features: Mapping[str, Tensor], factors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Share of the variance of each direction's projection that known factors explain, early and final.

    {kind: {"each": [{"early": {factor: share}, "final": …}, …], "pooled": {"early": {factor: share}, …}}}; shares are
    ε², which chance leaves at 0. Factors must be independent of each other in these images for shares to mean them.
    """
    result: dict[str, Any] = {}
    for kind, basis in bases.items():
        shares = {
            state: {
                name: explained(project(Chunks({state: rows}), basis, state), factor)
                for name, factor in factors.items()
            }
            for state, rows in features.items()
        }
        each = [
            {state: {name: share.adjusted[at] for name, share in by.items()} for state, by in shares.items()}
            for at in range(basis.shape[1])
        ]
        pooled = {state: {name: share.pooled_adjusted for name, share in by.items()} for state, by in shares.items()}
        result[kind] = {"each": each, "pooled": pooled}
    return result


def head(weight: Tensor, basis: Tensor) -> dict[str, Any]:
    """How much a classifier W (C, D) reads the directions, and its logits' change under shifts along them."""
    return {"share": head_share(weight, basis).values(), "shift": head_shift(weight, basis).values()}


def written(found: Mapping[str, Any]) -> Any:
    """As JSON takes it."""
    return plain(found)
