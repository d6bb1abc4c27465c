"""Stylised copies of a test set, shapes in the textures of others: the same bytes for every method and seed.

A folder is complete or not there. Reading one loads no network.
"""
# N images, M training images, B images of a chunk, S side of the square images

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antishortcut.data import Loader
from antishortcut.data.contact_sheet import contact_sheet
from antishortcut.data.derived import as_set, read_images, read_labels
from antishortcut.data.image_io import decode
from antishortcut.data.readers import images_below
from antishortcut.data.rng import uniform
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited, set_mark, take
from antishortcut.errors import UserError, suggest
from antishortcut.fileio import atomic_dir, sha256
from antishortcut.progress import ProgressBar
from antishortcut.run_dir import read_json, write_json
from antishortcut.types import AnySet, DataSplits, FileSet, ImageSet

if TYPE_CHECKING:
    from antishortcut.evaluation.adain import Stylizer

VERSION = 1  # of the random styles and the pixels; raise it when either changes
STREAM = 0x57_59_4C_45  # different from the streams of data/rng.py
PIXELS = 2**18  # of a chunk: 256 images of 32 × 32, five of 224 × 224
SHOWN = 12  # images on the contact sheet
KIND = "stylized"
IMAGES, LABELS, STYLE, STYLE_LABELS = "stylized.npy", "labels.npy", "style.npy", "style_label.npy"
FACTS, SHEET, FILES = "facts.json", "contact.png", "images"
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StylePlan:
    """The images of a test set, and a style for each of them."""

    content: AnySet
    number: Ints  # (N,) of every image in its whole set
    style: Ints  # (N,) which style every image gets
    style_label: Ints | None  # (N,) its class, when styles are training images
    images: Callable[[Ints], Tensor]  # styles (B,) → images (B, 3, S, S) in [0, 1]
    name: Callable[[int], str]  # a style → its name
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Stylized:
    """Stylised copies of a test set."""

    folder: Path
    images: ImageSet  # (N, 3, S, S) bytes, memory-mapped, with the content's labels
    style_label: Tensor | None  # (N,) class of the image that gave the style; None for paintings
    fingerprint: str  # 16 hex digits: of the settings, the weights and the pixels
    facts: Mapping[str, Any]


