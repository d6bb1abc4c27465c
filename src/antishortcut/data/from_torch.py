"""A torch Dataset or DataLoader → a folder of class folders, written once and named by its content.

So a run made from Python objects can be resumed, evaluated and exported without them. Each item is read once: what a
random transform does is fixed by that, and augmentation is left to training.
"""

import hashlib
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from antishortcut.data.image_io import as_rgb
from antishortcut.errors import UserError, first_line, plural, short_repr
from antishortcut.progress import ProgressBar

SPLITS = ("train", "val", "test")
IMAGES, LABELS = ("image", "img", "pixel_values"), ("label", "labels", "fine_label")  # keys of items that are dicts
ROOM = 1_000  # images after which the room on the disk is looked at again
ENDLESS = 1_000_000  # images of a data set without a length
WHOLE = (SequentialSampler, RandomSampler, WeightedRandomSampler, DistributedSampler)  # they draw from all images
EXPECTED = "each item is wanted as (image, class number), or a dict with image and label"


def write_folder(data: Any, below: Path, quiet: bool = False, labelled: bool = True) -> Path:
    """Write the images of a data set, of (train, test), or of {"train": …, "val": …, "test": …}; returns the folder.

    labelled: without it items may be images alone, and labels are not read.
    """
    splits = {name: _dataset(part) for name, part in _splits(data).items()}
    if not labelled and len(splits) > 1:
        raise UserError("data: images without labels are one Dataset or DataLoader; a tenth of them is held out")
    below.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".", dir=below))
    work.chmod(0o755)  # mkdtemp lets nobody else in
    try:
        digest, found = hashlib.sha256(), dict[str, set[int]]()
        for name, images in splits.items():
            title = f"reading the {name} images"
            found[name] = _write_split(_read(images, labelled), images, work / name, digest, title, quiet)
        labels = set[int]().union(*found.values())
        gap = next(number for number in itertools.count() if number not in found["train"])
        if gap <= max(labels):  # a label may be any number; names are made only of numbers without gaps
            raise UserError(f"data: no training image of class {gap}; number the classes without gaps")
        classes = _class_names(splits["train"], labels) if labelled else ["images"]
        digest.update(repr(classes).encode(errors="replace"))
        for folder in work.glob("*/*"):
            folder.rename(folder.with_name(classes[int(folder.name[1:])]))
        missing = [name for name in classes if not (work / "train" / name).is_dir()]
        if missing:
            raise UserError(f"data: no training image of class {missing[0]}; number the classes without gaps")
        place = below / f"{type(splits['train']).__name__}-{digest.hexdigest()[:10]}"
        source = work if len(splits) > 1 else work / "train"
        if not place.is_dir():
            try:
                os.replace(source, place)
            except OSError:
                if not place.is_dir():  # else another process, such as one of torchrun's, was first
                    raise
        return place
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _splits(data: Any) -> dict[str, Any]:
    if isinstance(data, Mapping) and set(data) <= set(SPLITS) and "train" in data:
        return {name: data[name] for name in SPLITS if name in data}
    if isinstance(data, tuple | list) and len(data) == 2:
        return {"train": data[0], "test": data[1]}
    if isinstance(data, Mapping | tuple | list):
        raise UserError("data: a name, a folder, a Dataset, a DataLoader, (train, test), or {'train': …, 'test': …}")
    return {"train": data}


def _dataset(data: Any) -> Any:
    """The data set of a loader, whose order and batches are training's own."""
    if not isinstance(data, DataLoader):
        return data
    sampler = getattr(data.batch_sampler, "sampler", data.sampler)
    if isinstance(sampler, SubsetRandomSampler):
        return Subset(data.dataset, sorted(sampler.indices))
    if isinstance(data.dataset, IterableDataset) or isinstance(sampler, WHOLE):
        return data.dataset
    kind = type(sampler).__name__  # it may leave images out, such as those that another loader tests on
    raise UserError(f"data: which images a {kind} draws is not known; pass Subset(dataset, indices) without a sampler")


def _items(images: Any) -> Iterator[Any]:
    if isinstance(images, IterableDataset) or not hasattr(images, "__getitem__"):
        yield from images
        return
    yield from (images[at] for at in range(len(images)))


