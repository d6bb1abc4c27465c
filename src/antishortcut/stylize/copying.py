"""Stylised copies of a test set, written chunk by chunk: a folder of bytes, the same for every method and seed."""
# N images, B images of a chunk, S side of the square images

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from antishortcut.console import Watch
from antishortcut.data import Loader
from antishortcut.data.copies import fill, growing, read_images
from antishortcut.errors import UserError
from antishortcut.files import sha256
from antishortcut.folder import Folder, replacing, write_json
from antishortcut.stylize import reading as at
from antishortcut.stylize.pairing import VERSION, Ints
from antishortcut.stylize.plan import Plan, images_at, make_plan
from antishortcut.stylize.reading import Stylized, open_stylized, read_facts
from antishortcut.stylize.sheet import contact_sheet
from antishortcut.types import Sets

if TYPE_CHECKING:
    from antishortcut.stylize.nets import Stylizer

PIXELS = 2**18  # of a chunk: 256 images of 32 × 32, five of 224 × 224
SHOWN = 12  # images on the contact sheet
UNFINISHED = "images.partial"  # the folder of files while it grows


def write_stylized(
    stylizer: Stylizer,
    sets: Sets,
    out: Path,
    *,
    which: str | None = None,
    styles: Path | None = None,
    alpha: float = 1.0,
    seed: int = 0,
    limit: int | None = None,
    files: bool = False,
    quiet: bool = False,
) -> Stylized:
    """Stylised copies of the test set `which` (by default the first), opened; finished ones are not made again.

    styles: a folder of pictures; by default the style of each image is that of a training image of another class.
    limit: at most so many images, balanced over the classes. files: PNGs below out/images too.
    """
    plan, chosen = check_request(sets, out, which=which, styles=styles, alpha=alpha, seed=seed, limit=limit)
    wanted = chosen | dict(stylizer.facts)  # everything that decides the pixels
    _check(out, wanted)
    with Folder(out).locked():
        if read_facts(out) is None:
            _write(stylizer, plan, sets, out, wanted, quiet)
        made = open_stylized(out, len(sets.classes))
        if files:
            _write_files(made, plan, sets.classes)
    return made


def check_request(
    sets: Sets,
    out: Path,
    *,
    which: str | None = None,
    styles: Path | None = None,
    alpha: float = 1.0,
    seed: int = 0,
    limit: int | None = None,
) -> tuple[Plan, dict[str, Any]]:
    """What would be written, or an error; to be asked before a stylizer is trained for it."""
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha is between 0 (reconstruction) and 1 (the style's statistics), not {alpha}")
    plan = make_plan(sets, which, styles, seed, limit)
    chosen = {"kind": at.KIND, "source": "generated", "version": VERSION, "alpha": alpha, "seed": seed, "limit": limit}
    wanted = chosen | dict(plan.facts)
    _check(out, wanted)
    return plan, wanted


def _check(out: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse a folder that holds other things; what an interrupted call left is ours."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; name a folder")
    facts = read_facts(out)
    if facts is None:
        ours = {at.IMAGES, at.LABELS, at.STYLE, at.STYLE_LABELS, at.SHEET, at.FILES, UNFINISHED, ".lock"}
        there = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
        others = [name for name in there if name not in ours and not name.endswith(".part")]
        if others:
            raise UserError(f"{out} is not empty ({', '.join(others[:3])}); name a new folder")
        return
    changed = [f"{key}: {facts.get(key)} there, {new} here" for key, new in wanted.items() if facts.get(key) != new]
    if changed:
        raise UserError(f"{out} holds copies made otherwise ({'; '.join(changed[:3])}); name a new folder or remove it")


def _write(stylizer: Stylizer, plan: Plan, sets: Sets, out: Path, wanted: Mapping[str, Any], quiet: bool) -> None:
    side, count = sets.image_size, len(plan.content)
    for stale in (at.FILES, UNFINISHED):
        shutil.rmtree(out / stale, ignore_errors=True)
    with growing(out / at.IMAGES, (count, side, side, 3)) as path, Watch("stylize", count, quiet) as watch:
        watch.begin(0)
        start = 0
        for content, numbers in _chunks(plan, side):
            images = stylizer(content, plan.styles(numbers), wanted["alpha"])  # (B, 3, S, S)
            fill(path, start, (images * 255).round().byte().permute(0, 2, 3, 1).numpy())
            start += len(numbers)
            watch.update(start, {})
    _keep(out / at.LABELS, plan.content.label.numpy())
    _keep(out / at.STYLE, plan.style)
    if plan.style_label is not None:
        _keep(out / at.STYLE_LABELS, plan.style_label)
    _write_sheet(out, plan, sets)
    made = {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": stylizer.device.type}
    write_json(out / at.FACTS, dict(wanted) | {"sha256": sha256(out / at.IMAGES), "made": made})


def _chunks(plan: Plan, side: int) -> Iterator[tuple[Tensor, Ints]]:
    """Content images (B, 3, S, S) and the numbers of their styles (B,), in order."""
    size = max(1, PIXELS // side**2)
    loader = Loader(plan.content, batch=size, seed=0, image_size=side, augment="none", shuffle=False)
    for batch in loader.epoch(0):
        yield batch.image, plan.style[batch.index.numpy()]


def _keep(path: Path, values: Ints) -> None:
    with replacing(path) as file:
        np.save(file, values, allow_pickle=False)


def _write_sheet(out: Path, plan: Plan, sets: Sets) -> None:
    count = len(plan.content)
    shown = np.linspace(0, count - 1, min(SHOWN, count)).astype(np.int64)  # (n,) spread over the set
    result = torch.from_numpy(read_images(out / at.IMAGES)[shown]).permute(0, 3, 1, 2).float() / 255  # (n, 3, S, S)
    content = images_at(plan.content, shown, sets.image_size)
    labels = plan.content.label[torch.from_numpy(shown)].tolist()
    styles = plan.style[shown]  # (n,)
    captions = [(sets.classes[label], plan.name(style)) for label, style in zip(labels, styles.tolist(), strict=True)]
    with replacing(out / at.SHEET) as file:
        contact_sheet(content, plan.styles(styles), result, captions).save(file, "PNG", optimize=True)


def _write_files(made: Stylized, plan: Plan, classes: tuple[str, ...]) -> None:
    """images/<class>/<number in the whole set>.png, all of them or none."""
    home, unfinished = made.folder / at.FILES, made.folder / UNFINISHED
    if home.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    names = _folders(classes)
    for name in names:
        (unfinished / name).mkdir(parents=True)
    for image, label, number in zip(made.images.image, made.label.tolist(), plan.place.tolist(), strict=True):
        array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())  # (S, S, 3)
        Image.fromarray(array).save(unfinished / names[label] / f"{number:06d}.png")
    os.replace(unfinished, home)


def _folders(classes: tuple[str, ...]) -> list[str]:
    """A folder's name for every class; the words of ImageNet name some classes twice, so those get numbers."""
    names = [name.replace("/", "-").replace("\0", "").lstrip(".") or "-" for name in classes]
    lower = [name.lower() for name in names]  # some file systems do not tell them apart
    return [name if lower.count(name.lower()) == 1 else f"{name}-{label}" for label, name in enumerate(names)]
