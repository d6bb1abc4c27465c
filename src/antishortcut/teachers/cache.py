"""What teachers say, kept on disk: the next student of the same teacher reads instead of asking.

runs/teachers/<hash>/cache/<key>/   one state's outputs: key.json, and a file of rows for every view, view-00000.rows …

A *view* is the training set under the augmentation of one epoch. A row is one image of it: a checksum, then logits and
embedding in float16. The checksum covers key, view and place too, and it is the only mark that a row is there: one that
is empty, half written, flipped or another's does not fit it. So processes may be killed, or write the same at once.
"""
# N images, B batch, C classes, D embedding, W = C + D values of a row

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from antishortcut.config.recipe import Run
from antishortcut.errors import UserError
from antishortcut.fileio import atomic_write
from antishortcut.run_dir import RunDir, read_json, write_json
from antishortcut.teachers.trajectory import Teachers
from antishortcut.types import Batch, Features

FORMAT = 1  # raise it when rows come to mean something else, or networks to compute something else

Index = NDArray[np.int64]
Values = NDArray[np.float16]


class NoRoom(UserError):
    """The disk has less than asked for."""


class CachedOutputs:
    """What one state says of N training images, view by view. A disk that fails ends the keeping, not the run."""

    def __init__(self, above: Path, made: dict[str, Any], images: int, width: int) -> None:
        self.made = made | {"images": images, "width": width}
        key = hashlib.sha256(json.dumps(self.made, sort_keys=True).encode()).hexdigest()[:16]
        self.path, self.images, self._salt = above / key, images, int(key[:8], 16)
        self.fault = ""  # why the disk is no longer asked
        self.floor = 0  # bytes of the disk that are left to others
        self._row = np.dtype([("check", "<u4"), ("values", "<f2", (width,))])
        self._number, self._view = -1, np.empty(0, self._row)

    def begin(self) -> None:
        """Say in key.json what the rows are of. Rows beside another key, or an unreadable one, are let go."""
        try:
            with RunDir(self.path).locked(wait=True):
                if not self._known():
                    for path in self.path.glob("view-*.rows"):
                        path.unlink()
                    write_json(self.path / "key.json", self.made)
        except OSError as error:
            self.fault = str(error)

    def missing(self, views: Iterable[int]) -> int:
        """Bytes that these views will yet take on the disk."""
        return sum(self._size for view in views if not self._whole(self._file(view)))

    def read(self, view: int, index: Index) -> Values | None:
        """The values (B, W) of these images; None unless all are there."""
        if not self._open(view):
            return None
        rows = self._view[index]  # (B,)
        values = np.ascontiguousarray(rows["values"])  # (B, W)
        fits = (rows["check"] == self._checks(view, index, values)) & (rows["check"] != 0)  # (B,)
        return values if fits.all() else None

    def write(self, view: int, index: Index, values: Values) -> None:
        if self._open(view):
            rows = np.empty(len(index), self._row)
            rows["values"], rows["check"] = values, self._checks(view, index, values)
            self._view[index] = rows

    def _checks(self, view: int, index: Index, values: Values) -> NDArray[np.uint32]:
        """CRC-32 of every row, started from its place, so that no row fits elsewhere. (B,)"""
        places = ((self._salt + view * self.images + index) % 2**32).tolist()
        return np.array([zlib.crc32(row, at) for row, at in zip(values, places, strict=True)], dtype=np.uint32)

    def _open(self, view: int) -> bool:
        """Map the view's file. Its room is taken at once, for a disk that fills up under a mapped file is a crash."""
        if view != self._number and not self.fault:
            file = self._file(view)
            try:
                if not (self.path / "key.json").exists():  # never made anew where a disk was mounted before
                    raise OSError(f"{self.path} is not there any more")
                with RunDir(self.path).locked(wait=True):
                    if not self._whole(file):  # a new file, not the old one at length: others may have that mapped
                        self._leave()
                        with atomic_write(file) as new:
                            if hasattr(os, "posix_fallocate"):
                                os.posix_fallocate(new.fileno(), 0, self._size)
                            new.truncate(self._size)
                    self._view = np.memmap(file, self._row, "r+", shape=(self.images,))
                self._number = view
            except OSError as error:
                self.fault = str(error)
        return not self.fault

    def _leave(self) -> None:
        if shutil.disk_usage(self.path).free - self._size < self.floor:
            raise OSError("what is left of the disk is left to others")

    def _known(self) -> bool:
        try:
            return bool(read_json(self.path / "key.json") == self.made)
        except UserError:
            return False

    @property
    def _size(self) -> int:
        return self.images * self._row.itemsize

    def _file(self, view: int) -> Path:
        return self.path / f"view-{view:05d}.rows"

    def _whole(self, file: Path) -> bool:
        return file.exists() and file.stat().st_size == self._size


