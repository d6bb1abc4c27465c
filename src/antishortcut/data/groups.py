"""Groups: images of one class that share a second attribute. Read from metadata.csv, or made of the cues of a set."""
# N images, G groups

import csv
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from antishortcut.data.readers import RawDataset, lines, read_text
from antishortcut.errors import UserError, first_line
from antishortcut.types import AnySet, FileSet

TABLE, NAMES = "metadata.csv", "classes.txt"
REQUIRED = ("img_filename", "y", "split")
OF_CLASSES = {"texture": "texture", "planted": "planted cue"}  # attributes that are the number of a class
USUAL = "place"  # the second attribute; without it, the only other column of whole numbers
SPLITS = ("train", "validation", "test")  # of the column split: 0, 1, 2
_HINT = "expected metadata.csv with the columns img_filename, y, split (0 train, 1 validation, 2 test) and place"
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")

Line = tuple[int, Mapping[str, str]]  # its number in the file, and its fields


def groups_of(images: AnySet, classes: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Every image's group (N,) and the names of the groups that have images (G): class and second attribute, in order.

    A texture or a planted cue is the number of a class; only whether it agrees matters: "A, texture agrees". Other
    attributes are named by their value: "landbird, place 1".
    """
    if not images.cues:
        raise UserError("the images have no attribute besides their class, so no groups; use cues or groups:PATH")
    cues = sorted(images.cues)
    values = [(images.cues[cue] == images.label).long() if cue in OF_CLASSES else images.cues[cue] for cue in cues]
    kinds, group = torch.unique(torch.stack([images.label, *values], dim=1), dim=0, return_inverse=True)
    return group, tuple(", ".join([classes[label], *map(_described, cues, row)]) for label, *row in kinds.tolist())


def shares(images: AnySet, classes: tuple[str, ...]) -> dict[str, float]:
    """Every group's share of a set, by name. They sum to 1."""
    group, names = groups_of(images, classes)
    counts = group.bincount(minlength=len(names)).tolist()
    return {name: count / len(images) for name, count in zip(names, counts, strict=True)}


def _described(cue: str, value: int) -> str:
    if cue in OF_CLASSES:
        return f"{OF_CLASSES[cue]} {'agrees' if value else 'differs'}"
    return f"{cue} {value}"


def list_groups(folder: Path) -> RawDataset:
    """The images in metadata.csv. Class names are in classes.txt, one per line, or the numbers of column y.

    Tests are "test", and "validation" if the table has one: scored, never trained on.
    """
    table = folder / TABLE
    header, rows = _table(table)
    attribute = _second_attribute(table, header, rows)
    splits: tuple[list[tuple[Path, int, int]], ...] = ([], [], [])
    split_of: dict[Path, int] = {}
    for at, row in rows:
        split, label, second = (_whole(table, at, row, column) for column in ("split", "y", attribute))
        if split not in range(len(SPLITS)):
            raise UserError(f"{table}, line {at}: split is {split}, not 0 (train), 1 (validation) or 2 (test)")
        name = row["img_filename"]
        if os.path.isabs(name) or not os.path.isfile(folder / name):  # names are part of the fingerprint
            raise UserError(f"{table}, line {at}: no image file {name[:80]!r} in {folder}")
        if split_of.setdefault(folder / name, split) != split:
            raise UserError(f"{table}, line {at}: {name!r} is in split {split_of[folder / name]} already")
        splits[split].append((folder / name, label, second))
    for split in (0, 2):
        if not splits[split]:
            raise UserError(f"{table} has no image with split {split} ({SPLITS[split]}); {_HINT}")
    classes = _classes(folder, {label for _, label, _ in splits[0]})
    for at, row in rows:
        if not 0 <= int(row["y"]) < len(classes):
            raise UserError(f"{table}, line {at}: y is {int(row['y'])}, but no training image has that class")
    train, validation, test = (
        FileSet(
            tuple(path for path, _, _ in images),
            torch.tensor([label for _, label, _ in images], dtype=torch.int64),
            {attribute: torch.tensor([second for _, _, second in images], dtype=torch.int64)},
        )
        for images in splits
    )
    tests = {"test": test} | ({"validation": validation} if len(validation) else {})
    return RawDataset(classes, train, tests, base=folder)


def _table(path: Path) -> tuple[list[str], list[Line]]:
    """Column names, and every row with the number of its line."""
    reader = csv.DictReader(io.StringIO(read_text(path, _HINT), newline=""))
    try:
        header = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
        rows: list[Line] = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UserError(f"{path} is not a table ({first_line(error)}); {_HINT}") from None
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise UserError(f"{path} has no column {', '.join(missing)}; {_HINT}")
    for at, row in rows:
        if None in row or None in row.values():
            raise UserError(f"{path}, line {at}: the first line has {len(header)} fields, this one has not")
    return header, rows


def _second_attribute(path: Path, header: list[str], rows: list[Line]) -> str:
    """The column `place`, or the only other one of whole numbers."""
    if USUAL in header:
        return USUAL
    columns = [name for name in header if name not in ("", "img_id", *REQUIRED)]
    whole = [name for name in columns if all(_WHOLE.fullmatch(row[name].strip()) for _, row in rows)]
    if len(whole) != 1:
        has = "several: " + ", ".join(map(repr, whole)) if whole else "none"
        raise UserError(f"{path} needs one column of whole numbers besides y and split, has {has}; name one {USUAL}")
    return whole[0]


def _whole(path: Path, at: int, row: Mapping[str, str], column: str) -> int:
    field = row[column].strip()
    if not _WHOLE.fullmatch(field):
        raise UserError(f"{path}, line {at}: {column} is {field[:40]!r}, not a whole number")
    return int(field)


def _classes(folder: Path, labels: set[int]) -> tuple[str, ...]:
    """Names of the classes 0, 1, …, each of which must have training images."""
    gap = next((number for number in range(len(labels)) if number not in labels), None)
    if gap is not None:
        raise UserError(f"{folder / TABLE}: no training image has y = {gap}; classes are numbered 0, 1, … without gaps")
    if not (folder / NAMES).exists():
        return tuple(map(str, range(len(labels))))
    names = tuple(lines(folder / NAMES, "one class name a line"))
    if len(names) != len(labels) or len(set(names)) != len(names):
        raise UserError(f"{folder / NAMES} has {len(set(names))} different names for the {len(labels)} classes of y")
    return names