def write_stylized(
    stylizer: Stylizer,
    sets: DataSplits,
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
    """Stylised copies of the test set `which` (by default the first); finished copies are not generated again.

    styles: a folder of pictures; by default the style of each image is that of a training image of another class.
    limit: at most so many images, balanced over the classes. files: also PNGs below out/images.
    """
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha is between 0 (reconstruction) and 1 (the style's statistics), not {alpha}")
    plan = _plan(sets, which, styles, seed, limit)
    settings: dict[str, Any] = {"kind": KIND, "source": "generated", "version": VERSION}
    settings |= {"alpha": alpha, "seed": seed, "limit": limit, **plan.facts, **stylizer.facts}
    if not _finished(out, settings):
        with atomic_dir(out) as folder:
            _write(stylizer, plan, sets, folder, settings, quiet)
    result = open_stylized(out, len(sets.classes))
    if files and not (out / FILES).exists():
        with atomic_dir(out / FILES) as folder:
            _write_files(result, plan, sets.classes, folder)
    return result


def another_class(label: Ints, number: Ints, train_label: Ints, seed: int) -> Ints:
    """For every image (N,), a training image of another class, all equally likely: indices into (M,), as (N,).

    `number` of the image in its whole set: a part of the set gets the same styles as the whole.
    """
    by_class = np.argsort(train_label, kind="stable")  # (M,)
    sizes = np.bincount(train_label, minlength=int(label.max()) + 1)  # (classes,)
    first = np.cumsum(sizes) - sizes  # (classes,) where a class begins in by_class
    candidates = len(train_label) - sizes[label]  # (N,)
    if (candidates == 0).any():
        raise UserError("the training images are all of one class, so none can give its style to another; use --styles")
    draw = any_style(number, candidates, seed)  # (N,)
    skip = np.where(draw >= first[label], sizes[label], 0)  # (N,) the image's own class is left out
    return np.asarray(by_class[draw + skip])


def any_style(number: Ints, count: int | Ints, seed: int) -> Ints:
    """For every image (N,), one of `count` styles, all equally likely. (N,)."""
    return np.asarray(uniform(seed, VERSION, number, STREAM) * count).astype(np.int64)


def _plan(sets: DataSplits, which: str | None, styles: Path | None, seed: int, limit: int | None) -> StylePlan:
    name = which if which is not None else next(iter(sets.tests))
    if name not in sets.tests:
        raise UserError(f"{sets.name} has no test set {name!r}{suggest(name, sets.tests)}")
    whole, side = sets.tests[name], sets.image_size
    wants_labels("a stylised set", whole, of="image")
    content = limited(replace(whole, cues={"number": torch.arange(len(whole))}), limit, 0, "--limit")
    number = content.cues["number"].numpy()  # (N,)
    facts: dict[str, Any] = {"set": sets.name.partition(":")[0], "part": name, "fingerprint": sets.fingerprint}
    facts |= {"count": len(content), "side": side}
    if styles is None:
        labels = sets.train.label.numpy()  # (M,)
        style = another_class(content.label.numpy(), number, labels, seed)  # (N,)
        return StylePlan(
            content, number, style, labels[style],
            images=lambda chosen: _images_at(sets.train, chosen, side),
            name=lambda index: sets.classes[int(labels[index])],
            facts=facts | {"styles": "train", "style_count": len(labels)},
        )  # fmt: skip
    paths = tuple(images_below(styles)) if styles.is_dir() else ()
    if not paths:
        raise UserError(f"no pictures in {styles}; --styles needs a folder with JPEG or PNG files")
    pictures = FileSet(paths, torch.zeros(len(paths), dtype=torch.int64))
    return StylePlan(
        content, number, any_style(number, len(paths), seed), None,
        images=lambda chosen: decode(cast(FileSet, take(pictures, torch.from_numpy(chosen))), side, None).image / 255,
        name=lambda index: paths[index].stem,
        facts=facts | {"styles": set_mark(pictures), "style_count": len(paths)},
    )  # fmt: skip


def _images_at(images: AnySet, index: Ints, side: int) -> Tensor:
    """The images at these indices, (B, 3, S, S) in [0, 1]."""
    chosen = take(images, torch.from_numpy(index))
    loader = Loader.in_order(chosen, len(index), side)
    return next(loader.epoch(0)).image


def _finished(out: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the copies are there; an error if the folder holds something else."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; name a folder")
    facts = read_facts(out)
    if facts is None:
        if names := sorted(path.name for path in out.iterdir()) if out.is_dir() else []:
            raise UserError(f"{out} is not empty ({', '.join(names[:3])}); name a new folder")
        return False
    changed = [f"{key}: {facts.get(key)} there, {new} here" for key, new in settings.items() if facts.get(key) != new]
    if changed:
        raise UserError(f"{out} holds copies with other settings ({'; '.join(changed[:3])}); name a new folder")
    return True


def _write(
    stylizer: Stylizer, plan: StylePlan, sets: DataSplits, folder: Path, settings: Mapping[str, Any], quiet: bool
) -> None:
    side, count = sets.image_size, len(plan.content)
    shown = np.linspace(0, count - 1, min(SHOWN, count)).astype(int).tolist()  # spread over the set
    rows = []
    array = np.lib.format.open_memmap(folder / IMAGES, mode="w+", dtype=np.uint8, shape=(count, side, side, 3))
    loader = Loader.in_order(plan.content, max(1, PIXELS // side**2), side)
    with ProgressBar("stylize", count, quiet) as bar:
        bar.begin(0)
        for batch in loader.epoch(0):
            index = batch.index.numpy()  # (B,)
            styles = plan.images(plan.style[index])
            images = stylizer(batch.image, styles, settings["alpha"])  # (B, 3, S, S)
            array[index] = _as_bytes(images)
            for at in (at for at, number in enumerate(index) if number in shown):
                triple = _as_bytes(torch.stack([each[at] for each in (batch.image, styles, images)]))
                title = f"{sets.classes[int(batch.label[at])]}, in the style of {plan.name(plan.style[index[at]])}"
                rows.append((title, [Image.fromarray(picture) for picture in triple]))
            bar.update(int(index[-1]) + 1, {})
    array.flush()
    np.save(folder / LABELS, plan.content.label.numpy())
    np.save(folder / STYLE, plan.style)
    if plan.style_label is not None:
        np.save(folder / STYLE_LABELS, plan.style_label)
    contact_sheet(("content", "style", "result"), rows, across=3).save(folder / SHEET, optimize=True)
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": stylizer.device.type}
    write_json(folder / FACTS, dict(settings) | {"sha256": sha256(folder / IMAGES), "made": machine})


def _as_bytes(images: Tensor) -> NDArray[np.uint8]:
    """(B, 3, S, S) in [0, 1] → (B, S, S, 3)."""
    array: NDArray[np.uint8] = (images * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
    return array


def _write_files(copies: Stylized, plan: StylePlan, classes: tuple[str, ...], folder: Path) -> None:
    """<class>/<number in the whole set>.png."""
    names = [re.sub(r"[/\0]|^\.+", "-", name) for name in classes]
    if len({name.lower() for name in names}) < len(names):  # ImageNet has names twice; some disks ignore case
        names = [f"{label}-{name}" for label, name in enumerate(names)]
    for name in names:
        (folder / name).mkdir()
    images = copies.images
    for image, label, number in zip(images.image, images.label.tolist(), plan.number.tolist(), strict=True):
        array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())  # (S, S, 3)
        Image.fromarray(array).save(folder / names[label] / f"{number:06d}.png")


def read_facts(folder: Path) -> dict[str, Any] | None:
    """facts.json of finished copies; None if there is none, an error if it belongs to something else."""
    path = folder / FACTS
    if not path.exists():
        return None
    facts = read_json(path)
    if not isinstance(facts, dict) or facts.get("kind") != KIND:
        raise UserError(f"{path} is not of stylised copies; they are made by asd stylize")
    return facts


def open_stylized(folder: Path, classes: int) -> Stylized:
    """Open the output of `asd stylize`, without any network. `classes`: how many the student knows."""
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
        raise UserError(f"{folder / IMAGES} has changed since it was written (its digest differs); make it again")
    decisive = {key: value for key, value in facts.items() if key != "made"}  # the machine does not count
    fingerprint = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
    return Stylized(folder, as_set(images, label), style_label, fingerprint, facts)
