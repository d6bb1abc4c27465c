"""The parts of a set as a run would get them, or as much of a refused folder as can be recognised."""
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

from antishortcut.data import readers as layouts
from antishortcut.data import segmentation as scenes
from antishortcut.data.datasets import IN_MEMORY, divided, find
from antishortcut.data.image_io import as_rgb, in_threads, opened, reason, size_of
from antishortcut.data.segmentation import CROPS, MOST, check, one_small_size, read_values
from antishortcut.data.transforms import WHOLE_BATCH
from antishortcut.errors import UserError
from antishortcut.fileio import expanded
from antishortcut.types import VOID, AnySet, FileSet, ImageSet, is_dense

SIDES = (32, 48, 64, 96, 128, 160, 192, 224)  # of the squares that networks see
LOOKED_AT = 200  # images whose size is asked for
HELD = (*layouts.VAL, *layouts.TEST)  # names of folders that are not trained on
_PLAIN = {"classes.txt", "classes.json", "metadata.csv"}  # files that belong to a set and are no images
_TEXTS = ("readme", "license", "licence", "copying", "makefile")


@dataclass(frozen=True)
class Finding:
    """A set before anything is decoded."""

    name: str
    classes: tuple[str, ...]
    image_size: int
    parts: Mapping[str, AnySet]  # train, then val and tests
    base: Path | None = None  # of a folder or a table of the person's own: where it lies
    refusal: str = ""  # why a run would not begin
    held: str = ""  # of a folder: the one that the test images are in; without one they are cut from training
    empty: tuple[str, ...] = ()  # class folders without images
    unpaired: tuple[str, ...] = ()  # images without masks, masks without images
    others: tuple[Path, ...] = ()  # files there that are not images
    unused: Mapping[str, int] = field(default_factory=dict)  # folder → images there that no part has

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
    """As `open_sets` would open it; a folder that it refuses is looked through all the same, with the reason."""
    kind, _, path = name.partition(":")
    folder = expanded(path) if path else None
    try:
        result, _ = find(name, root, seed=seed, image_size=image_size, options=options)
        train, val, tests = divided(result, name, seed, train_limit, test_limit, val_fraction)
    except UserError as error:
        if kind != "folder" or folder is None or not folder.is_dir():
            raise
        return _refused(name, folder, str(error), image_size)
    pieces: dict[str, AnySet] = {"train": train} | ({} if val is None else {"val": val})
    pieces |= {key if key not in pieces else f"test {key}": test for key, test in tests.items()}
    finding = Finding(name, result.classes, result.image_size, pieces)
    if folder is None:
        return finding
    every = [result.train, *result.tests.values(), *([] if result.val is None else [result.val])]  # before limits
    rest, unused = _beside(folder, [part for part in every if isinstance(part, FileSet)])
    finding = replace(finding, base=folder, others=rest, unused=unused)
    if kind != "folder":
        return finding
    empty: tuple[str, ...] = ()
    if layouts.part_of(folder, layouts.TRAIN) is None and not scenes.has_masks(folder):
        empty = tuple(name for name in layouts.folders(folder) if name not in result.classes)
    return replace(finding, held=_tested(folder), empty=empty)


