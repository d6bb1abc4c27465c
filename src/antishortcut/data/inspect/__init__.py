"""Look before you train: what a set holds, what is wrong with it, and what training will see of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from antishortcut.data.inspect.scan import (
    HELD,
    SIDES,
    Finding,
    Seen,
    check_augment,
    look,
    open_finding,
    usual_augment,
    usual_side,
)
from antishortcut.data.inspect.sheet import contact_sheet
from antishortcut.data.inspect.summary import SHOWN, summarise
from antishortcut.data.readers import FOREIGN

__all__ = [
    "SHOWN",
    "Finding",
    "Seen",
    "advice",
    "check_augment",
    "contact_sheet",
    "look",
    "open_finding",
    "problems",
    "summarise",
    "usual_augment",
    "usual_side",
]


# --- What to do about the facts of a set, in a line each ---

UNEVEN = 10.0  # ratio of the largest to the smallest class that gets a line
LARGE = 4  # times the training size from which decoding is most of the work


def problems(facts: dict[str, Any]) -> list[str]:
    """Why training would stop."""
    lines = [facts["refusal"]] if facts["refusal"] else []
    if count := len(facts["unreadable"]):
        lines.append(f"{_many(count, 'file')} cannot be read; replace or remove {'it' if count == 1 else 'them'}")
    if bare := [row["class"] for row in facts.get("balance", ()) if not row["train"]]:
        lines.append(f"there is no image of {_some(bare)} to train on; add some, or remove the folder")
    if strange := facts.get("masks", {}).get("strange"):
        count, have = len(strange), "has" if len(strange) == 1 else "have"
        first = strange[0]["file"]
        lines.append(f"{_many(count, 'mask')} {have} values that are no class, {first} first; 255 is void")
    return lines


def advice(finding: Finding, facts: dict[str, Any], val_fraction: float) -> list[str]:
    """What is worth a thought before training."""
    lines = [*_copies(finding, facts), *_classes(facts), *_parts(finding, facts)]
    lines += [*_pixels(finding, facts), *_other_files(facts)]
    if finding.base is not None and not val_fraction and len(finding.parts) == 2:
        lines.append("to choose settings without the test images, hold some out: --set data.val_fraction=0.1")
    return lines


def _copies(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    copies, images = facts["duplicates"], {row["part"]: row["images"] for row in facts["parts"]}
    remedy = "remove them there" if finding.base is not None else "as the set was released"
    for part, count in copies["leaked"].items():
        if count:
            share = f"{count / images[part]:.1%}"
            yield f"{share} of {part} are training images too, so scores there are too good: {remedy}"
    if count := len(copies["two_classes"]):
        yield f"{_many(count, 'image')} {_are(count)} there under two classes, of which one is wrong"
    for part, count in copies["within"].items():
        if count:
            yield f"{part} has {_many(count, 'image')} more than once: harmless if few"


def _classes(facts: dict[str, Any]) -> Iterator[str]:
    for name in facts["empty"]:
        yield f"{name} has no images: fill or remove the folder"
    for part, names in facts["missing"].items():
        yield f"{part} has no images of {_some(names)}: those classes are trained but not scored"
    ratio = facts["parts"][0].get("ratio", 1)
    if ratio >= UNEVEN:
        yield (
            f"the largest class has {ratio:g} times the images of the smallest: look at the scores of every class, "
            "not at their mean alone"
        )
    absent = [row["class"] for row in facts.get("masks", {}).get("frequency", ()) if not row["train images"]]
    if absent:
        yield f"no training mask has {_some(absent)}"


def _parts(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    if finding.name.startswith("folder:") and not finding.held:
        yield "there is no val/: a tenth of the images is held out and scored; put images there to choose your own"
    unused = {name: count for name, count in facts["unused"].items() if name.split("/")[0] in HELD}
    if unused:
        count = _many(sum(unused.values()), "image")
        yield f"{finding.held}/ is scored, so {count} in {_some(list(unused))} would not be used"


def _pixels(finding: Finding, facts: dict[str, Any]) -> Iterator[str]:
    modes, size = facts["modes"], facts["image_size"]
    side = facts["sizes"].get("shorter_side", 0) if modes else 0
    if 0 < side < size:
        option = f"--set data.image_size={max((known for known in SIDES if known <= side), default=max(side, 8))}"
        if finding.dense:
            yield f"most images are smaller than the crops of {size}: {option} leaves less black"
        else:
            yield f"most images are smaller than {size} and would be enlarged: {option} is faster and shows as much"
    elif side >= LARGE * size:
        yield (
            f"images are much larger than {size}, so reading them is most of the work: copies with a shorter side of "
            f"{2 * size} train faster and look the same"
        )
    if count := facts["turned"]:
        yield (
            f"{_many(count, 'image')} {_are(count)} to be turned when shown (EXIF), which training does not do: "
            "mogrify -auto-orient turns such files for good"
        )
    if "CMYK" in modes:
        yield "CMYK images are converted without their colour profile, so colours may differ from what you see"
    if any("alpha" in mode for mode in modes):
        yield "transparency is dropped: what was stored behind it, often black, is what networks see"


def _other_files(facts: dict[str, Any]) -> Iterator[str]:
    kinds = facts["not_images"]
    pictures = {kind: count for kind, count in kinds.items() if kind in FOREIGN}
    if pictures:
        count = _many(sum(pictures.values()), "file")
        yield f"{count} of a kind that is not read ({_some(list(pictures))}): save as PNG or JPEG"
    elif count := sum(kinds.values()):
        images = "image" if count == 1 else "images"
        yield f"{_many(count, 'file')} beside the images {_are(count)} no {images} and left alone"
    stray = {name: count for name, count in facts["unused"].items() if name.split("/")[0].lower() not in HELD}
    if count := sum(stray.values()):
        yield f"{_many(count, 'image')} in {_some(list(stray))} {_are(count)} in no part of the set"
    if unpaired := facts["unpaired"]:
        yield f"{_many(len(unpaired), 'file')} without image or mask of the same name, {unpaired[0]} first"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _many(count: int, thing: str) -> str:
    return f"one {thing}" if count == 1 else f"{count:,} {thing}s"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
