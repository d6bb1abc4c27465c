"""For the classes a student has: ImageNet-R and -A (Hendrycks et al. 2021), any folder, stimuli in cue conflict."""
# N images, C classes of the student, K of the 16 categories that the student has

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antishortcut.data.image_io import in_threads, size_of
from antishortcut.data.readers import (
    TRAIN,
    class_list,
    folders,
    held_of,
    images_below,
    links_note,
    listed,
    misplaced,
    package_list,
    part_of,
    read_text,
)
from antishortcut.data.splits import fingerprint
from antishortcut.errors import UserError, first_line, first_names, plural, suggest
from antishortcut.fileio import near_folder
from antishortcut.types import FileSet

WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Shift:
    """The images of a shifted set whose classes the student knows."""

    name: str
    images: FileSet  # labels are the student's classes
    overlap: tuple[str, ...]  # names of classes that student and set share, in the order of the student's classes
    allowed: Tensor  # (C,) bool, the student's classes in the overlap
    facts: dict[str, Any]  # what is used and what is left out, for JSON
    fingerprint: str  # changes when the images or their labels do
    hashed: str  # how, as in DataSplits
    source: str  # "official" or "given"
    note: str = ""  # for the user: what is not scored


def open_renditions(name: str, folder: Path, classes: tuple[str, ...]) -> Shift:
    """Open imagenet-r or imagenet-a: `folder`/<wnid>/*.jpg or `folder`/`name`/<wnid>/*.jpg; `classes` are wnids."""
    hint = f"unpack {name} there as {name}/<wnid>/*.jpg"
    folder = folder / name if (folder / name).is_dir() else folder
    present = [entry for entry in folders(folder) if WNID.fullmatch(entry)] if folder.is_dir() else []
    if not present:
        raise UserError(f"no class folders <wnid> in {folder}; {hint}")
    overlap = tuple(wnid for wnid in classes if wnid in set(present))
    if not overlap:
        names = ", ".join(map(repr, classes[:3]))
        raise UserError(f"{folder} has none of the student's classes ({names}…): they must be wnids, as in imagenet100")
    images, allowed = _labelled({folder / wnid: classes.index(wnid) for wnid in overlap}, len(classes), hint)
    official = set(class_list(name))
    facts = {
        "overlap": list(overlap),
        "overlap_count": len(overlap),
        "absent": sorted(official & set(classes) - set(overlap)),  # of the release and the student, but not here
        "folder_classes": len(present),
        "official_classes": set(present) == official,
        "images": len(images),
        "left_out": sum(len(images_below(folder / wnid)) for wnid in present if wnid not in overlap),
    }
    mark = fingerprint(f"{name} {len(classes)}", {"images": images}, folder)
    source = "official" if facts["official_classes"] else "given"
    return Shift(name, images, overlap, allowed, facts, *mark, source)


def _labelled(places: Mapping[Path, int], classes: int, hint: str) -> tuple[FileSet, Tensor]:
    """The images below class folders with these labels, and which of the student's classes they are: (C,) bool."""
    files, number = listed(list(places), hint), torch.tensor(list(places.values()))
    allowed = torch.zeros(classes, dtype=torch.bool)  # (C,)
    allowed[number] = True
    return FileSet(files.paths, number[files.label]), allowed


# --- any folder of class folders ---

_CLASS_FOLDERS = "expected <class>/<image> in it, or in its test/ or val/"


