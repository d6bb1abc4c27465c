"""Open corrupted copies: the released files of CIFAR-C, ours, or the image folders of ImageNet-C."""
# N images of one corruption at one severity, B images, S side

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from antishortcut.data import contact_sheet as sheets
from antishortcut.data.corruptions.constants import CORRUPTIONS, SEVERITIES
from antishortcut.data.corruptions.noise import Bytes
from antishortcut.data.corruptions.writer import FACTS, LABELS, MAKING, read_facts
from antishortcut.data.derived import as_set, read_images, read_labels
from antishortcut.data.image_io import content_digests, picture_at, size_of, stat
from antishortcut.data.readers import SUFFIXES
from antishortcut.data.splits import CONTENT, by_times
from antishortcut.errors import UserError, suggest
from antishortcut.types import AnySet, FileSet


@dataclass(frozen=True)
class Copies:
    """A clean set under many corruptions, each at five severities."""

    folder: Path
    source: str  # "official" or "generated"
    names: tuple[str, ...]  # the corruptions in the folder
    count: int  # N
    side: int  # S
    label: Tensor  # (N,)
    fingerprint: str  # 16 hex digits
    facts: Mapping[str, Any]
    read: Callable[[str, int], AnySet]
    hashed: str = "content"  # how the fingerprint notices changes, as in DataSplits

    def part(self, name: str, severity: int) -> AnySet:
        """The images of one corruption at one severity; nothing is read before it is used."""
        if name not in self.names:
            raise UserError(f"{self.folder} has no corruption {name!r}{suggest(name, self.names)}")
        return self.read(name, severity)


def find_copies(folder: Path, classes: Sequence[str], *, needed: Sequence[str] = CORRUPTIONS) -> Copies:
    """Copies in either layout. `classes` are the class folders; of .npy files only their number matters."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder} of corrupted images")
    files = any((folder / name).exists() for name in (FACTS, MAKING, LABELS, *(f"{name}.npy" for name in CORRUPTIONS)))
    if not files and any(_home(folder, name) is not None for name in CORRUPTIONS):
        return _open_folders(folder, tuple(classes), needed)
    return open_copies(folder, len(classes), needed=needed)


def open_copies(folder: Path, classes: int, *, needed: Sequence[str] = CORRUPTIONS) -> Copies:
    """The .npy files of CIFAR-C's layout; without facts.json they are taken for the released ones."""
    facts = read_facts(folder / FACTS)
    if facts is None and (folder / MAKING).exists():
        raise UserError(f"the copies in {folder} are not finished; run asd corrupt again with the same settings")
    names = _present(folder, [name for name in CORRUPTIONS if (folder / f"{name}.npy").exists()], needed)
    label = _first_of_five(folder / LABELS, classes)
    arrays = {name: read_images(folder / f"{name}.npy") for name in names}  # mapped, not read
    shape = (len(SEVERITIES) * len(label), *arrays[names[0]].shape[1:])
    for name, array in arrays.items():
        if array.shape != shape:
            raise UserError(f"{folder / name}.npy has shape {array.shape}, expected {shape} as labels and others say")
    if facts is not None and facts["count"] != len(label):
        raise UserError(f"{folder} has {len(label)} labels, {FACTS} says {facts['count']}; make the copies again")

    def read_part(name: str, severity: int) -> AnySet:
        return as_set(arrays[name][(severity - 1) * len(label) : severity * len(label)], label)

    # of the labels, the needed images and the settings, whatever other corruptions are in the folder
    settings = {key: value for key, value in (facts or {}).items() if key != "names"}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    paths = [folder / LABELS, *(folder / f"{name}.npy" for name in names if name in needed)]
    for path, content in zip(paths, content_digests(paths), strict=True):
        digest.update(f"\n{path.name} {stat(path).size} {content}".encode())
    source = "official" if facts is None else str(facts.get("source", "generated"))
    mark = digest.hexdigest()[:16]
    return Copies(folder, source, names, len(label), shape[1], label, mark, facts or {}, read_part)


def _present(folder: Path, names: Sequence[str], needed: Sequence[str]) -> tuple[str, ...]:
    """The corruptions in the folder, unless needed ones are missing."""
    missing = [name for name in needed if name not in names]
    if missing and len(missing) == len(needed):
        raise UserError(f"{folder} has none of the corruptions, such as {needed[0]}.npy or {needed[0]}/1/<class>")
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing)}; fetch or make them")
    return tuple(names)


