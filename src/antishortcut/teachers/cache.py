"""Teacher outputs on disk: the next student of the same teacher reads them instead of computing them again.

runs/teachers/<hash>/cache/<key>/   one output of one state: key.json, and a file of rows per view, view-00000.rows …

An *output* is logits and embedding together, which every method reads, or one of the feature maps that a method taps.
A *view* is the training set under the augmentation of one epoch. A row is one image of it: a checksum, then the output
in float16. The checksum covers key, view and place too, and it alone marks a row as there: a row that is empty,
half-written, flipped or in the wrong place does not match it. So processes may be killed, or write at once.
"""
# N images, B batch, C classes, D embedding, W values of a row: C + D, or C · H · W of a map

import hashlib
import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antishortcut.config.recipe import Run
from antishortcut.errors import UserError
from antishortcut.fileio import atomic_write, refuse_links
from antishortcut.run_dir import RunDir, read_json, write_json
from antishortcut.teachers.trajectory import Teachers
from antishortcut.types import Batch, Features, Method, ReadsStages, Shape

FORMAT = 1  # raise it when rows change their meaning, or networks their arithmetic

Index = NDArray[np.int64]
Values = NDArray[np.float16]


class NoRoom(UserError):
    """The disk has too little free space."""


class Output(NamedTuple):
    """What one cache folder is of."""

    tap: str = ""  # of a method; "" is logits and embedding
    stage: int = 0  # which map of that tap

    def __str__(self) -> str:
        return f"{self.tap} {self.stage}" if self.tap else "logits and embedding"


def outputs_of(role: str, shape: Shape, method: Method) -> list[Output]:
    """What a method reads of a teacher of these sizes."""
    read, stages = [Output()], range(len(shape.stages))
    some = {stages[stage] for stage in method.stages_read} if isinstance(method, ReadsStages) else {*stages}
    if isinstance(method, ReadsStages) and role != "final":
        some = set()
    for tap in method.taps:
        if tap != "last":
            read += [Output(tap, stage) for stage in sorted(some)]
        elif shape.side != (1, 1):  # of a single pixel it is the embedding
            read.append(Output(tap))
    return read


def size_of(output: Output, shape: Shape) -> tuple[int, int, int]:
    """(H, W, C) of a map, as it lies in memory."""
    channels, height, width = (shape.embedding, *shape.side) if output.tap == "last" else shape.stages[output.stage]
    return height, width, channels


def width_of(output: Output, shape: Shape, classes: int) -> int:
    """W"""
    return math.prod(size_of(output, shape)) if output.tap else classes + shape.embedding


