"""Open a data set as a run would, choose the usual input size and augmentation for it, and decode every image."""
# N images, H × W pixels

from __future__ import annotations

import hashlib
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from antishortcut.data import readers, segmentation
from antishortcut.data.datasets import IN_MEMORY, divided, find
from antishortcut.data.image_io import REPLACE, in_threads, picture_at, size_of
from antishortcut.data.transforms import WHOLE_BATCH
from antishortcut.errors import UserError
from antishortcut.fileio import expanded
from antishortcut.types import VOID, AnySet, FileSet, is_dense

SIDES = (32, 48, 64, 96, 128, 160, 192, 224)  # usual input sizes
SAMPLE = 200  # images whose size decides the usual input size
_ORIENTATION = 0x0112  # of EXIF: 1 is upright


@dataclass(frozen=True)
class Finding:
    """A data set before anything is decoded."""

    name: str
    classes: tuple[str, ...]
    image_size: int
    parts: Mapping[str, AnySet]  # train, then val and tests
    base: Path | None = None  # the folder of folder:PATH and groups:PATH
    held: str = ""  # of a folder: the name of the folder with the test images; empty: they are split from training
    empty: tuple[str, ...] = ()  # class folders without images
    unused: Mapping[str, int] = field(default_factory=dict)  # folder → its images that are in no part
    unknown: Mapping[str, int] = field(default_factory=dict)  # suffix → images of a kind that is not read

    @property
    def dense(self) -> bool:
        return is_dense(self.parts["train"])


def open_finding(
    name: str,
    root: Path | None,
    *,
    seed: int = 0,
    image_size: int | None = None,
    options: Mapping[str, float] | None = None,
    **limits: Any,
) -> Finding:
    """As `open_sets` would open it, but nothing is decoded. `limits` are those of `datasets.divided`."""
    raw, _ = find(name, root, seed=seed, image_size=image_size, options=options)
    splits = divided(raw, name, seed=seed, **limits)
    parts = {key.removeprefix("test "): images for key, images in splits.items()}
    kind, _, path = name.partition(":")
    if not path:
        return Finding(name, raw.classes, raw.image_size, parts)
    folder = expanded(path)
    unused, unknown = _beside(folder, [raw.train, *raw.tests.values(), *([] if raw.val is None else [raw.val])])
    held, empty = "", list[str]()
    if kind == "folder":
        _, test = readers.held_of(folder)
        held = "" if test is None else test.name
        if readers.part_of(folder, readers.TRAIN) is None:
            empty = [each for each in readers.folders(folder) if each not in raw.classes]
    return Finding(name, raw.classes, raw.image_size, parts, folder, held, tuple(empty), unused, unknown)


def _beside(folder: Path, parts: Iterable[AnySet]) -> tuple[Counter[str], Counter[str]]:
    """Images that are in no part, by folder, and images of a kind that is not read, by suffix; hidden ones aside."""
    used = {path for part in parts if isinstance(part, FileSet) for path in (*part.paths, *part.masks)}
    unused, unknown = Counter[str](), Counter[str]()
    for where, _, names in readers.walked(folder):
        for path in (Path(where, name) for name in sorted(names)):
            *above, name = path.relative_to(folder).parts
            kind = path.suffix.lower()
            if path in used or any(word.startswith(".") for word in (*above, name)):
                continue
            if kind in readers.SUFFIXES:
                unused["/".join(above[:2]) or "."] += 1
            elif kind in readers.FOREIGN:
                unknown[kind] += 1
    return unused, unknown


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
    digest: bytes = b""  # of its pixels before they are resized
    turned: bool = False  # EXIF asks for a rotation, which training ignores
    pixels: NDArray[np.int64] | None = None  # (256,) how many pixels every class has in its mask
    wrong: str = ""  # why training could not use it


def look(images: AnySet, tell: Callable[[], None] = lambda: None) -> list[ImageFacts]:
    """Facts of all images of a set, decoded in threads; `tell` is called after each."""
    facts = [ImageFacts()] * len(images)

    def fill(at: int) -> None:
        try:
            facts[at] = _facts(images, at)
        except UserError as error:
            facts[at] = ImageFacts(wrong=str(error).removesuffix(REPLACE))
        tell()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about odd files that it still reads
        in_threads(fill, len(images))
    return facts


def _facts(images: AnySet, at: int) -> ImageFacts:
    counts = None
    if is_dense(images):
        picture, label = segmentation.read_pair(images, at)
        counts = np.bincount(label.ravel(), minlength=VOID + 1)
    else:
        picture = picture_at(images, at)
    person = b"%dx%d" % picture.size  # exact copies are equal, whatever their format
    digest = hashlib.blake2b(picture.tobytes(), digest_size=16, person=person).digest()
    return ImageFacts(picture.size, digest, _turned(picture), counts)


def _turned(picture: Image.Image) -> bool:
    try:
        return picture.getexif().get(_ORIENTATION, 1) not in (0, 1)
    except Exception:  # damaged EXIF can raise anything, and training does not read it
        return False
