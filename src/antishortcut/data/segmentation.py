"""Readers of the layouts of images with masks: what lies where, what its pixels mean. Files are listed, few read."""
# N images

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antishortcut.data.image_io import in_threads, size_of
from antishortcut.data.masks import MOST, NO_CLASS, read_values
from antishortcut.data.readers import TRAIN, Found, held_of, home, images_below, lines, part_of, tests_of
from antishortcut.errors import UserError, first_line
from antishortcut.fileio import text
from antishortcut.types import VOID, FileSet

ADE = "ADEChallengeData2016"
_ADE_CLASSES = 150
_ADE_HINT = (
    f"unpack http://data.csail.mit.edu/places/ADEchallenge/{ADE}.zip below the data root: "
    "images/{training,validation}/*.jpg and annotations/{training,validation}/*.png"
)

CAMVID = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign_symbol", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
_CAMVID_HINT = (
    "put CamVid with SegNet's eleven classes below the data root as camvid/{train,val,test}/{images,masks}, "
    "or as CamVid/{train,trainannot,val,valannot,test,testannot}"
)

_FOLDER_HINT = "expected train/images/<name>.jpg with train/masks/<name>.png, and the same in val"
_LOSSY = {".jpg", ".jpeg", ".jfif", ".webp"}  # whose pixels are nearly what was saved: no masks


def list_ade20k(root: Path) -> Found:
    """The files of root/ADEChallengeData2016; its validation images are the test set, whose labels are not public."""
    folder = home(root, ADE)
    lookup = table({value: value - 1 for value in range(1, _ADE_CLASSES + 1)} | {0: VOID})
    train, val = (
        paired(folder / "images" / part, folder / "annotations" / part, lookup, _ADE_HINT)
        for part in ("training", "validation")
    )
    names = _ade_names(folder / "objectInfo150.txt")
    return Found(names, labelled(train), {"val": val}, base=folder, image_size=512)


def _ade_names(path: Path) -> tuple[str, ...]:
    """The first of every class's names, or all where two share it, in the column Name; without the file, numbers."""
    if not path.exists():
        return tuple(f"class {value}" for value in range(1, _ADE_CLASSES + 1))
    head, *rows = ([field.strip() for field in line.split("\t")] for line in lines(path, _ADE_HINT))
    if "Name" not in head or len(rows) != _ADE_CLASSES or any(len(row) != len(head) for row in rows):
        raise UserError(f"{path} is not a table of {_ADE_CLASSES} classes with a column Name; {_ADE_HINT}")
    whole = [row[head.index("Name")] for row in rows]
    first = [name.split(",")[0].strip() for name in whole]
    return tuple(short if first.count(short) == 1 else name for short, name in zip(first, whole, strict=True))


def list_camvid(root: Path) -> Found:
    """CamVid in eleven classes, 11 = unlabelled; with SegNet's split: train, val, test."""
    for folder in (root / "camvid", root / "CamVid", root):
        for place in ("{part}/images", "{part}/masks"), ("{part}", "{part}annot"):
            images, masks = ([folder / way.format(part=part) for part in ("train", "val", "test")] for way in place)
            if images[0].is_dir() and masks[0].is_dir():
                lookup = table({value: value for value in range(len(CAMVID))} | {len(CAMVID): VOID})
                train, val, test = (paired(*both, lookup, _CAMVID_HINT) for both in zip(images, masks, strict=True))
                names = _camvid_names(folder)
                return Found(names, labelled(train), {"test": test}, val, folder, usual_crop(train))
    raise UserError(f"no CamVid in {root}; {_CAMVID_HINT}")


def _camvid_names(folder: Path) -> tuple[str, ...]:
    names = names_in(folder) or CAMVID
    if len(names) not in (len(CAMVID), len(CAMVID) + 1):  # the last may be that of the unlabelled
        raise UserError(f"{folder} names {len(names)} classes, but CamVid has {len(CAMVID)}; {_CAMVID_HINT}")
    return names[: len(CAMVID)]


def has_masks(folder: Path) -> bool:
    """Whether a folder of the person's own holds images with masks rather than folders of classes."""
    train = part_of(folder, TRAIN)
    return train is not None and (train / "images").is_dir() and (train / "masks").is_dir()


