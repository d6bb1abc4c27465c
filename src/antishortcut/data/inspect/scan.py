"""Open a data set as a run would, or as much as can be recognised of a folder that a run refuses; decode every file."""
# N images, H × W pixels

from __future__ import annotations

import hashlib
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from antishortcut.data import readers, segmentation
from antishortcut.data.datasets import IN_MEMORY, divided, find
from antishortcut.data.image_io import as_rgb, in_threads, opened, reason, size_of
from antishortcut.data.transforms import WHOLE_BATCH
from antishortcut.errors import UserError
from antishortcut.fileio import expanded
from antishortcut.types import VOID, AnySet, FileSet, ImageSet, is_dense

SIDES = (32, 48, 64, 96, 128, 160, 192, 224)  # usual input sizes
SAMPLE = 200  # images whose size decides the usual input size
HELD = (*readers.VAL, *readers.TEST)  # names of folders that are not trained on
_PLAIN = {"classes.txt", "classes.json", "metadata.csv"}  # files of a data set that are not images
_TEXTS = ("readme", "license", "licence", "copying", "makefile")
_ORIENTATION = 0x0112  # of EXIF: 1 is upright

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Finding:
    """A data set before anything is decoded."""

    name: str
    classes: tuple[str, ...]
    image_size: int
    parts: Mapping[str, AnySet]  # train, then val and tests
    base: Path | None = None  # the folder of folder:PATH and groups:PATH
    refusal: str = ""  # why a run would not start
    held: str = ""  # of a folder: the name of the folder with the test images; empty: they are split from training
    empty: tuple[str, ...] = ()  # class folders without images
    unpaired: tuple[str, ...] = ()  # images without masks, masks without images
    not_images: tuple[Path, ...] = ()
    unused: Mapping[str, int] = field(default_factory=dict)  # folder → its images that are in no part

    @property
    def dense(self) -> bool:
        return any(is_dense(part) for part in self.parts.values())


def open_finding(
    name: str,
    root: Path | None,
    *,
    seed: int = 0,
    train_limit: int | None = None,
    test_limit: int | None = None,
    val_fraction: float = 0.0,
    image_size: int | None = None,
    options: Mapping[str, float] | None = None,
) -> Finding:
    """As `open_sets` would open it; a folder that it refuses is scanned all the same, with the reason."""
    kind, _, path = name.partition(":")
    folder = expanded(path) if path else None
    try:
        raw, _ = find(name, root, seed=seed, image_size=image_size, options=options)
        train, val, tests = divided(raw, name, seed, train_limit, test_limit, val_fraction)
    except UserError as error:
        if kind != "folder" or folder is None or not folder.is_dir():
            raise
        return _refused(name, folder, str(error), image_size)
    parts: dict[str, AnySet] = {"train": train} | ({} if val is None else {"val": val})
    parts |= {key if key not in parts else f"test {key}": test for key, test in tests.items()}
    finding = Finding(name, raw.classes, raw.image_size, parts)
    if folder is None:
        return finding
    everything = [raw.train, *raw.tests.values(), *([] if raw.val is None else [raw.val])]  # before limits
    not_images, unused = _beside(folder, everything)
    finding = replace(finding, base=folder, not_images=not_images, unused=unused)
    if kind != "folder":
        return finding
    undivided = readers.part_of(folder, readers.TRAIN) is None
    empty = tuple(name for name in readers.folders(folder) if name not in raw.classes) if undivided else ()
    return replace(finding, held=_tested(folder), empty=empty)


def _tested(folder: Path) -> str:
    """The name of the folder with the test images, if there is one."""
    _, test = readers.held_of(folder)
    return "" if test is None else test.name


def _refused(name: str, folder: Path, refusal: str, image_size: int | None) -> Finding:
    """What a folder holds that no run would accept."""
    train = readers.part_of(folder, readers.TRAIN) or folder
    val, test = readers.held_of(folder) if train != folder else (None, None)
    places = {part: place for part, place in (("train", train), ("val", val), ("test", test)) if place is not None}
    parts: dict[str, FileSet] = {}
    empty, unpaired = list[Path](), list[Path]()
    classes: tuple[str, ...] = ()
    crop = 224
    if segmentation.has_masks(folder):
        with suppress(UserError):
            classes = segmentation.names_in(folder)
        most = min(len(classes) or segmentation.MOST, segmentation.MOST)
        lookup = segmentation.table({value: value for value in range(most)})
        for part, place in places.items():
            images = _stems(place / "images", readers.images_below(place / "images"))
            masks = _stems(place / "masks", segmentation.lossless(place / "masks"))
            both = [name for name in images if name in masks]
            unpaired += [images[name] for name in images if name not in masks]
            unpaired += [masks[name] for name in masks if name not in images]
            paths, mask_paths = (tuple(files[name] for name in both) for files in (images, masks))
            parts[part] = FileSet(paths, torch.zeros(len(both), dtype=torch.int64), masks=mask_paths, lookup=lookup)
        with suppress(UserError, IndexError):  # a first image that cannot be read, or none
            crop = segmentation.usual_crop(parts["train"])
    else:
        classes = tuple(dict.fromkeys(name for place in places.values() for name in readers.folders(place)))
        for part, place in places.items():
            listed = {name: readers.images_below(place / name) for name in readers.folders(place)}
            empty += [place / name for name, paths in listed.items() if not paths]
            labels = [classes.index(name) for name, paths in listed.items() for _ in paths]
            files = tuple(path for paths in listed.values() for path in paths)
            parts[part] = FileSet(files, torch.tensor(labels, dtype=torch.int64))
    if not len(parts["train"]):
        raise UserError(refusal)
    not_images, unused = _beside(folder, parts.values(), unpaired)
    return Finding(
        name,
        classes,
        image_size or crop,
        parts,
        base=folder,
        refusal=refusal,
        held=_tested(folder) if train != folder else "",
        empty=tuple(str(path.relative_to(folder)) for path in empty),
        unpaired=tuple(str(path.relative_to(folder)) for path in unpaired),
        not_images=not_images,
        unused=unused,
    )


