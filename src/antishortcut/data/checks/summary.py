"""From images that were looked at to what a person should know of them. Pure: nothing is read here."""
# N images

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...types import AnySet, FileSet
from .finding import Finding
from .looking import Seen
from .naming import below, name_of
from .pixels import masks

SHOWN = 20  # files and classes that are named
Looked = Mapping[str, Sequence[Seen]]  # by part

KINDS = {  # how pixels are stored, in words
    "RGB": "colour",
    "L": "grey",
    "1": "black and white",
    "P": "palette",
    "RGBA": "colour with alpha",
    "RGBX": "colour with alpha",
    "LA": "grey with alpha",
    "PA": "palette with alpha",
    "CMYK": "CMYK",
    "YCbCr": "colour",
    "F": "grey of floats",
}


def summarise(finding: Finding, looked: Looked) -> dict[str, Any]:
    """All facts, as JSON takes them."""
    facts = {
        "data": finding.name,
        "classes": len(finding.classes),
        "image_size": finding.image_size,
        "parts": [_part(finding, part, looked[part]) for part in finding.parts],
        "sizes": sizes(looked, finding.image_size),
        "modes": modes(looked),
        "turned": sum(seen.turned for every in looked.values() for seen in every),
        "unreadable": unreadable(finding, looked),
        "duplicates": duplicates(finding, looked),
        "empty": list(finding.empty),
        "unpaired": list(finding.unpaired),
        "not_images": _kinds(finding),
        "unused": dict(finding.unused),
        "missing": missing(finding),
        "held": finding.held,
        "refusal": finding.refusal,
    }
    return facts | ({"masks": masks(finding, looked)} if finding.dense else {"balance": balance(finding)})


def _part(finding: Finding, part: str, seen: Sequence[Seen]) -> dict[str, Any]:
    row: dict[str, Any] = {"part": part, "images": len(seen)}
    if finding.dense:
        return row
    counts = [count for count in _counts(finding, part) if count]
    return row | {
        "classes": len(counts),
        "smallest": min(counts, default=0),
        "largest": max(counts, default=0),
        "ratio": round(max(counts, default=0) / max(min(counts, default=1), 1), 2),
    }


def _counts(finding: Finding, part: str) -> list[int]:
    """Images of every class."""
    counts: list[int] = np.bincount(finding.parts[part].label.numpy(), minlength=len(finding.classes)).tolist()
    return counts


def balance(finding: Finding) -> list[dict[str, Any]]:
    """Images of every class, by part."""
    columns = {part: _counts(finding, part) for part in finding.parts}
    return [
        {"class": name, **{part: counts[at] for part, counts in columns.items()}}
        for at, name in enumerate(finding.classes)
    ]


def missing(finding: Finding) -> dict[str, list[str]]:
    """Classes of the training images that another part has none of."""
    if finding.dense:
        return {}
    train, *others = finding.parts
    known = _counts(finding, train)
    gone = {
        part: [name for name, here, there in zip(finding.classes, known, _counts(finding, part), strict=True)
               if here and not there]
        for part in others
    }  # fmt: skip
    return {part: names for part, names in gone.items() if names}


def sizes(looked: Looked, wanted: int) -> dict[str, Any]:
    """Width and height of the smallest, the median and the largest; how many would have to be enlarged."""
    every = [seen.size for part in looked.values() for seen in part if not seen.wrong]
    if not every:
        return {}
    by_area = sorted(every, key=lambda size: (size[0] * size[1], size))
    return {
        "smallest": list(by_area[0]),
        "median": [round(statistics.median(side)) for side in zip(*every, strict=True)],
        "largest": list(by_area[-1]),
        "shorter_side": round(statistics.median(min(size) for size in every)),
        "smaller": sum(min(size) < wanted for size in every),
    }


def modes(looked: Looked) -> dict[str, int]:
    """How many images are stored in which way."""
    return dict(Counter(_words(seen.mode) for part in looked.values() for seen in part if seen.mode).most_common())


def _words(mode: str) -> str:
    plain, _, more = mode.partition(", ")
    word = "grey of 16 bits" if plain.startswith("I") else KINDS.get(plain, plain)
    return f"{word} with alpha" if more and "alpha" not in word else word


def unreadable(finding: Finding, looked: Looked) -> list[dict[str, str]]:
    """Files that no run could read, masks among them, with the reason."""
    found = []
    for part, seen in looked.items():
        images = finding.parts[part]
        for at, one in enumerate(seen):
            if one.wrong:
                found.append({"file": name_of(finding, part, at), "why": one.wrong})
            if one.mask_wrong and isinstance(images, FileSet):
                found.append({"file": below(finding, images, at, mask=True), "why": one.mask_wrong})
    return found


def duplicates(finding: Finding, looked: Looked) -> dict[str, Any]:
    """Images that are there more than once, pixel by pixel: within a part, across parts, and under two classes."""
    places: dict[bytes, list[tuple[str, int]]] = {}
    for part, seen in looked.items():
        for at, one in enumerate(seen):
            if not one.wrong:
                places.setdefault(one.digest, []).append((part, at))
    copies = [found for found in places.values() if len(found) > 1]
    train = next(iter(finding.parts))
    within, leaked = dict.fromkeys(looked, 0), {part: 0 for part in looked if part != train}
    across, labelled = [], []
    for found in copies:
        times = Counter(part for part, _ in found)
        for part, count in times.items():
            within[part] += count - 1
            if part != train and train in times:
                leaked[part] += count
        named = [name_of(finding, part, at) for part, at in found]
        if len(times) > 1:
            across.append(named)
        if not finding.dense and len({_label(finding.parts[part], at) for part, at in found}) > 1:
            labelled.append(named)
    return {
        "within": within,  # images too many
        "leaked": leaked,  # images of other parts that are training images too
        "across": across,
        "two_classes": labelled,
    }


def _label(images: AnySet, at: int) -> int:
    return int(images.label[at])


def _kinds(finding: Finding) -> dict[str, int]:
    """Files that are not images, by the end of their name."""
    return dict(Counter(path.suffix.lower() or path.name for path in finding.others).most_common())