def list_masked(folder: Path) -> Found:
    """train/images with train/masks, and val and test alike, named as by `list_folder`; 255 in a mask is void.

    Classes are named in classes.txt or classes.json; without one, the training masks are read to count them.
    """
    names, place = names_in(folder), part_of(folder, TRAIN)
    assert place is not None
    train = _pairs(place, None)
    classes = names or tuple(f"class {value}" for value in range(1 + _largest(train.masks)))
    if len(classes) < 2:
        raise UserError(f"{folder} has one class only; {VOID} means void, so write foreground as 1")
    if len(classes) > MOST:
        raise UserError(f"{folder} has {len(classes)} classes, but a mask of bytes holds at most {MOST}")
    lookup = table({value: value for value in range(len(classes))})
    train = FileSet(train.paths, train.label, masks=train.masks, lookup=lookup)
    val, test = (None if held is None else _pairs(held, lookup) for held in held_of(folder))
    train = labelled(train) if names else train
    return Found(classes, train, tests_of(test), val, folder, usual_crop(train))


def _pairs(part: Path, lookup: Tensor | None) -> FileSet:
    return paired(part / "images", part / "masks", lookup, _FOLDER_HINT)


def names_in(folder: Path) -> tuple[str, ...]:
    """Class names, in the order of their values, from classes.txt or classes.json; empty without either."""
    path = folder / "classes.txt"
    if path.exists():
        names = lines(path, "expected the name of a class on every line, in the order of their values")
    elif (path := folder / "classes.json").exists():
        try:
            names = json.loads(text(path))
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else first_line(error)
            raise UserError(f"cannot read {path} ({reason}); expected a list of names") from None
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise UserError(f"{path} is not a list of names of classes")
    else:
        return ()
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise UserError(f"{path} names the class {twice!r} twice")
    return tuple(names)


def paired(images: Path, masks: Path, lookup: Tensor | None, hint: str) -> FileSet:
    """All images below a folder with the masks of the same name below another, sorted by name."""
    pictures, labels = _by_name(images, images_below(images)), _by_name(masks, lossless(masks))
    if not pictures:
        raise UserError(f"no images in {images}; {hint}")
    for name, path in pictures.items():
        if name not in labels:
            raise UserError(f"the image {path} has no mask {masks / name}.png; {hint}")
    for name, path in labels.items():
        if name not in pictures:
            raise UserError(f"the mask {path} has no image of that name below {images}; {hint}")
    zeros = torch.zeros(len(pictures), dtype=torch.int64)  # (N,)
    return FileSet(tuple(pictures.values()), zeros, masks=tuple(labels[name] for name in pictures), lookup=lookup)


def lossless(folder: Path) -> list[Path]:
    """Files that may be masks."""
    return [path for path in images_below(folder) if path.suffix.lower() not in _LOSSY]


def _by_name(folder: Path, paths: Sequence[Path]) -> dict[str, Path]:
    """Files by their name below the folder, without what follows the last dot."""
    found: dict[str, Path] = {}
    for path in paths:
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in found:
            raise UserError(f"{found[name]} and {path} have the same name: which one is meant? Remove the other")
        found[name] = path
    return found


def labelled(files: FileSet) -> FileSet:
    """The same set, or an error if its masks hold fewer than two classes; most sets have two in their first mask."""
    assert files.lookup is not None
    classes: set[int] = set()
    for path in files.masks:
        classes |= set(np.unique(files.lookup.numpy()[read_values(path)]).tolist()) - {VOID}
        if len(classes) > 1:
            return files
    void = " and ".join(str(value) for value in range(VOID + 1) if files.lookup[value] == VOID)
    raise UserError(
        f"the masks in {files.masks[0].parent} show {len(classes)} class and void ({void}): there is nothing to tell "
        "apart; a foreground is written as 1"
    )


def table(meaning: dict[int, int]) -> Tensor:
    """A lookup, (256,) uint8: values with a meaning, 255 void, and no others."""
    lookup = torch.full((VOID + 1,), NO_CLASS, dtype=torch.uint8)
    lookup[VOID] = VOID
    for value, label in meaning.items():
        lookup[value] = label
    return lookup


def _largest(masks: Sequence[Path]) -> int:
    """The largest value in masks, but for 255."""
    seen = np.zeros((len(masks), VOID + 1), dtype=bool)

    def look(at: int) -> None:
        seen[at] = np.bincount(read_values(masks[at]).ravel(), minlength=VOID + 1) > 0

    in_threads(look, len(masks))
    values = np.flatnonzero(seen[:, :VOID].any(axis=0))
    if len(values) == 0:
        raise UserError(f"all pixels of the masks in {masks[0].parent} are 255, which is void")
    return int(values[-1])


def usual_crop(files: FileSet) -> int:
    """Side of training crops when none is given: what fits the first image, in steps of 16, at most 512."""
    return max(16, min(512, min(size_of(files.paths[0])) // 16 * 16))