def open_class_folders(name: str, folder: Path, classes: tuple[str, ...], other_names: tuple[str, ...] = ()) -> Shift:
    """Open the class folders in a folder, or in its test/ or val/, for a student with these classes.

    `other_names` are further names of the same classes, such as wnids. Folders of no class are not looked into.
    """
    if not folder.is_dir():
        raise UserError(f"{name}: no folder {folder}{near_folder(folder) or f'; {_CLASS_FOLDERS}'}")
    place = held_of(folder)[1] or folder
    present = folders(place)
    if not present:
        raise UserError(f"{name}: no class folders in {place}{misplaced(place) or f'; {_CLASS_FOLDERS}'}")
    label = match_classes(present, classes, other_names)
    if not label:
        train = part_of(folder, TRAIN)
        hint = f"; did you mean {train}?" if train else "; folders must be named like classes"
        present_names, ours = first_names(present), first_names(classes)
        raise UserError(f"{name}: {place} has {present_names}, but the student's classes are {ours}{hint}")
    filled = {entry: number for entry, number in label.items() if images_below(place / entry)}
    if not filled:
        empty = place / next(iter(label))
        raise UserError(f"{name}: no images in {empty}{misplaced(empty) or f'; {_CLASS_FOLDERS}'}")
    images, allowed = _labelled({place / entry: number for entry, number in filled.items()}, len(classes), "")
    in_threads(lambda at: size_of(images.paths[at]), len(images))  # a file that is no image is an error now
    unknown = [entry for entry in present if entry not in label]
    absent = [known for known, there in zip(classes, allowed.tolist(), strict=True) if not there]
    overlap = tuple(known for known, there in zip(classes, allowed.tolist(), strict=True) if there)
    facts = {
        "folder": str(folder),
        "overlap": list(overlap),
        "overlap_count": len(overlap),
        "absent": absent,  # classes of the student without images here
        "unknown": unknown,  # folders here that are no class of the student
        "renamed": {entry: classes[number] for entry, number in filled.items() if entry != classes[number]},
        "folder_classes": len(present),
        "images": len(images),
    }
    lines = [f"{plural(len(images), 'image')} of {len(overlap)} of the student's {plural(len(classes), 'class')}"]
    lines += [f"none of {first_names(absent)}"] * bool(absent)
    lines += [f"not scored, since the student has no such class: {first_names(unknown)}"] * bool(unknown)
    lines += [note] if (note := links_note(images.paths, place)) else []
    mark = fingerprint(f"class folders {len(classes)} {unknown}", {"images": images}, place)
    return Shift(
        name, images, overlap, allowed, facts, *mark, "given", f"{name}: {'; '.join(lines)}" if lines[1:] else ""
    )


def match_classes(present: Sequence[str], *names: Sequence[str]) -> dict[str, int]:
    """Class folder → number of the class of that name, of which there may be several lists.

    The exact name counts first. Then case does not matter, nor _ for a space, where one folder and one class are meant.
    """
    label: dict[str, int] = {}
    for spelling in (str, _loosely):
        owners: dict[str, set[int]] = {}
        for number, name in ((number, name) for each in names for number, name in enumerate(each)):
            owners.setdefault(spelling(name), set()).add(number)
        left, taken = [entry for entry in present if entry not in label], set(label.values())
        alike = Counter(map(spelling, left))
        for entry in left:
            meant = owners.get(spelling(entry), set())
            if len(meant) == alike[spelling(entry)] == 1 and not meant <= taken:
                label[entry] = next(iter(meant))
    return label


def _loosely(name: str) -> str:
    """The same for Polar_Bear and polar bear, and for accents as macOS writes them."""
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").casefold().split())


SIXTEEN = (
    "airplane", "bear", "bicycle", "bird", "boat", "bottle", "car", "cat",
    "chair", "clock", "dog", "elephant", "keyboard", "knife", "oven", "truck",
)  # fmt: skip
_NAME = re.compile(rf"({'|'.join(SIXTEEN)})\d+-({'|'.join(SIXTEEN)})\d+")
_MAPPING_HINT = "map them in a TOML file: airplane = ['…'], bear = ['…']"
_HINT = "expected images such as cat7-elephant2.png: shape and number, texture and number"


@dataclass(frozen=True)
class Stimuli:
    """Images in conflict whose shape and texture the student can both name."""

    images: FileSet  # labels are shapes: places in `categories`, not the student's classes
    texture: Tensor  # (N,) places in `categories`
    categories: tuple[str, ...]  # K, in the order of SIXTEEN
    matrix: Tensor  # (K, C), rows sum to 1: mean probability over the student's classes of a category
    facts: dict[str, Any]  # what is used and what is left out, for JSON
    fingerprint: str  # changes when the images or the mapping do
    hashed: str  # how, as in DataSplits