def _write_split(
    items: Iterator[tuple[Image.Image, int]], images: Any, folder: Path, digest: Any, title: str, quiet: bool
) -> set[int]:
    """Files folder/<class number>/<index>.png; returns the class numbers."""
    total, labels, hashes = len(images) if hasattr(images, "__len__") else 0, set[int](), set[int]()
    with ProgressBar(title, total, quiet) as bar:
        for at, (image, label) in enumerate(items):
            if at % ROOM == 0:
                _require_room(image, total - at if total else ROOM, folder.parent)
            if at >= (total or ENDLESS) or (not total and at >= ROOM and 2 * len(hashes) < at):
                text = f"its length is {total:,}" if total else f"{len(hashes):,} different ones, and it has no length"
                raise UserError(f"data: {type(images).__name__} gives more than {at:,} images ({text}); does it end?")
            path = folder / f"#{label}" / f"{at:07d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, compress_level=1)
            content = f"{folder.name} {label} {image.mode} {image.size}".encode() + image.tobytes()
            digest.update(content)
            hashes.add(hash(content))
            labels.add(label)
            bar.update(at + 1, {})
    if not labels:
        raise UserError(f"data: the {folder.name} set has no images")
    return labels


def _read(images: Any, labelled: bool) -> Iterator[tuple[Image.Image, int]]:
    items, name = _items(images), type(images).__name__
    for at in itertools.count():
        try:
            item = next(items)
        except StopIteration:
            return
        except Exception as error:  # whatever a user's code raises, which is its cause
            problem = f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"data: item {at} of {name} cannot be read: {problem}") from error
        yield _pair(item, at, labelled)


def _pair(item: Any, at: int, labelled: bool) -> tuple[Image.Image, int]:
    if isinstance(item, Mapping):
        values = [next((item[key] for key in keys if key in item), None) for keys in (IMAGES, LABELS)]
        if any(part is None for part in values[: 1 + labelled]):
            raise UserError(f"data: item {at} has {', '.join(map(str, item))}; {EXPECTED}")
        image, label = values
    elif isinstance(item, tuple | list) and len(item) > labelled:
        image, label = item[0], item[1] if labelled else None
    elif labelled:
        raise UserError(f"data: item {at} is a {type(item).__name__}; {EXPECTED}")
    else:
        image, label = item, None
    return _picture(image, at), _number(label, at) if labelled else 0


def _number(label: Any, at: int) -> int:
    try:
        number = label if isinstance(label, int) else int(label.item())
        if number < 0 or number != label:
            raise ValueError
    except (AttributeError, ValueError, RuntimeError, TypeError):
        raise UserError(f"data: the label of item {at} is {short_repr(label)}, not a class number from 0") from None
    return number


def _picture(image: Any, at: int) -> Image.Image:
    if isinstance(image, Image.Image):
        if image.mode in ("I", "F"):
            raise UserError(f"data: the image of item {at} has mode {image.mode}, of no fixed range; make it L or RGB")
        try:
            image.load()  # a file may have been opened only
            return image if image.mode == "L" else as_rgb(image)
        except Exception as error:  # a damaged file can make a decoder raise anything
            raise UserError(f"data: the image of item {at} cannot be read: {first_line(error)}") from error
    array = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    if array.dtype.kind == "f" and array.size:
        low, high = float(array.min()), float(array.max())
        if not (low >= -1e-4 and high <= 1 + 1e-4):
            raise UserError(
                f"data: item {at} has values from {low:.3g} to {high:.3g}; leave Normalize out of the transform: "
                "images are wanted in [0, 1], and every network normalises its own (student.mean, student.std)"
            )
        array = np.rint(array.clip(0, 1) * 255).astype(np.uint8)
    if array.ndim == 3 and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
        shape = f"{type(image).__name__} of shape {tuple(array.shape)} and type {array.dtype}"
        raise UserError(f"data: the image of item {at} is a {shape}; wanted is a PIL image, uint8, or float in [0, 1]")
    return Image.fromarray(np.ascontiguousarray(array))


def _require_room(image: Image.Image, total: int, place: Path) -> None:
    """All are about as large as the first, and PNG does not make noise smaller."""
    need, free = total * len(image.tobytes()), shutil.disk_usage(place).free
    if need > free:
        size = f"{need / 2**30:.1f} GiB, but {free / 2**30:.1f} are free there"
        raise UserError(f"data: {plural(total, 'image')} are copied to {place.parent}, {size}; pass a folder instead")


def _class_names(images: Any, labels: set[int]) -> list[str]:
    """Names of folders whose alphabetical order is that of the class numbers."""
    while not (classes := getattr(images, "classes", None)) and hasattr(images, "dataset"):  # a Subset's
        images = images.dataset
    count, width = max(labels) + 1, len(str(max(labels)))
    if not isinstance(classes, list | tuple) or len(classes) < count:
        return [f"{at:0{width}d}" for at in range(count)]
    names = [re.sub(r"[^\w .,+-]+", "-", str(name)).strip(" .") or "class" for name in classes]
    width = len(str(len(names) - 1))
    return names if sorted(set(names)) == names else [f"{at:0{width}d}-{name}" for at, name in enumerate(names)]
