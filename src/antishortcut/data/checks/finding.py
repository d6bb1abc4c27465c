"""What there is to look at: the parts of a set as a run would get them, or as much of a folder as can be made out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ...errors import UserError
from ...files import expanded
from ...types import AnySet, FileSet, is_dense
from .. import layouts, scenes
from ..augment import WHOLE_BATCH
from ..dense import CROPS, check
from ..masks import MOST, one_small_size
from ..pictures import size_of
from ..sources import IN_MEMORY, Found, divided, find

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
    """As `open_sets` would open it; a folder that it refuses is looked through all the same, and why is kept."""
    kind, _, path = name.partition(":")
    folder = expanded(path) if path else None
    try:
        found, _ = find(name, root, seed=seed, image_size=image_size, options=options)
        train, val, tests = divided(found, name, seed, train_limit, test_limit, val_fraction)
    except UserError as error:
        if kind != "folder" or folder is None or not folder.is_dir():
            raise
        return _made_out(name, folder, str(error), image_size)
    parts: dict[str, AnySet] = {"train": train} | ({} if val is None else {"val": val})
    parts |= {key if key not in parts else f"test {key}": test for key, test in tests.items()}
    if folder is None:
        return Finding(name, found.classes, found.image_size, parts)
    others, unused = _beside(folder, _paths(found))
    held = _tested(folder) if kind == "folder" else ""
    empty = _passed_over(folder, found.classes) if kind == "folder" else ()
    return Finding(name, found.classes, found.image_size, parts, folder, "", held, empty, (), others, unused)


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


def _paths(found: Found) -> set[str]:
    """Files of all parts, before limits."""
    every = [found.train, *found.tests.values(), *([] if found.val is None else [found.val])]
    return {str(path) for part in every if isinstance(part, FileSet) for path in (*part.paths, *part.masks)}


def _made_out(name: str, folder: Path, refusal: str, image_size: int | None) -> Finding:
    """A folder that no run would take."""
    train = layouts.part_of(folder, layouts.TRAIN) or folder
    val, test = layouts.held_of(folder) if train != folder else (None, None)
    places = {"train": train} | {name: place for name, place in (("val", val), ("test", test)) if place is not None}
    held = _tested(folder) if train != folder else ""
    if scenes.has_masks(folder):
        classes, parts, unpaired = _scenes(folder, places)
        empty: tuple[str, ...] = ()
    else:
        classes, parts, empty = _classes(folder, places)
        unpaired = ()
    if not len(parts["train"]):
        raise UserError(refusal)
    known = {str(path) for part in parts.values() for path in (*part.paths, *part.masks)}
    others, unused = _beside(folder, known | {str(folder / name) for name in unpaired})
    size = image_size or _crop(parts["train"])
    return Finding(name, classes, size, parts, folder, refusal, held, empty, unpaired, others, unused)


def _tested(folder: Path) -> str:
    """The name of the folder that the test images are in, if there is one."""
    _, test = layouts.held_of(folder)
    return "" if test is None else test.name


def _crop(train: FileSet) -> int:
    with suppress(UserError, IndexError):  # a first image that cannot be read, or none
        return scenes.usual_crop(train) if train.masks else 224
    return 224


def _classes(folder: Path, places: Mapping[str, Path]) -> tuple[tuple[str, ...], dict[str, FileSet], tuple[str, ...]]:
    """Classes, those of training first; images of every part; class folders without any."""
    named = {part: layouts.folders(place) for part, place in places.items()}
    classes = tuple(dict.fromkeys(name for names in named.values() for name in names))
    number = {name: at for at, name in enumerate(classes)}
    parts, empty = {}, []
    for part, place in places.items():
        listed = [(name, layouts.images_below(place / name)) for name in named[part]]
        empty += [str((place / name).relative_to(folder)) for name, paths in listed if not paths]
        label = torch.tensor([number[name] for name, paths in listed for _ in paths], dtype=torch.int64)
        parts[part] = FileSet(tuple(path for _, paths in listed for path in paths), label)
    return classes, parts, tuple(empty)


def _scenes(folder: Path, places: Mapping[str, Path]) -> tuple[tuple[str, ...], dict[str, FileSet], tuple[str, ...]]:
    """Classes; images that have a mask, with it; those that have none, and masks without an image."""
    try:
        names = scenes.names_in(folder)
    except UserError:
        names = ()
    lookup = _lookup(len(names) or MOST)
    parts, alone = {}, []
    for part, place in places.items():
        pictures = _stems(place / "images", layouts.images_below(place / "images"))
        masks = _stems(place / "masks", scenes.lossless(place / "masks"))
        both = [name for name in pictures if name in masks]
        alone += [
            str(path.relative_to(folder))
            for ours, theirs in ((pictures, masks), (masks, pictures))
            for name, path in ours.items()
            if name not in theirs
        ]
        zeros = torch.zeros(len(both), dtype=torch.int64)
        paths, labels = (tuple(kind[name] for name in both) for kind in (pictures, masks))
        parts[part] = FileSet(paths, zeros, masks=labels, lookup=lookup)
    return names, parts, tuple(alone)


def _passed_over(folder: Path, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Folders that may have been meant as classes: where there is no train/, one without images counts for nothing."""
    if layouts.part_of(folder, layouts.TRAIN) is not None or scenes.has_masks(folder):
        return ()
    return tuple(name for name in layouts.folders(folder) if name not in classes)


def _lookup(classes: int) -> Tensor:
    return scenes.table({value: value for value in range(min(classes, MOST))})


def _stems(folder: Path, paths: list[Path]) -> dict[str, Path]:
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def _beside(folder: Path, used: set[str]) -> tuple[tuple[Path, ...], dict[str, int]]:
    """What lies in a folder besides the images of the set: other files, and other images by the folder they are in."""
    others: list[Path] = []
    unused: dict[str, int] = {}
    for where, below, names in layouts.walked(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            path = Path(where, name)
            if name.startswith(".") or str(path) in used:
                continue
            if path.suffix.lower() in layouts.SUFFIXES:
                place = path.relative_to(folder).parts[:-1][:2]
                key = "/".join(place) or "."
                unused[key] = unused.get(key, 0) + 1
            elif name not in _PLAIN and not name.lower().startswith(_TEXTS):
                others.append(path)
    return tuple(others), unused
