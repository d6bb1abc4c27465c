"""What is stylised and with what: the images of a test set, and a style for each of them."""
# N images, M training images, B images of a chunk, S side of the square images

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antishortcut.data import Loader
from antishortcut.data.dense import wants_labels
from antishortcut.data.layouts import images_below
from antishortcut.data.parts import limited, set_mark, take
from antishortcut.data.pictures import fit, pixels, read
from antishortcut.errors import UserError, near
from antishortcut.stylize.pairing import Ints, another_class, any_style
from antishortcut.types import AnySet, FileSet, Sets

HELD = 500  # pictures kept decoded: 75 MB at 224 × 224


@dataclass(frozen=True)
class Plan:
    content: AnySet
    place: Ints  # (N,) number of every image in its whole set
    style: Ints  # (N,) which style every image gets
    style_label: Ints | None  # (N,) its class, when styles are training images
    styles: Callable[[Ints], Tensor]  # numbers of styles (B,) → images (B, 3, S, S) in [0, 1]
    name: Callable[[int], str]  # what a style is called
    facts: Mapping[str, Any]


def make_plan(sets: Sets, which: str | None, styles: Path | None, seed: int, limit: int | None) -> Plan:
    """Styles from a folder of pictures, or from training images of other classes when there is none."""
    part_name = which if which is not None else next(iter(sets.tests))
    if part_name not in sets.tests:
        raise UserError(f"{sets.name} has no test set {part_name!r}{near(part_name, sets.tests)}")
    whole = sets.tests[part_name]
    wants_labels("a stylised set", whole, of="image")
    part = limited(replace(whole, cues={"place": torch.arange(len(whole))}), limit, 0, "--limit")
    facts = {
        "set": sets.name.partition(":")[0],
        "part": part_name,
        "fingerprint": sets.fingerprint,
        "count": len(part),
        "side": sets.image_size,
    }
    if styles is None:
        return _from_train(part, sets, seed, facts)
    return _from_pictures(part, sets.image_size, styles, seed, facts)


def _from_train(part: AnySet, sets: Sets, seed: int, facts: Mapping[str, Any]) -> Plan:
    place, trained = part.cues["place"].numpy(), sets.train.label.numpy()  # (N,), (M,)
    style = another_class(part.label.numpy(), place, trained, seed)  # (N,)

    def styles(numbers: Ints) -> Tensor:
        return images_at(sets.train, numbers, sets.image_size)

    def name(number: int) -> str:
        return sets.classes[int(trained[number])]

    said = {"styles": "train", "style_count": len(trained)}
    return Plan(part, place, style, trained[style], styles, name, dict(facts) | said)


def _from_pictures(part: AnySet, side: int, folder: Path, seed: int, facts: Mapping[str, Any]) -> Plan:
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; --styles wants one with pictures")
    found = images_below(folder)
    if not found:
        raise UserError(f"no pictures in {folder}; --styles wants JPEG or PNG files")
    paths = tuple(found)
    place = part.cues["place"].numpy()  # (N,)

    def styles(numbers: Ints) -> Tensor:
        return torch.stack([_picture(paths[number], side) for number in numbers]).float() / 255

    mark = set_mark(FileSet(paths, torch.zeros(len(paths), dtype=torch.int64)))
    said = {"styles": mark, "style_count": len(paths)}
    style = any_style(place, len(paths), seed)  # (N,)
    return Plan(part, place, style, None, styles, lambda number: paths[number].stem, dict(facts) | said)


@lru_cache(maxsize=HELD)
def _picture(path: Path, side: int) -> Tensor:
    """A style from a file: its shorter side resized, the middle cut out. (3, S, S) bytes."""
    return pixels(fit(read(path, at_least=2 * side), side))


def images_at(images: AnySet, numbers: Ints, side: int) -> Tensor:
    """The images at these places as networks see them, (B, 3, S, S) in [0, 1]."""
    part = take(images, torch.from_numpy(numbers))
    loader = Loader(part, batch=len(numbers), seed=0, image_size=side, augment="none", shuffle=False)
    return next(loader.epoch(0)).image
