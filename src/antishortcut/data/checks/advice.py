"""What to do about what was found, in a line each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..layouts import FOREIGN
from .finding import HELD, SIDES, Finding

UNEVEN = 10.0  # times the smallest class that the largest may be without a word
LARGE = 4  # times the training size from which decoding is most of the work


def problems(facts: dict[str, Any]) -> list[str]:
    """Why training would stop."""
    found = [facts["refusal"]] if facts["refusal"] else []
    if count := len(facts["unreadable"]):
        found.append(f"{_files(count)} cannot be read; replace or remove {'it' if count == 1 else 'them'}")
    if bare := [row["class"] for row in facts.get("balance", ()) if not row["train"]]:
        found.append(f"there is no image of {_some(bare)} to train on; add some, or remove the folder")
    if strange := facts.get("masks", {}).get("strange"):
        found.append(f"{_masks(len(strange))} values that are no class, {strange[0]['file']} first; 255 is void")
    return found


def advice(finding: Finding, facts: dict[str, Any], val_fraction: float) -> list[str]:
    """What is worth a thought before training."""
    every = (_leaks, _classes, _parts, _pixels, _files_beside)
    told = [line for part in every for line in part(finding, facts)]
    if finding.base is not None and not val_fraction and len(finding.parts) == 2:
        told.append("to choose settings without the test images, hold some out: --set data.val_fraction=0.1")
    return told


def _leaks(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    copies = facts["duplicates"]
    for part, count in copies["leaked"].items():
        if count:
            rows = {row["part"]: row["images"] for row in facts["parts"]}
            remedy = "remove them there" if finding.base is not None else "as the set was released"
            yield f"{count / rows[part]:.1%} of {part} are training images too, so scores there are too good: {remedy}"
    if count := len(copies["two_classes"]):
        yield f"{_images(count)} {_are(count)} there under two classes, of which one is wrong"
    for part, count in copies["within"].items():
        if count:
            yield f"{part} has {_images(count)} more than once: harmless if few"


def _classes(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    for name in facts["empty"]:
        yield f"{name} has no images: fill or remove the folder"
    for part, names in facts["missing"].items():
        yield f"{part} has no images of {_some(names)}: those classes are trained but not scored"
    train = facts["parts"][0]
    if train.get("ratio", 1) >= UNEVEN:
        yield (
            f"the largest class has {train['ratio']:g} times the images of the smallest: look at the scores of every "
            "class, not at their mean alone"
        )
    absent = [row["class"] for row in facts.get("masks", {}).get("frequency", ()) if not row["train images"]]
    if absent:
        yield f"no training mask has {_some(absent)}"


def _parts(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    if finding.name.startswith("folder:") and not finding.held:
        yield "there is no val/: a tenth of the images is held out and scored; put images there to choose your own"
    unused = [name for name in facts["unused"] if name.split("/")[0] in HELD]
    if unused:
        count = sum(facts["unused"][name] for name in unused)
        yield f"{finding.held}/ is scored, so {_images(count)} in {_some(unused)} would not be used"


def _pixels(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    sizes, modes = facts["sizes"], facts["modes"]
    side, wanted = sizes.get("shorter_side", 0), facts["image_size"]
    if 0 < side < wanted and modes:
        better = max((size for size in SIDES if size <= side), default=max(side, 8))
        yield (
            f"most images are smaller than {wanted} and would be enlarged: --set data.image_size={better} is faster "
            "and shows as much"
            if not finding.dense
            else f"most images are smaller than the crops of {wanted}: --set data.image_size={better} leaves less black"
        )
    elif side >= LARGE * wanted and modes:
        yield (
            f"images are much larger than {wanted}, so reading them is most of the work: copies with a shorter side of "
            f"{2 * wanted} train faster and look the same"
        )
    if count := facts["turned"]:
        yield (
            f"{_images(count)} {_are(count)} to be turned when shown (EXIF), which training does not do: "
            "mogrify -auto-orient turns such files for good"
        )
    if "CMYK" in modes:
        yield "CMYK images are converted without their colour profile, so colours may differ from what you see"
    if any("alpha" in mode for mode in modes):
        yield "transparency is dropped: what was stored behind it, often black, is what networks see"


def _files_beside(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    kinds = facts["not_images"]
    pictures = {kind: count for kind, count in kinds.items() if kind in FOREIGN}
    if pictures:
        count = sum(pictures.values())
        yield f"{_files(count)} of a kind that is not read ({_some(list(pictures))}): save as PNG or JPEG"
    elif kinds:
        count = sum(kinds.values())
        yield f"{_files(count)} beside the images {_are(count)} no {'image' if count == 1 else 'images'} and left alone"
    stray = {name: count for name, count in facts["unused"].items() if name.split("/")[0].lower() not in HELD}
    if stray:
        count = sum(stray.values())
        yield f"{_images(count)} in {_some(list(stray))} {_are(count)} in no part of the set"
    if facts["unpaired"]:
        yield f"{_files(len(facts['unpaired']))} without image or mask of the same name, {facts['unpaired'][0]} first"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _images(count: int) -> str:
    return "one image" if count == 1 else f"{count:,} images"


def _files(count: int) -> str:
    return "one file" if count == 1 else f"{count:,} files"


def _masks(count: int) -> str:
    return "one mask has" if count == 1 else f"{count:,} masks have"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