class CachedOutputs:
    """One state's outputs for N training images, view by view. A disk that fails ends the caching, not the run."""

    def __init__(self, parent: Path, key: dict[str, Any], images: int, width: int) -> None:
        self.key = key | {"images": images, "width": width}
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]
        self.path, self.images, self._salt = parent / digest, images, int(digest[:8], 16)
        self.error = ""  # why the disk is no longer used
        self.reserve = 0  # free bytes to leave on the disk
        self._row = np.dtype([("check", "<u4"), ("values", "<f2", (width,))])
        self._open_view, self._rows = -1, np.empty(0, self._row)

    def begin(self) -> None:
        """Write key.json. Rows beside another key, or a damaged one, are removed."""
        refuse_links(self.path.parent.parent, "cache", f"cache/{self.path.name}")
        try:
            with RunDir(self.path).locked(wait=True):
                saved = None
                with suppress(UserError):
                    saved = read_json(self.path / "key.json")
                if saved != self.key:
                    for path in self.path.glob("view-*.rows"):
                        path.unlink()
                    write_json(self.path / "key.json", self.key)
        except OSError as error:
            self.error = str(error)

    def missing(self, views: Iterable[int]) -> int:
        """Bytes that these views still need on disk."""
        return sum(self._size for view in views if not self._is_whole(self._file(view)))

    def read(self, view: int, index: Index) -> Values | None:
        """The values (B, W) of these images; None unless all are there."""
        if not self._open(view):
            return None
        rows = self._rows[index]  # (B,)
        values = np.ascontiguousarray(rows["values"])  # (B, W)
        valid = (rows["check"] == self._checksums(view, index, values)) & (rows["check"] != 0)  # (B,)
        return values if valid.all() else None

    def write(self, view: int, index: Index, values: Values) -> None:
        if self._open(view):
            rows = np.empty(len(index), self._row)
            rows["values"], rows["check"] = values, self._checksums(view, index, values)
            self._rows[index] = rows

    def _checksums(self, view: int, index: Index, values: Values) -> NDArray[np.uint32]:
        """CRC-32 of every row, started from its place, so that no row fits elsewhere. (B,)"""
        starts = ((self._salt + view * self.images + index) % 2**32).tolist()
        return np.array([zlib.crc32(row, start) for row, start in zip(values, starts, strict=True)], dtype=np.uint32)

    def _open(self, view: int) -> bool:
        """Map the view's file. Its space is allocated at once: a disk that fills up under a mapped file is a crash."""
        if view != self._open_view and not self.error:
            file = self._file(view)
            try:
                if not (self.path / "key.json").exists():  # never created anew where a disk was mounted before
                    raise OSError(f"{self.path} is not there any more")
                with RunDir(self.path).locked(wait=True):
                    if not self._is_whole(file):  # a new file: another process may have the old one mapped
                        if shutil.disk_usage(self.path).free - self._size < self.reserve:
                            raise OSError("the rest of the disk is left free")
                        with atomic_write(file) as new:
                            if hasattr(os, "posix_fallocate"):
                                os.posix_fallocate(new.fileno(), 0, self._size)
                            new.truncate(self._size)
                    self._rows = np.memmap(file, self._row, "r+", shape=(self.images,))
                self._open_view = view
            except OSError as error:
                self.error = str(error)
        return not self.error

    @property
    def _size(self) -> int:
        return self.images * self._row.itemsize

    def _file(self, view: int) -> Path:
        return self.path / f"view-{view:05d}.rows"

    def _is_whole(self, file: Path) -> bool:
        return file.exists() and file.stat().st_size == self._size


class TeacherCache:
    """The outputs of a run's teachers: read if they are on disk, else computed and written.

    They are rounded to float16 in both cases, so that a run does not depend on what was cached before it.
    """

    def __init__(self, teachers: Teachers, method: Method, key: dict[str, Any], images: int) -> None:
        self.teachers, self.taps = teachers, method.taps
        self.stores: dict[str, dict[Output, CachedOutputs]] = {}  # by role
        for role in method.roles:
            (run_dir, entry), shape = teachers.state(role), teachers.shapes[role]
            self.stores[role] = {}
            for output in outputs_of(role, shape, method):
                own = key | {"state": entry["sha256"]} | ({"map": str(output)} if output.tap else {})
                width = width_of(output, shape, teachers.classes)
                self.stores[role][output] = CachedOutputs(run_dir.path / "cache", own, images, width)
        self._messages: list[str] = []
        self._printed: set[str] = set()

    def reserve(self, views: Collection[int], share: float = 1.0) -> None:
        """Check that these views fit into this share of the disk, of what is free or cached there, else NoRoom."""
        files = [(output, store) for stores in self.stores.values() for output, store in stores.items()]
        sizes = {store.path: store.missing(views) for _, store in files}  # two roles may be one state
        needs = sum(sizes.values())
        for output, store in files:
            parent = store.path.parent
            free = shutil.disk_usage(parent.parent).free
            cached = 0 if share == 1 else _cached(parent.parent.parent)
            if needs + cached > share * (free + cached):
                raise NoRoom(
                    f"--cache-teachers needs {_bytes(needs)}, {parent} has {_bytes(free)} free; "
                    "use fewer augmentations with --set data.augmentation_cycle=N, or leave it out"
                )
            store.reserve = int((1 - share) * free) // 2  # several runs may count on the same free disk
            if size := sizes.pop(store.path, 0):
                what = f" of {output}" if output.tap else ""
                self._messages.append(f"teacher cache: {_bytes(size)}{what} at {store.path}")

    def begin(self, say: Callable[[str], None]) -> None:
        """Before the first step: print what the cache costs, and create its folders."""
        self._say = say
        for message in self._messages:
            say(message)
        for stores in self.stores.values():
            for store in stores.values():
                store.begin()

    def features(self, batch: Batch, view: int) -> dict[str, Features]:
        """As Teachers.features, for a batch of this view; maps that the method does not read are empty, (B, 0).

        A batch that lacks a row is computed whole: the last bits of a row depend on the rows beside it.
        """
        index = (batch.index.cpu() if batch.index_cpu is None else batch.index_cpu).numpy()  # (B,)
        rows = {role: self._read(role, view, index) for role in self.stores}  # {output: (B, W)} each, or None
        computed = self.teachers.features([role for role in rows if rows[role] is None], batch.image, self.taps)
        for role, outputs in computed.items():
            half = {output: _rows(outputs, output).half().cpu() for output in self.stores[role]}  # (B, W) each
            if all(values.isfinite().all() for values in half.values()):
                rows[role] = {output: values.numpy() for output, values in half.items()}
                for output, values in half.items():
                    self.stores[role][output].write(view, index, values.numpy())
            else:
                self._print_once(f"outputs of {role!r} do not fit into float16: not cached, computed each time")
            for error in filter(None, (store.error for store in self.stores[role].values())):
                self._print_once(f"outputs of {role!r} are computed each time: {error}")
        return {
            role: computed[role] if values is None else self._features(role, values, batch.image.device)
            for role, values in rows.items()
        }

    def _read(self, role: str, view: int, index: Index) -> dict[Output, Values] | None:
        outputs: dict[Output, Values] = {}
        for output, store in self.stores[role].items():
            values = store.read(view, index)
            if values is None:
                return None
            outputs[output] = values
        return outputs

    def _features(self, role: str, rows: dict[Output, Values], device: torch.device) -> Features:
        return features_of(rows, self.teachers.shapes[role], self.teachers.classes, device)

    def _print_once(self, message: str) -> None:
        if message not in self._printed:
            self._printed.add(message)
            self._say(f"teacher cache: {message}")