def _first_of_five(path: Path, classes: int) -> Tensor:
    """Labels of one severity, (N,), of a file that repeats them for all."""
    label = read_labels(path, classes)
    first = label[: len(label) // len(SEVERITIES)]  # (N,)
    if not torch.equal(label, first.repeat(len(SEVERITIES))):
        raise UserError(f"{path} does not repeat the same labels {len(SEVERITIES)} times, once for each severity")
    return first.clone()


def _open_folders(folder: Path, classes: tuple[str, ...], needed: Sequence[str]) -> Copies:
    """The folders of ImageNet-C and Tiny-ImageNet-C: <corruption>/<severity>/<class>/<image>, or one level deeper.

    Labels are places in `classes`; images of other classes are left out. Only one corruption is listed now; the others
    must hold the same files, which is checked when they are opened.
    """
    homes = {name: home for name in CORRUPTIONS if (home := _home(folder, name)) is not None}
    names = _present(folder, list(homes), needed)
    for name, severity in product(names, SEVERITIES):
        if not (homes[name] / str(severity)).is_dir():
            raise UserError(f"no folder {homes[name] / str(severity)}; expected one for each severity")
    first = _listed(homes[names[0]] / "1", classes)
    if not first:
        raise UserError(f"{homes[names[0]] / '1'} has no images in folders named as the classes, such as {classes[0]}")
    label = torch.tensor([place for place, _ in first])

    def read_part(name: str, severity: int) -> AnySet:
        where = homes[name] / str(severity)
        if (listed := _listed(where, classes)) != first:
            place, file = min(set(listed) ^ set(first))
            raise UserError(f"{where} has other images than {names[0]}: {classes[place]}/{file} is in one of them only")
        return FileSet(tuple(where / classes[place] / file for place, file in listed), label)

    sample = homes[names[0]] / "1" / classes[first[0][0]] / first[0][1]
    mark, hashed = _mark({name: homes[name] for name in names if name in needed}, first, classes)
    return Copies(folder, "official", names, len(first), min(size_of(sample)), label, mark, {}, read_part, hashed)


def _home(folder: Path, name: str) -> Path | None:
    """The folder of a corruption, directly below or in a group such as noise/, as ImageNet-C is released."""
    places = [folder / name, *sorted(folder.glob(f"*/{name}"))]
    return next((place for place in places if place.is_dir()), None)


def _listed(folder: Path, classes: Sequence[str]) -> list[tuple[int, str]]:
    """(place of the class, file name) of the images in the class folders, sorted."""
    return [
        (place, file)
        for place, name in enumerate(classes)
        if (folder / name).is_dir()
        for file in sorted(os.listdir(folder / name))
        if Path(file).suffix.lower() in SUFFIXES
    ]


def _mark(homes: Mapping[str, Path], first: Sequence[tuple[int, str]], classes: Sequence[str]) -> tuple[str, str]:
    """Which corruptions, and of every file of every severity: class, name and size, 0 where it is missing; and content.

    As `splits.fingerprint`: of more bytes than CONTENT the content is left out. Both the mark and how it is made.
    """
    digest = hashlib.sha256("\n".join(homes).encode())
    by_class: dict[str, list[str]] = {}
    paths, times, total = list[Path](), list[int](), 0
    for place, file in first:
        by_class.setdefault(classes[place], []).append(file)
    for home, severity in product(homes.values(), SEVERITIES):
        for name, files in by_class.items():
            folder = home / str(severity) / name
            facts = {each.name: each.stat() for each in os.scandir(folder)} if folder.is_dir() else {}
            sizes = {file: facts[file].st_size for file in files if file in facts}
            digest.update(repr([(name, file, sizes.get(file, 0)) for file in files]).encode())
            times += [facts[file].st_mtime_ns for file in sizes]
            total += sum(sizes.values())
            paths += [folder / file for file in sizes] if total <= CONTENT else []
    if total <= CONTENT:
        digest.update("".join(content_digests(paths)).encode())
    return digest.hexdigest()[:16], "content" if total <= CONTENT else by_times(times)


def contact_sheet(copies: Copies, clean: Bytes) -> Image.Image:
    """The first image: a row for every corruption, with the clean image (S, S, 3) and severities 1 to 5."""
    rows = [
        (name, [Image.fromarray(clean), *(picture_at(copies.part(name, level), 0) for level in SEVERITIES)])
        for name in copies.names
    ]
    return sheets.contact_sheet(["clean", *(f"severity {severity}" for severity in SEVERITIES)], rows)