def open_stimuli(folder: Path, classes: tuple[str, ...], mapping: Path | None = None) -> Stimuli:
    """Open the stimuli below a folder for a student with these classes.

    A class is mapped to one of the 16 categories by its wnid or name in lists/sixteen.txt, or by a TOML file:
    `airplane = ["my plane", "my jet"]`, a line for each category.
    """
    words = {name: name.strip().lower().replace(" ", "_") for name in classes}
    usual = {name: published()[word] for name, word in words.items() if word in published()}
    members = _members(usual, classes) if mapping is None else read_mapping(mapping, classes)
    if len(members) < 2:
        covered, names = f"only {next(iter(members))}" if members else "none", ", ".join(map(repr, classes[:3]))
        problem = f"a conflict takes two of the 16 categories and the student has {covered} of them ({names}, …)"
        raise UserError(f"{problem}; {_MAPPING_HINT}")
    categories, stimuli = tuple(members), _named(folder)
    place = {category: at for at, category in enumerate(categories)}
    conflict = [(path, shape, texture) for path, shape, texture in stimuli if shape != texture]
    used = [(path, place[shape], place[texture]) for path, shape, texture in conflict if {shape, texture} <= set(place)]
    if not used:
        names = ", ".join(categories)
        raise UserError(f"{folder} has {len(stimuli)} stimuli, but none in conflict between the student's {names}")
    texture = torch.tensor([texture for _, _, texture in used])  # (N,)
    images = FileSet(tuple(path for path, _, _ in used), torch.tensor([shape for _, shape, _ in used]))
    facts = {
        "categories": {category: list(names) for category, names in members.items()},
        "categories_count": len(categories),
        "images": len(used),
        "no_conflict": len(stimuli) - len(conflict),  # shape and texture of the same category
        "without_category": len(conflict) - len(used),  # shape or texture that the student has no class for
    }
    counts = torch.tensor([[name in names for name in classes] for names in members.values()])  # (K, C)
    matrix = counts / counts.sum(dim=1, keepdim=True)
    kind = f"cue-conflict {classes} {members}"
    mark = fingerprint(kind, {"images": FileSet(images.paths, images.label, {"texture": texture})}, folder)
    return Stimuli(images, texture, categories, matrix, facts, *mark)


def read_mapping(path: Path, classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The student's classes of every category, as a TOML file lists them; categories without any are left out."""
    try:
        loaded = tomllib.loads(read_text(path, _MAPPING_HINT))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not TOML ({first_line(error)}); {_MAPPING_HINT}") from None
    owner: dict[str, str] = {}
    for category, names in loaded.items():
        if category not in SIXTEEN:
            raise UserError(f"{path}: {category!r} is none of the 16 categories{suggest(category, SIXTEEN)}")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{path}: {category} wants a list of the student's classes, such as {list(classes[:2])}")
        for name in names:
            if name not in classes:
                close = get_close_matches(name[:80], classes, n=3, cutoff=0.5) or [*classes[:3], "…"]
                raise UserError(f"{path}: the student has no class {name!r} for {category}{suggest(name, close)}")
            if owner.setdefault(name, category) != category:
                raise UserError(f"{path}: {name!r} is in both {owner[name]} and {category}; it can be in one")
    return _members(owner, classes)


@cache
def published() -> Mapping[str, str]:
    """Category by wnid or name, as lists/sixteen.txt has it."""
    rows = [line.split() for line in package_list("sixteen").splitlines() if not line.startswith("#")]
    return {name: category for category, *names in rows for name in (category, *names)}


def _members(owner: Mapping[str, str], classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """From category by class to classes by category, both in their own order."""
    by_category = {each: tuple(name for name in classes if owner.get(name) == each) for each in SIXTEEN}
    return {category: names for category, names in by_category.items() if names}


def _named(folder: Path) -> list[tuple[Path, str, str]]:
    """File, shape and texture of every stimulus; model-vs-human prepends words with underscores to the name."""
    matches = [(path, _NAME.fullmatch(path.stem.split("_")[-1])) for path in images_below(folder)]
    named = [(path, match[1], match[2]) for path, match in matches if match is not None]
    if not named:
        raise UserError(f"no stimuli below {folder}; {_HINT}")
    name, times = Counter(path.stem.split("_")[-1] for path, _, _ in named).most_common(1)[0]
    if times > 1:
        raise UserError(f"{folder} holds {name} {times} times; name the one folder that is meant")
    return named