class TeacherCache:
    """The outputs of a run's teachers: read where they are known, else asked for and written.

    They are rounded to float16 in either case, so that a run does not depend on what was there before it.
    """

    def __init__(self, teachers: Teachers, roles: Iterable[str], made: dict[str, Any], images: int) -> None:
        self.teachers = teachers
        self.rows: dict[str, CachedOutputs] = {}  # by role
        for role in roles:
            folder, entry = teachers.state(role)
            width = teachers.classes + teachers.shapes[role].embedding
            self.rows[role] = CachedOutputs(folder.path / "cache", made | {"state": entry["sha256"]}, images, width)
        self._news: list[str] = []
        self._said: set[str] = set()

    def reserve(self, views: Collection[int], share: float = 1.0) -> None:
        """Note what these views will cost; NoRoom when that is more than this share of what the disk has left."""
        sizes = {rows.path: rows.missing(views) for rows in self.rows.values()}
        for path, size in sizes.items():
            free = shutil.disk_usage(path.parent.parent).free
            if sum(sizes.values()) > share * free:
                raise NoRoom(
                    f"--cache-teachers needs {_bytes(sum(sizes.values()))}, {path.parent} has {_bytes(free)} left; "
                    "have fewer augmentations with --set data.augmentation_cycle=N, or leave it out"
                )
            for rows in self.rows.values():  # several runs may have been given this share of the same disk
                rows.floor = int((1 - share) * free) // 2
            if size:
                self._news.append(f"teacher cache: {_bytes(size)} at {path}")

    def begin(self, say: Callable[[str], None]) -> None:
        """Before the first step: say what it costs, and make the folders ready."""
        self._say = say
        for line in self._news:
            say(line)
        for rows in self.rows.values():
            rows.begin()

    def features(self, batch: Batch, view: int) -> dict[str, Features]:
        """As Teachers.features, for a batch of this view.

        A batch that lacks a row is computed whole, since the last bits of a row depend on the rows beside it.
        """
        index = (batch.index.cpu() if batch.index_cpu is None else batch.index_cpu).numpy()  # (B,)
        known = {role: rows.read(view, index) for role, rows in self.rows.items()}  # (B, W) each, or None
        requested = self.teachers.features([role for role in known if known[role] is None], batch.image)
        for role, outputs in requested.items():
            half = torch.cat([outputs.logits, outputs.embedding], dim=1).half().cpu()  # (B, W)
            if half.isfinite().all():
                known[role] = half.numpy()
                self.rows[role].write(view, index, half.numpy())
            else:
                self._tell(f"what {role!r} says does not fit into float16: not kept, asked for each time")
            if fault := self.rows[role].fault:
                self._tell(f"what {role!r} says is asked for each time: {fault}")
        return {role: requested[role] if rows is None else self._split(rows, batch) for role, rows in known.items()}

    def _split(self, values: Values, batch: Batch) -> Features:
        there, device = torch.from_numpy(values), batch.image.device  # (B, W)
        both = (there.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else there.to(device)).float()
        classes = self.teachers.classes
        return Features(both[:, :classes].contiguous(), both[:, classes:].contiguous())

    def _tell(self, text: str) -> None:
        """Once."""
        if text not in self._said:
            self._said.add(text)
            self._say(f"teacher cache: {text}")


def cache_key(run: Run, device: torch.device, world: int, form: str, parts: int) -> dict[str, Any]:
    """What rows depend on besides the state: images, augmentation, seed, and how they are computed.

    A network's last bits depend on batch, device and threads; only runs that compute alike share rows.
    """
    return {
        "format": FORMAT,
        "seed": run.seed,
        "fingerprint": run.fingerprint,
        "data": run.data.model_dump(mode="json", exclude={"augmentation_cycle"}),  # the view is in the file's name
        "batch": [run.optim.batch, parts, world],
        "computed": [device.type, torch.get_num_threads(), torch.__version__, form],
    }


def _bytes(count: int) -> str:
    unit, name = next((pair for pair in ((1e9, "GB"), (1e6, "MB")) if count >= pair[0]), (1e3, "kB"))
    return f"{count / unit:,.1f} {name}"
