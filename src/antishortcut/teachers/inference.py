"""The teachers' outputs for a batch: computed in the fastest form that agrees with float32, or read from the cache."""
# B batch, C classes, D embedding

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from antishortcut.config.recipe import Execution, Run
from antishortcut.data import Loader
from antishortcut.data.splits import limited
from antishortcut.errors import UserError
from antishortcut.fileio import refuse_links
from antishortcut.hardware import processor, versions
from antishortcut.models import Network
from antishortcut.models.external import code_of
from antishortcut.run_dir import RunDir, read_json, write_json
from antishortcut.teachers.cache import NoRoom, TeacherCache, cache_key
from antishortcut.teachers.frozen import (
    Agreement,
    FrozenModel,
    InferenceForm,
    agreement,
    compile_all,
    compile_if_faster,
    freeze_all,
)
from antishortcut.teachers.trajectory import Teachers
from antishortcut.types import Batch, DataSplits, Features, Method, StrongView, Task

CHECK_IMAGES, CHECK_SCENES = 512, 8  # images on which reduced precision must agree with float32
CACHE_SHARE = 0.25  # of the free disk that a cache takes when it is not asked for by name


class TeacherOutputs:
    """What a training gets from its teachers. How it is computed is decided once, and kept by resumed runs."""

    def __init__(
        self, run: Run, teachers: Teachers, method: Method, task: Task, fabric: Fabric, execution: Execution
    ) -> None:
        self.run, self.teachers, self.fabric, self.execution = run, teachers, fabric, execution
        self.method, self.roles, self.taps, self.dense = method, method.roles, method.taps, task.dense
        self.strong_view = isinstance(method, StrongView)
        self.form = InferenceForm("float32")
        self.cache: TeacherCache | None = None
        self._messages: list[str] = []
        self._uncached = ""  # why there is no cache
        for role in self.roles:
            teachers.network(role).to(fabric.device)

    def __call__(self, batch: Batch, epoch: int = 0) -> Mapping[str, Features]:
        """{"final": Features, "early": Features, …}: each role's outputs for a batch of this epoch."""
        if self.cache is None:
            return self.compute(batch.image, self.taps)
        return self.cache.features(batch, self.view(epoch))

    def compute(self, image: Tensor, taps: Sequence[str] = ()) -> dict[str, Features]:
        return self.teachers.features(self.roles, image, taps)

    def first(self, image: Tensor) -> Features:
        """The outputs of the state that comes first among the method's: what its students are to agree with."""
        role = self.roles[0]
        return self.teachers.features([role], image)[role]

    def prepare(self, data: DataSplits, loader: Loader, steps: int, resumed: bool, micro_batches: int) -> None:
        """Choose precision, cache and compilation for a training of so many steps."""
        self.view = loader.view  # which augmentation an epoch has
        if not self.roles:
            return
        device, precision = self.fabric.device, self.execution.teacher_precision
        compiling = self.execution.teacher_compile
        if "preact" in self.taps:
            if compiling == "on":
                self._messages.append("teachers: not compiled, because the method reads maps inside them")
            compiling = "off"
        networks = {role: self.teachers.network(role) for role in self.roles}

        def judge(role: str, model: FrozenModel) -> Agreement:
            return Agreement() if resumed else self._agreement(role, model, data)

        frozen = freeze_all(networks, precision, judge, self._messages.append, data.image_size)
        self.form = replace(next(iter(frozen.values())).form, compiled=compiling == "on")
        self.cache = self._open_cache(loader, steps, len(data.train), micro_batches)
        if compiling == "on" or (compiling == "auto" and not (resumed or self.cache or self.fabric.world_size > 1)):
            whole = next(iter(loader.epoch(0))).image
            image = whole[: math.ceil(len(whole) / micro_batches)].to(device)  # the shape of most steps
            image = torch.cat([image, image]) if self.strong_view else image
            if compiling == "on":
                frozen = compile_all(frozen, image, {} if resumed else networks)
            else:
                frozen = self._compile_if_faster(frozen, image, networks, steps * micro_batches)
        self.form = next(iter(frozen.values())).form
        self.teachers.use(frozen)

    def _agreement(self, role: str, model: FrozenModel, data: DataSplits) -> Agreement:
        """How near a form of a state is to float32: from an earlier run, or measured now."""
        record = self._record(role, model.form)
        with suppress(KeyError, TypeError, ValueError):
            saved = record.read()["agreement"]
            return Agreement(**{name: float(saved[name]) for name in ("cosine", "kl", "same_class")})
        images = [batch.image.to(self.fabric.device) for batch in self._check_images(data).epoch(0)]
        result = agreement(self.teachers.network(role), model, images)
        if self.fabric.is_global_zero:
            record.add(agreement=asdict(result))
        return result

    def _compile_if_faster(
        self, frozen: dict[str, FrozenModel], image: Tensor, networks: dict[str, Network], batches: int
    ) -> dict[str, FrozenModel]:
        record = self._record(self.roles[0], self.form)
        known = {shape: faster for shape, faster in record.read().items() if isinstance(faster, bool)}
        before = dict(known)
        result = compile_if_faster(frozen, image, networks, batches, self._messages.append, known)
        if known != before:
            record.add(**known)
        return result

    def _record(self, role: str, form: InferenceForm) -> InferenceRecord:
        """What is known of a role's state in this form, here."""
        folder, entry = self.teachers.state(role)
        settings = {"precision": form.precision, "images": self.run.fingerprint, "side": self.teachers.image_size}
        code = code_of(folder.read()[0].model.name)
        return InferenceRecord(
            folder, {"state": entry["sha256"], "code": code} | settings | device_key(self.fabric.device)
        )

    def _check_images(self, data: DataSplits) -> Loader:
        """Training images on which reduced precision is compared with float32."""
        return Loader(
            limited(data.train, CHECK_SCENES if self.dense else CHECK_IMAGES, 0),
            batch=self.run.optim.batch,
            seed=0,
            image_size=data.image_size,
            augment=self.run.data.augment if self.dense else "none",
            shuffle=False,
            workers=self.execution.workers,
        )

    def _open_cache(self, loader: Loader, steps: int, images: int, micro_batches: int) -> TeacherCache | None:
        """The cache, if there is to be one; no room for it is an error before anything is written."""
        requested, mixes = self.execution.cache_teachers, self.run.optim.mixes
        if requested is True and mixes:
            raise UserError(
                "--cache-teachers: optim.mixup and optim.cutmix give new mixed images in every step; leave it out"
            )
        drawn = loader.balanced_groups is not None  # an image is in several batches, and its last bits depend on them
        if not requested or mixes or drawn or self.dense or self.strong_view:
            self._uncached = "outputs of segmentation are not cached"
            if drawn or self.strong_view:
                self._uncached = "images are drawn with replacement" if drawn else "strong views are new in every epoch"
            return None
        key = cache_key(self.run, self.fabric.device, self.fabric.world_size, str(self.form), micro_batches)
        cache = TeacherCache(self.teachers, self.method, key, images)
        try:
            views = {loader.view(epoch) for epoch in range(math.ceil(steps / len(loader)))}
            cache.reserve(views, CACHE_SHARE if requested == "auto" else 1.0)
        except NoRoom:
            if requested != "auto":
                raise
            self._messages.append("teacher cache: off, it would fill much of the disk; --cache-teachers turns it on")
            return None
        return cache

    def begin(self, say: Callable[[str], None]) -> None:
        """Before the first step: print what was decided."""
        for message in self._messages:
            say(message)
        if self.cache is not None:
            self.cache.begin(say)
        elif self.execution.cache_teachers is True and self.roles:
            say(f"teacher cache: off, because {self._uncached}; outputs are computed each time")

    def resolved(self) -> dict[str, Any]:
        """What was decided, as execution settings."""
        return {
            "teacher_precision": self.form.precision,
            "teacher_compile": "on" if self.form.compiled else "off",
            "cache_teachers": self.cache is not None or self.execution.cache_teachers is True,
        }


