"""hf:NAME_OR_PATH, data sets of the Hugging Face hub and of its package `datasets`: Arrow, Parquet, image folders.

    hf:saved-by-datasets     hf:uoft-cs/cifar100?label=fine_label

Rows are read at their place in Arrow files, and images are decoded here, not by `datasets`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from antishortcut.data.readers import RawDataset, by_split, number_labels, split_of
from antishortcut.errors import UserError, first_line, suggest
from antishortcut.fileio import expanded, near_folder
from antishortcut.types import FileSet, ImageRef, PackedImage

SETTINGS = ("image", "label", "config")  # columns, and the name of a configuration
USUAL = ("label", "labels", "class", "cls")  # names of a column of labels


@dataclass(frozen=True, eq=False)
class ArrowTable:
    """The images of one split."""

    rows: Any  # a datasets.Dataset whose only column is the image as {"bytes", "path"}
    column: str
    name: str  # of the split
    time: int
    remote: bool = False

    def __str__(self) -> str:
        return self.name

    def read(self, at: int, size: int) -> bytes:
        data: bytes = self.rows[at][self.column]["bytes"]
        return data


def open_hf(text: str) -> RawDataset:
    """The splits train, validation and test, as far as they have labels."""
    place, settings = _parsed(text)
    splits = _labelled(_loaded(place, settings.get("config")), settings, text)
    images, labels = dict[str, FileSet](), dict[str, list[str]]()
    names: Sequence[str] = ()
    for split, (rows, _, label) in splits.items():
        names = getattr(rows.features[label], "names", ())
        labels[split] = [str(word) for word in rows[label][:]]
    remedy = "number them without gaps, or make the column a ClassLabel"
    classes, number = number_labels(labels, names, f"hf:{text}", remedy)
    for split, (rows, image, _) in splits.items():
        images[split] = FileSet(tuple(_files(rows, image, split, text)), number[split])
    raw = by_split(images, classes)
    paths = [path.parent for files in images.values() for path in files.paths if isinstance(path, Path)]
    return raw if not paths else RawDataset(**vars(raw) | {"base": Path(os.path.commonpath(paths))})


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    """NAME?label=fine_label → the name and its settings."""
    place, _, query = text.partition("?")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    for key in settings:
        if key not in SETTINGS:
            raise UserError(f"hf:{text}: unknown setting {key!r}{suggest(key, SETTINGS)}")
    return place, settings


def _loaded(place: str, config: str | None) -> Mapping[str, Any]:
    """The splits by name."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"hf:{place} needs {error.name}: pip install 'antishortcut[hf]'") from None
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    path = expanded(place)
    try:
        if (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file():
            loaded = datasets.load_from_disk(str(path))
        elif path.is_file():
            kind = path.suffix.lower().lstrip(".")
            if kind not in ("parquet", "arrow"):
                raise UserError(f"hf:{place}: a file is .parquet or .arrow; or name a folder")
            loaded = datasets.load_dataset(kind, data_files=str(path))
        elif path.is_dir():
            loaded = datasets.load_dataset(str(path), config)
        elif re.fullmatch(r"[\w.-]+(/[\w.-]+)?", place) and not place.startswith("."):
            loaded = datasets.load_dataset(place, config)
        else:
            raise UserError(f"no folder {path}{near_folder(path)}")
    except UserError:
        raise
    except Exception as error:  # no network, no such name, a damaged file: each has errors of its own
        where = f"cannot read {path}" if path.exists() else f"{place} is no folder here, and not to be had from the hub"
        raise UserError(f"hf:{place}: {where} ({first_line(error)})") from None
    return loaded if isinstance(loaded, dict) else {"train": loaded}


def _labelled(loaded: Mapping[str, Any], settings: Mapping[str, str], text: str) -> dict[str, tuple[Any, str, str]]:
    """train, val and test: rows, the column of images and that of labels. A test split without labels is left out."""
    splits: dict[str, tuple[Any, str, str]] = {}
    for name, rows in loaded.items():
        split = "train" if len(loaded) == 1 else split_of([name])
        if split is None or split in splits or not len(rows):
            continue
        columns = rows, *_columns(rows.features, settings, text)
        labels = rows[columns[2]][:]
        if split != "train" and all(label in (-1, None) for label in labels):
            continue
        if None in labels:
            raise UserError(f"hf:{text}: an image of {name} has no label")
        splits[split] = columns
    if "train" not in splits:
        raise UserError(f"hf:{text} has no rows to train on; its splits are {', '.join(loaded)}")
    return splits


def _columns(features: Mapping[str, Any], settings: Mapping[str, str], text: str) -> tuple[str, str]:
    """The columns of images and labels: the named ones, or the only ones of their type."""
    import datasets

    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    labels = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    labels = labels or [name for name in USUAL if name in features]
    chosen = []
    for what, usual in (("image", images), ("label", labels)):
        column = settings.get(what) or (usual[0] if len(usual) == 1 else None)
        if column is None or column not in features:
            say = f"no column {column!r}" if column else f"{'several columns' if usual else 'no column'} of {what}s"
            first = (usual or list(features))[0]
            has = ", ".join(usual or features)
            raise UserError(f"hf:{text}: {say} ({has}); name one, like hf:{text.partition('?')[0]}?{what}={first}")
        chosen.append(column)
    return chosen[0], chosen[1]


def _files(rows: Any, column: str, split: str, text: str) -> Iterator[ImageRef]:
    """Every row's image: in the table, or a file that it names."""
    import datasets
    import pyarrow.compute

    try:
        rows = rows.select_columns([column]).cast_column(column, datasets.Image(decode=False))
        stored = rows.with_format("arrow")[:][column]
    except Exception as error:  # a column of anything but images
        raise UserError(f"hf:{text}: the column {column} has no images ({first_line(error)})") from None
    sizes = pyarrow.compute.binary_length(pyarrow.compute.struct_field(stored, "bytes")).to_pylist()
    paths = pyarrow.compute.struct_field(stored, "path").to_pylist()
    time = max((os.stat(file["filename"]).st_mtime_ns for file in rows.cache_files), default=0)
    table = ArrowTable(rows, column, split, time)
    for at, (size, path) in enumerate(zip(sizes, paths, strict=True)):
        if size is not None:
            yield PackedImage(table, str(at), at, size)
        elif path is not None and os.path.isabs(path):
            yield Path(path)
        else:
            raise UserError(f"hf:{text}: row {at:,} of {split} has no image")
