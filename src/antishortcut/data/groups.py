"""Groups: images of one class that share a second fact. Waterbirds' metadata.csv, and groups of any set with cues."""
# N images, G groups

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from antishortcut.data.readers import Found, inside, lines
from antishortcut.errors import UserError, first_line
from antishortcut.fileio import content
from antishortcut.types import AnySet, FileSet

TABLE, NAMES = "metadata.csv", "classes.txt"
WANTED = ("img_filename", "y", "split")
USUAL = "place"  # the second fact; another column of whole numbers serves when it is the only one
TRAIN, VALIDATION, TEST = range(3)  # the column split
_HINT = "expected metadata.csv with the columns img_filename, y, split (0 train, 1 validation, 2 test) and place"
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")

Row = Mapping[str, str]


def groups_of(images: AnySet, classes: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Every image's group (N,) and the groups' names (G): class and second fact, those that have images, in order.

    A texture is the number of a class, of which only matters whether it agrees: "A, texture agrees". Other facts stand
    for themselves: "landbird, place 1".
    """
    if not images.cues:
        raise UserError(
            "the images have no second fact besides their class, so no groups; cues and groups:PATH have one"
        )
    facts = [
        (cue, (value == images.label).long() if cue == "texture" else value)
        for cue, value in sorted(images.cues.items())
    ]
    rows = torch.stack([images.label, *(value for _, value in facts)], dim=1)  # (N, 1 + facts)
    kinds, group = torch.unique(rows, dim=0, return_inverse=True)  # (G, 1 + facts), (N,)
    names = [
        ", ".join([classes[label], *(_said(cue, value) for (cue, _), value in zip(facts, values, strict=True))])
        for label, *values in kinds.tolist()
    ]
    return group, tuple(names)


def shares(images: AnySet, classes: tuple[str, ...]) -> dict[str, float]:
    """Every group's share of a set, by name. They sum to 1."""
    group, names = groups_of(images, classes)
    counts = group.bincount(minlength=len(names)).tolist()
    return {name: count / len(images) for name, count in zip(names, counts, strict=True)}


def _said(cue: str, value: int) -> str:
    return f"texture {'agrees' if value else 'differs'}" if cue == "texture" else f"{cue} {value}"


def list_groups(folder: Path) -> Found:
    """The images that metadata.csv lists. Class names are in classes.txt, one a line, or the numbers of column y.

    Tests are "test", and "validation" where the table has one: scored, never trained on.
    """
    table = folder / TABLE
    header, rows = _table(table)
    fact = _second_fact(table, header, rows)
    splits: dict[int, list[tuple[Path, int, int]]] = {TRAIN: [], VALIDATION: [], TEST: []}
    split_of: dict[Path, int] = {}
    for at, row in rows:
        split = _whole(table, at, row, "split")
        if split not in splits:
            raise UserError(f"{table}, line {at}: split is {split}, not 0 (train), 1 (validation) or 2 (test)")
        name = row["img_filename"]
        if not inside(name) or not os.path.isfile(folder / name):
            raise UserError(f"{table}, line {at}: no image file {name[:80]!r} in {folder}")
        if split_of.setdefault(folder / name, split) != split:
            raise UserError(f"{table}, line {at}: {name!r} is in split {split_of[folder / name]} already")
        splits[split].append((folder / name, _whole(table, at, row, "y"), _whole(table, at, row, fact)))
    for split, name in ((TRAIN, "train"), (TEST, "test")):
        if not splits[split]:
            raise UserError(f"{table} has no image with split {split} ({name}); {_HINT}")
    classes = _classes(folder, {y for _, y, _ in splits[TRAIN]})
    for at, row in rows:
        if not 0 <= int(row["y"]) < len(classes):
            raise UserError(f"{table}, line {at}: y is {int(row['y'])}, but no training image has that class")
    train, validation, test = (_files(splits[split], fact) for split in (TRAIN, VALIDATION, TEST))
    tests = {"test": test} | ({"validation": validation} if len(validation) else {})
    return Found(classes, train, tests, base=folder)


def _table(path: Path) -> tuple[list[str], list[tuple[int, Row]]]:
    """Column names, and every row with the number of its line."""
    try:
        reader = csv.DictReader(io.StringIO(content(path).decode("utf-8-sig"), newline=""))
        header = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
        rows: list[tuple[int, Row]] = [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        reason = (error.strerror or "no file") if isinstance(error, OSError) else first_line(error)
        raise UserError(f"cannot read {path} ({reason}); {_HINT}") from None
    missing = [name for name in WANTED if name not in header]
    if missing:
        raise UserError(f"{path} has no column {', '.join(missing)}; {_HINT}")
    for at, row in rows:
        if None in row or None in row.values():
            raise UserError(f"{path}, line {at}: the first line has {len(header)} fields, this one has not")
    return header, rows


def _second_fact(path: Path, header: list[str], rows: list[tuple[int, Row]]) -> str:
    """The column `place`, or the only other one that holds nothing but whole numbers."""
    if USUAL in header:
        return USUAL
    rest = [name for name in header if name not in ("", "img_id", *WANTED)]
    result = [name for name in rest if all(_WHOLE.fullmatch(row[name].strip()) for _, row in rows)]
    if len(result) != 1:
        outputs = "several: " + ", ".join(repr(name) for name in result) if result else "none"
        raise UserError(
            f"{path} needs one column of whole numbers besides y and split, has {outputs}; name one {USUAL}"
        )
    return result[0]


def _whole(path: Path, at: int, row: Row, column: str) -> int:
    text = row[column].strip()
    if not _WHOLE.fullmatch(text):
        raise UserError(f"{path}, line {at}: {column} is {text[:40]!r}, not a whole number")
    return int(text)


def _classes(folder: Path, outputs: set[int]) -> tuple[str, ...]:
    """Names of the classes 0, 1, …, each of which must have training images."""
    if outputs != set(range(len(outputs))):
        gap = next(number for number in range(len(outputs)) if number not in outputs)
        raise UserError(f"{folder / TABLE}: no training image has y = {gap}; classes are numbered 0, 1, … without gaps")
    if not (folder / NAMES).exists():
        return tuple(str(number) for number in range(len(outputs)))
    names = tuple(lines(folder / NAMES, "one class name a line"))
    if len(names) != len(outputs) or len(set(names)) != len(names):
        raise UserError(f"{folder / NAMES} has {len(set(names))} different names for the {len(outputs)} classes of y")
    return names


def _files(rows: list[tuple[Path, int, int]], fact: str) -> FileSet:
    label, second = (torch.tensor([row[at] for row in rows], dtype=torch.int64) for at in (1, 2))
    return FileSet(tuple(path for path, _, _ in rows), label, {fact: second})