# --- Measurements of a teacher's forms, saved in its folder for the next run ---

# inference.json: a list of {"key", "result"}. The key has what the result depends on: state, images, device, versions.
# An entry with another key, or one that cannot be read, does not count. A resumed run has its form in run.json.

RECORD, MOST = "inference.json", 100  # its name and entries; the oldest go


class InferenceRecord:
    """Numbers and decisions by name, under one key."""

    def __init__(self, folder: RunDir, key: Mapping[str, Any]) -> None:
        self.folder, self.key = folder, dict(key)

    def read(self) -> dict[str, Any]:
        return next((entry["result"] for entry in self._entries() if entry["key"] == self.key), {})

    def add(self, **values: Any) -> None:
        """Save these too. A folder that cannot be written is no error: the next run measures again."""
        refuse_links(self.folder.path, RECORD)
        rest = [entry for entry in self._entries() if entry["key"] != self.key]
        entries = [*rest, {"key": self.key, "result": self.read() | values}]
        with suppress(OSError):
            write_json(self.folder.path / RECORD, entries[-MOST:], parents=False)

    def _entries(self) -> list[dict[str, Any]]:
        with suppress(UserError, TypeError):  # no file, a damaged one, or another's
            entries = read_json(self.folder.path / RECORD)
            return [e for e in entries if isinstance(e, dict) and type(e.get("key")) is type(e.get("result")) is dict]
        return []


def device_key(device: torch.device) -> dict[str, Any]:
    """The device and the versions that decide what a network computes there, and how fast."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    used = {package: version for package, version in versions().items() if package in ("antishortcut", "timm")}
    return {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__} | used  # with its CUDA