def _stems(folder: Path, paths: list[Path]) -> dict[str, Path]:
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def _beside(
    folder: Path, parts: Iterable[AnySet], known: Iterable[Path] = ()
) -> tuple[tuple[Path, ...], dict[str, int]]:
    """Files in the folder that are not images, and the number of unused images by folder."""
    used = {path for part in parts if isinstance(part, FileSet) for path in (*part.paths, *part.masks)} | set(known)
    not_images: list[Path] = []
    unused: Counter[str] = Counter()
    for where, below, names in readers.walked(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        for path in (Path(where, name) for name in sorted(names)):
            if path.name.startswith(".") or path in used:
                continue
            if path.suffix.lower() in readers.SUFFIXES:
                unused["/".join(path.relative_to(folder).parts[:-1][:2]) or "."] += 1
            elif path.name not in _PLAIN and not path.name.lower().startswith(_TEXTS):
                not_images.append(path)
    return tuple(not_images), dict(unused)


def usual_side(finding: Finding) -> int:
    """The default input size of your own images: at least half of them are that large."""
    train = finding.parts["train"]
    if finding.base is None or finding.dense or not isinstance(train, FileSet):
        return finding.image_size
    shorter = []
    for path in train.paths[:: max(len(train) // SAMPLE, 1)]:
        with suppress(UserError):
            shorter.append(min(size_of(path)))
    middle = statistics.median(shorter) if shorter else SIDES[-1]
    return max((side for side in SIDES if side <= middle), default=SIDES[0])


def usual_augment(finding: Finding) -> str:
    """The default augmentation: for images with masks, on disk, or small and in memory."""
    if finding.dense:
        return segmentation.CROPS
    large = isinstance(finding.parts["train"], FileSet) and finding.image_size > IN_MEMORY
    return "imagenet" if large else "crop-flip"


def check_augment(finding: Finding, augment: str) -> None:
    """Refuse an augmentation as a run would; the run may have moved images on disk into memory by then."""
    train = finding.parts["train"]
    if isinstance(train, FileSet) and train.masks and augment in WHOLE_BATCH:
        with suppress(UserError):  # an unreadable image is reported later
            if segmentation.one_small_size(train) is not None:
                return
    segmentation.check(train, augment)


@dataclass(frozen=True)
class ImageFacts:
    """One image, and its mask if it has one."""

    size: tuple[int, int] = (0, 0)  # width, height
    mode: str = ""  # how its pixels are stored; empty for images in memory
    digest: bytes = b""  # of its pixels before they are resized
    turned: bool = False  # EXIF asks for a rotation, which training ignores
    wrong: str = ""  # why it cannot be read
    values: Counts | None = None  # (256,) pixels of every value in its mask
    mask_wrong: str = ""


def look(images: AnySet, tell: Callable[[], None] = lambda: None) -> list[ImageFacts]:
    """Facts of all images of a set, those on disk decoded in threads; `tell` is called after each of these."""
    if isinstance(images, ImageSet):
        size = (int(images.image.shape[3]), int(images.image.shape[2]))
        pixels, label = images.image.numpy().transpose(0, 2, 3, 1), images.label.numpy()
        dense = is_dense(images)
        return [
            ImageFacts(size, digest=_digest(pixels[at]), values=_counted(label[at]) if dense else None)
            for at in range(len(images))
        ]
    facts = [ImageFacts()] * len(images)

    def fill(at: int) -> None:
        facts[at] = _file(images, at)
        tell()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about odd files that it still reads
        in_threads(fill, len(images))
    return facts


def _file(files: FileSet, at: int) -> ImageFacts:
    try:
        with opened(files.paths[at]) as picture:
            turned = picture.getexif().get(_ORIENTATION, 1) not in (0, 1)
            mode = f"{picture.mode}, transparent" if "transparency" in picture.info else picture.mode
            facts = ImageFacts(picture.size, mode, _digest(np.asarray(as_rgb(picture))), turned)
    except Exception as error:  # a damaged file can make a decoder raise anything
        facts = ImageFacts(wrong=reason(error))
    if not files.masks:
        return facts
    path = files.masks[at]
    try:
        values = segmentation.read_values(path)  # (H, W)
    except UserError as error:
        why = str(error).removeprefix(f"cannot read the mask {path} (").removesuffix("); replace or remove the file")
        return replace(facts, mask_wrong=why)
    height, width = values.shape
    if not facts.wrong and (width, height) != facts.size:
        return replace(facts, mask_wrong=f"{width} × {height} pixels, its image {facts.size[0]} × {facts.size[1]}")
    return replace(facts, values=_counted(values))


def _digest(pixels: NDArray[np.uint8]) -> bytes:
    """Of an image's pixels (H, W, 3): equal for exact copies, whatever their format."""
    person = b"%dx%d" % pixels.shape[:2]
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16, person=person).digest()


def _counted(values: NDArray[np.uint8]) -> Counts:
    return np.bincount(values.ravel(), minlength=VOID + 1)