def usual_side(finding: Finding) -> int:
    """What suits a person's own images when nobody says: no more than half of them show; others have a size."""
    train = finding.parts["train"]
    if finding.base is None or finding.dense or not isinstance(train, FileSet):
        return finding.image_size
    step = max(len(train) // LOOKED_AT, 1)
    shorter = []
    for path in train.paths[::step]:
        with suppress(UserError):
            shorter.append(min(size_of(path)))
    middle = statistics.median(shorter) if shorter else SIDES[-1]
    return max((side for side in SIDES if side <= middle), default=SIDES[0])


def usual_augment(finding: Finding) -> str:
    """What suits the images when nobody says: with masks, on disk, or small and in memory."""
    if finding.dense:
        return CROPS
    large = isinstance(finding.parts["train"], FileSet) and finding.image_size > IN_MEMORY
    return "imagenet" if large else "crop-flip"


def check_augment(finding: Finding, augment: str) -> None:
    """Refuse an augmentation as a run would, for which images on disk may be in memory by then."""
    train = finding.parts["train"]
    if isinstance(train, FileSet) and train.masks and augment in WHOLE_BATCH:
        with suppress(UserError):  # one that cannot be read, told later
            if one_small_size(train) is not None:
                return
    check(train, augment)


def _refused(name: str, folder: Path, refusal: str, image_size: int | None) -> Finding:
    """A folder that no run would take."""
    train = layouts.part_of(folder, layouts.TRAIN) or folder
    val, test = layouts.held_of(folder) if train != folder else (None, None)
    places = {part: place for part, place in (("train", train), ("val", val), ("test", test)) if place is not None}
    empty: tuple[str, ...] = ()
    unpaired: tuple[str, ...] = ()
    if scenes.has_masks(folder):
        classes, pieces, unpaired = _scenes(folder, places)
    else:
        classes, pieces, empty = _classes(folder, places)
    if not len(pieces["train"]):
        raise UserError(refusal)
    rest, unused = _beside(folder, pieces.values(), [folder / name for name in unpaired])
    crop = 224
    with suppress(UserError, IndexError):  # a first image that cannot be read, or none
        crop = scenes.usual_crop(pieces["train"]) if pieces["train"].masks else crop
    return Finding(
        name,
        classes,
        image_size or crop,
        pieces,
        base=folder,
        refusal=refusal,
        held=_tested(folder) if train != folder else "",
        empty=empty,
        unpaired=unpaired,
        others=rest,
        unused=unused,
    )


def _tested(folder: Path) -> str:
    """The name of the folder that the test images are in, if there is one."""
    _, test = layouts.held_of(folder)
    return "" if test is None else test.name


def _classes(folder: Path, places: Mapping[str, Path]) -> tuple[tuple[str, ...], dict[str, FileSet], tuple[str, ...]]:
    """Classes, those of training first; images of every part; class folders without any."""
    named = {part: layouts.folders(place) for part, place in places.items()}
    classes = tuple(dict.fromkeys(name for names in named.values() for name in names))
    number = {name: at for at, name in enumerate(classes)}
    pieces, empty = {}, []
    for part, place in places.items():
        listed = [(name, layouts.images_below(place / name)) for name in named[part]]
        empty += [str((place / name).relative_to(folder)) for name, paths in listed if not paths]
        label = torch.tensor([number[name] for name, paths in listed for _ in paths], dtype=torch.int64)
        pieces[part] = FileSet(tuple(path for _, paths in listed for path in paths), label)
    return classes, pieces, tuple(empty)


def _scenes(folder: Path, places: Mapping[str, Path]) -> tuple[tuple[str, ...], dict[str, FileSet], tuple[str, ...]]:
    """Classes; images that have a mask, with it; images and masks without a partner."""
    names: tuple[str, ...] = ()
    with suppress(UserError):
        names = scenes.names_in(folder)
    lookup = scenes.table({value: value for value in range(min(len(names) or MOST, MOST))})
    pieces, unpaired = {}, []
    for part, place in places.items():
        images = _stems(place / "images", layouts.images_below(place / "images"))
        masks = _stems(place / "masks", scenes.lossless(place / "masks"))
        both = [name for name in images if name in masks]
        single = [images[name] for name in images if name not in masks]
        single += [masks[name] for name in masks if name not in images]
        unpaired += [str(path.relative_to(folder)) for path in single]
        label = torch.zeros(len(both), dtype=torch.int64)
        paths, labels = tuple(images[name] for name in both), tuple(masks[name] for name in both)
        pieces[part] = FileSet(paths, label, masks=labels, lookup=lookup)
    return names, pieces, tuple(unpaired)


def _stems(folder: Path, paths: list[Path]) -> dict[str, Path]:
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def _beside(
    folder: Path, parts: Iterable[FileSet], known: Iterable[Path] = ()
) -> tuple[tuple[Path, ...], dict[str, int]]:
    """Other files in the folder, and the number of other images by the folder they are in."""
    used = {str(path) for part in parts for path in (*part.paths, *part.masks)} | set(map(str, known))
    rest: list[Path] = []
    unused: Counter[str] = Counter()
    for where, below, names in layouts.walked(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            path = Path(where, name)
            if name.startswith(".") or str(path) in used:
                continue
            if path.suffix.lower() in layouts.SUFFIXES:
                unused["/".join(path.relative_to(folder).parts[:-1][:2]) or "."] += 1
            elif name not in _PLAIN and not name.lower().startswith(_TEXTS):
                rest.append(path)
    return tuple(rest), dict(unused)


# --- Open and decode every file once: its properties, or why it cannot be read ---

_ORIENTATION = 0x0112  # of EXIF: 1 is upright
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Seen:
    """One image, and its mask where it has one."""

    size: tuple[int, int] = (0, 0)  # width, height
    mode: str = ""  # how its pixels are stored; empty for images in memory
    digest: bytes = b""  # of its pixels before they are resized
    turned: bool = False  # whether EXIF asks for a rotation, which training does not do
    wrong: str = ""  # why it cannot be read
    values: Counts | None = None  # (256,) pixels of every value in its mask
    mask_wrong: str = ""

    @property
    def readable(self) -> bool:
        return not self.wrong and not self.mask_wrong


def look(images: AnySet, tell: Callable[[], None] = lambda: None) -> list[Seen]:
    """All images of a set, those on disk decoded in threads; `tell` is called after each of these."""
    if isinstance(images, ImageSet):
        size = (int(images.image.shape[3]), int(images.image.shape[2]))
        pixels, label = images.image.numpy().transpose(0, 2, 3, 1), images.label.numpy()
        dense = is_dense(images)
        return [
            Seen(size, digest=_digest(pixels[at]), values=_counted(label[at]) if dense else None)
            for at in range(len(images))
        ]
    outputs = [Seen()] * len(images)

    def fill(at: int) -> None:
        outputs[at] = _file(images, at)
        tell()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about odd files that it reads all the same
        in_threads(fill, len(images))
    return outputs


def _file(files: FileSet, at: int) -> Seen:
    outputs = _picture(files.paths[at])
    if not files.masks:
        return outputs
    path = files.masks[at]
    try:
        values = read_values(path)  # (H, W)
    except UserError as error:
        why = str(error).removeprefix(f"cannot read the mask {path} (").removesuffix("); replace or remove the file")
        return replace(outputs, mask_wrong=why)
    height, width = values.shape
    if not outputs.wrong and (width, height) != outputs.size:
        return replace(
            outputs, mask_wrong=f"{width} × {height} pixels, its image {outputs.size[0]} × {outputs.size[1]}"
        )
    return replace(outputs, values=_counted(values))


def _picture(path: Path) -> Seen:
    try:
        with opened(path) as picture:
            turned = picture.getexif().get(_ORIENTATION, 1) not in (0, 1)
            mode = f"{picture.mode}, transparent" if "transparency" in picture.info else picture.mode
            return Seen(picture.size, mode, _digest(np.asarray(as_rgb(picture))), turned)
    except Exception as error:  # a damaged file can make a decoder raise anything
        return Seen(wrong=reason(error))


def _digest(pixels: NDArray[np.uint8]) -> bytes:
    """Of an image's pixels (H, W, 3): equal for exact copies, whatever their format."""
    person = b"%dx%d" % pixels.shape[:2]
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16, person=person).digest()


def _counted(values: NDArray[np.uint8]) -> Counts:
    return np.bincount(values.ravel(), minlength=VOID + 1)
