"""ImageNet-R and ImageNet-A (Hendrycks et al. 2021): 200 classes of ImageNet each, scored where a student has them."""
# N images, C classes of the student

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antishortcut.data.readers import class_list, folders, images_below, listed
from antishortcut.data.splits import fingerprint
from antishortcut.errors import UserError, near
from antishortcut.types import FileSet

RENDITIONS = ("imagenet-r", "imagenet-a")
WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Shift:
    """The images of a shifted set whose classes the student knows."""

    name: str
    images: FileSet  # labels are the student's classes
    overlap: tuple[str, ...]  # wnids that student and set share, in the order of the student's classes
    allowed: Tensor  # (C,) bool, the student's classes in the overlap
    facts: dict[str, Any]  # what was used and what left out, as JSON takes it
    fingerprint: str  # changes when the images or their labels do


def open_renditions(name: str, folder: Path, classes: tuple[str, ...]) -> Shift:
    """Open `folder`/<wnid>/*.jpg for a student whose classes, in the order of its labels, are these wnids.

    `folder` may also be the place the release was unpacked in, which holds it as `folder`/`name`.
    """
    if name not in RENDITIONS:
        raise UserError(f"unknown shifted set {name!r}{near(name, RENDITIONS)}")
    hint = f"unpack {name} there as {name}/<wnid>/*.jpg"
    folder = folder / name if (folder / name).is_dir() else folder
    present = [entry for entry in folders(folder) if WNID.fullmatch(entry)] if folder.is_dir() else []
    if not present:
        raise UserError(f"no class folders <wnid> in {folder}; {hint}")
    overlap = tuple(wnid for wnid in classes if wnid in set(present))
    if not overlap:
        raise UserError(_nothing_shared(name, folder, classes))
    found = listed([folder / wnid for wnid in overlap], hint)
    number = torch.tensor([classes.index(wnid) for wnid in overlap])
    images = FileSet(found.paths, number[found.label])  # (N,)
    allowed = torch.zeros(len(classes), dtype=torch.bool)  # (C,)
    allowed[number] = True
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
    return Shift(name, images, overlap, allowed, facts, mark)


def _nothing_shared(name: str, folder: Path, classes: Sequence[str]) -> str:
    if not any(WNID.fullmatch(entry) for entry in classes):
        shown = ", ".join(repr(entry) for entry in classes[:3])
        return (
            f"{name} is for students whose classes are wnids such as 'n02119022' (imagenet100), not names: {shown}, …"
        )
    return f"the student shares no class with {folder}: none of its {len(classes)} wnids is a folder there"
