"""Stylised copies on disk, opened and checked. No network is needed, and none is loaded."""
# N images, S side of the square images

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from antishortcut.data.derived import as_set, read_images, read_labels
from antishortcut.errors import UserError
from antishortcut.fileio import sha256
from antishortcut.run_dir import read_json
from antishortcut.types import ImageSet

KIND = "stylized"
IMAGES, LABELS, STYLE, STYLE_LABELS = "stylized.npy", "labels.npy", "style.npy", "style_label.npy"
FACTS, SHEET, FILES = "facts.json", "contact.png", "images"


@dataclass(frozen=True)
class Stylized:
    """Stylised copies of a test set."""

    folder: Path
    images: ImageSet  # (N, 3, S, S) bytes, mapped into memory, with the content's labels
    style_label: Tensor | None  # (N,) class of the image that gave the style; None for paintings
    fingerprint: str  # 16 hex digits: of the settings, the weights and the pixels
    facts: Mapping[str, Any]

    @property
    def label(self) -> Tensor:
        """Class of the image that gave the shape, (N,)."""
        return self.images.label


def read_facts(folder: Path) -> dict[str, Any] | None:
    """What facts.json says of finished copies; None when there is none, an error when it is of something else."""
    path = folder / FACTS
    if not path.exists():
        return None
    facts = read_json(path)
    if not isinstance(facts, dict) or facts.get("kind") != KIND or not isinstance(facts.get("count"), int):
        raise UserError(f"{path} is not of stylised copies; they are made by asd stylize")
    return facts


def open_stylized(folder: Path, classes: int) -> Stylized:
    """Open what `asd stylize` made. `classes`: how many the student knows."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; make it with asd stylize DATA {folder}")
    facts = read_facts(folder)
    if facts is None:
        raise UserError(f"{folder} holds no finished stylised copies (no {FACTS}); run asd stylize DATA {folder}")
    images = read_images(folder / IMAGES)  # (N, S, S, 3)
    label = read_labels(folder / LABELS, classes)  # (N,)
    style_label = read_labels(folder / STYLE_LABELS, classes) if facts.get("styles") == "train" else None
    for name, values in ((LABELS, label), (STYLE_LABELS, style_label)):
        if values is not None and len(values) != len(images):
            raise UserError(f"{folder / name} has {len(values)} labels for {len(images)} images; make them again")
    if facts.get("sha256") not in (None, sha256(folder / IMAGES)):
        raise UserError(f"{folder / IMAGES} is not what was made there (its digest differs); make it again")
    if len(images) != facts["count"]:
        raise UserError(f"{folder / IMAGES} has {len(images)} images, {FACTS} says {facts['count']}; make them again")
    return Stylized(folder, as_set(images, label), style_label, _mark(facts), facts)


def _mark(facts: Mapping[str, Any]) -> str:
    """Of everything that decides the pixels and of the pixels themselves; on which machine does not count."""
    said = {key: value for key, value in facts.items() if key != "made"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
