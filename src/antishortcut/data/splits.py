"""Subsets, stratified splits, balanced limits and fingerprints of sets."""
# N images

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antishortcut.data import rng
from antishortcut.data.image_io import content_digests, is_remote, stat
from antishortcut.errors import UserError
from antishortcut.types import UNLABELLED, AnySet, FileSet, ImageRef, ImageSet, is_dense

Ints = NDArray[np.int64]

CONTENT = 2**30  # bytes: the content of files is hashed if all of a data set have no more


def take(images: AnySet, index: Tensor) -> AnySet:
    """The images at these places, in this order."""
    cues = {name: value[index] for name, value in images.cues.items()}
    if isinstance(images, ImageSet):
        cover = None if images.cover is None else images.cover[index]
        return replace(images, image=images.image[index], label=images.label[index], cues=cues, cover=cover)
    places = index.tolist()
    masks = tuple(images.masks[at] for at in places) if images.masks else ()
    paths = tuple(images.paths[at] for at in places)
    return replace(images, paths=paths, label=images.label[index], cues=cues, masks=masks)


def hold_out(images: AnySet, fraction: float, seed: int) -> tuple[AnySet, AnySet | None]:
    """Split off `fraction` of every class, as near as whole images allow: (remaining, held out).

    At least one image of a class remains. Images of a dense set are split and limited as if of one class.
    """
    if not 0 <= fraction < 1:
        raise UserError(f"val_fraction must be at least 0 and below 1, not {fraction}")
    if fraction == 0:
        return images, None
    count = len(images)
    size = max(1, round(fraction * count))
    if size >= count:
        raise UserError(f"val_fraction {fraction} of {count} images leaves none to train on; make it smaller")
    label = _classes(images)  # (N,)
    rank, class_size = _rank(label, seed)
    last = rank == class_size - 1  # (N,)
    if last.all():
        raise UserError(f"{count} images, one of each class: none can be held out and scored; add some, or a val/")
    share = np.where(last, 1, (rank + 0.5) / class_size)  # (N,) relative rank: a cut is the same share of all classes
    size = min(size, count - int(last.sum()))
    picked = np.lexsort((rng.mix(seed, rng.CLASS, label), share))  # (N,)
    held_out, remaining = (torch.from_numpy(np.sort(index)) for index in (picked[:size], picked[size:]))
    return take(images, remaining), take(images, held_out)


def limited(images: AnySet, limit: int | None, seed: int, what: str = "train_limit") -> AnySet:
    """At most `limit` images, round-robin over the classes. A smaller limit is a subset of a larger one."""
    if limit is None:
        return images
    if limit < 1:
        raise UserError(f"{what} must be at least 1, not {limit}")
    if limit >= len(images):
        return images
    label = _classes(images)  # (N,)
    rank, _ = _rank(label, seed)
    picked = np.lexsort((rng.mix(seed, rng.CLASS, label), rank))[:limit]  # (limit,)
    return take(images, torch.from_numpy(np.sort(picked)))


def _classes(images: AnySet) -> Ints:
    """The class of every image; those without a label are one more. (N,)"""
    if is_dense(images):
        return np.zeros(len(images), dtype=np.int64)
    label = images.label.numpy()
    return np.where(label == UNLABELLED, label.max(initial=UNLABELLED) + 1, label)


def _rank(label: Ints, seed: int) -> tuple[Ints, Ints]:
    """Rank of every image in a random order of its class, and the size of that class, both (N,)."""
    count = len(label)
    by_class = np.lexsort((rng.mix(seed, rng.SPLIT, np.arange(count)), label))  # (N,)
    sizes = np.bincount(label)
    first = np.cumsum(sizes) - sizes
    rank = np.empty(count, dtype=np.int64)
    rank[by_class] = np.arange(count) - first[label[by_class]]
    return rank, sizes[label]


def files_of(sets: Iterable[AnySet]) -> Iterator[ImageRef]:
    """The images and masks of those sets that are not in memory."""
    for images in sets:
        if isinstance(images, FileSet):
            yield from (*images.paths, *images.masks)


def fingerprint(kind: str, splits: Mapping[str, AnySet], base: Path) -> tuple[str, str]:
    """Sixteen hex digits that change when any image, label or split does; and how, as in `DataSplits.hashed`.

    Of sets in memory the pixels are hashed; of files (and masks) their names below `base` and their content, or their
    sizes if they have more bytes than CONTENT or are remote. Splits are hashed after limits, which thereby count too.
    """
    files = list(files_of(splits.values()))
    facts = [stat(path) for path in files]
    if sum(each.size for each in facts) <= CONTENT and not any(map(is_remote, files)):
        marks, hashed = content_digests(files), "content"
    else:
        marks, hashed = [str(each.size) for each in facts], by_times([each.time for each in facts])
    mark_of = dict(zip(files, marks, strict=True))
    digest = hashlib.sha256(kind.encode(errors="surrogateescape"))
    for name, images in splits.items():
        digest.update(f"\n{name} {len(images)}\n".encode())
        for path in files_of([images]):
            line = f"{_name(path, base)}\0{mark_of[path]}\n"
            digest.update(line.encode(errors="surrogateescape"))  # any bytes may be a name
        first = ("image", images.image) if isinstance(images, ImageSet) else ("lookup", images.lookup)
        for key, value in (first, ("label", images.label), *sorted(images.cues.items())):
            if value is not None:
                digest.update(f"{key} {tuple(value.shape)} {value.dtype}\n".encode())
                digest.update(np.ascontiguousarray(value.numpy()).data)
    return digest.hexdigest()[:16], hashed


def _name(path: ImageRef, base: Path) -> str:
    return path.relative_to(base).as_posix() if isinstance(path, Path) else f"{path.store.name}/{path.name}"


def by_times(times: Sequence[int]) -> str:
    """What `DataSplits.hashed` says of files whose content is not hashed, modified at these times."""
    return f"names, sizes, times {hashlib.sha256(repr(times).encode()).hexdigest()[:16]}"


def set_mark(images: AnySet) -> str:
    """Fingerprint of one set on this machine, with the times of files; they are named below the folder they share."""
    base = Path()
    if isinstance(images, FileSet):
        files = [path.parent for path in files_of([images]) if isinstance(path, Path)]
        base = Path(os.path.commonpath(files)) if files else base
    mark, hashed = fingerprint("one set", {"images": images}, base)
    return mark if hashed == "content" else hashlib.sha256(f"{mark} {hashed}".encode()).hexdigest()[:16]