def features_of(rows: dict[Output, Values], shape: Shape, classes: int, device: torch.device) -> Features:
    """Cached rows (B, W) of each output as the features of a teacher of these sizes, in float32."""
    tensors = {}
    for output, values in rows.items():
        half = torch.from_numpy(values)  # (B, W)
        sent = half.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else half.to(device)
        tensors[output] = sent.float()
    both = tensors.pop(Output())
    maps = {  # (B, C, H, W) in channels-last memory, as networks compute them
        output: values.view(-1, *size_of(output, shape)).movedim(-1, 1) for output, values in tensors.items()
    }
    unread = both.new_empty(len(both), 0)

    def tapped(tap: str) -> tuple[Tensor, ...]:
        count = len(shape.stages) if any(output.tap == tap for output in maps) else 0
        return tuple(maps.get(Output(tap, stage), unread) for stage in range(count))

    logits, embedding = both[:, :classes].contiguous(), both[:, classes:].contiguous()
    return Features(logits, embedding, tapped("stages"), last=maps.get(Output("last")), preact=tapped("preact"))


def _rows(outputs: Features, output: Output) -> Tensor:
    """(B, W)"""
    if not output.tap:
        return torch.cat([outputs.logits, outputs.embedding], dim=1)
    maps = outputs.last if output.tap == "last" else getattr(outputs, output.tap)[output.stage]  # (B, C, H, W)
    return cast(Tensor, maps).movedim(1, -1).flatten(1)


def _cached(teachers: Path) -> int:
    """Bytes in the caches of all teachers in this folder."""
    return sum(file.stat().st_size for file in teachers.glob("*/cache/*/view-*.rows"))


def cache_key(run: Run, device: torch.device, world: int, form: str, micro_batches: int) -> dict[str, Any]:
    """What rows depend on besides the state: images, augmentation, seed, and how they are computed.

    A network's last bits depend on batch, device and threads; only runs that compute alike share rows.
    """
    return {
        "format": FORMAT,
        "seed": run.seed,
        "fingerprint": run.fingerprint,
        "data": run.data.model_dump(mode="json", exclude={"augmentation_cycle"}),  # the view is in the file's name
        "batch": [run.optim.batch, micro_batches, world],
        "computed": [device.type, torch.get_num_threads(), torch.__version__, form],
    }


def _bytes(count: int) -> str:
    unit, name = next((pair for pair in ((1e9, "GB"), (1e6, "MB")) if count >= pair[0]), (1e3, "kB"))
    return f"{count / unit:,.1f} {name}"
