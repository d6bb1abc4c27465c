"""What the teachers of a training say: asked in the form in which they answer fastest, or read from a disk.

Which of these is settled when a run begins and written into run.json; a run that goes on does not choose again.
"""
# B batch

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lightning_fabric import Fabric

from antishortcut.config.recipe import Execution, Run
from antishortcut.data import Loader
from antishortcut.data.splits import limited
from antishortcut.errors import UserError
from antishortcut.teachers.cache import NoRoom, TeacherCache, cache_key
from antishortcut.teachers.frozen import InferenceForm, compile_all, compile_if_faster, fastest_precision, freeze_all
from antishortcut.teachers.trajectory import Teachers
from antishortcut.types import Batch, DataSplits, Features, Method, Task

CHECKED, FEWER = 512, 8  # images on which a reduced precision must answer as float32 does; of maps, with many rows each
ROOMY = 0.25  # of the free disk, that a cache may take unasked


class TeacherOutputs:
    """The teachers' side of a training."""

    def __init__(
        self, run: Run, teachers: Teachers, method: Method, task: Task, fabric: Fabric, execution: Execution
    ) -> None:
        self.run, self.teachers, self.fabric, self.execution = run, teachers, fabric, execution
        self.roles, self.stages, self.dense = method.roles, "stages" in method.taps, task.dense
        self.form = InferenceForm("float32")
        self.cache: TeacherCache | None = None
        self._news: list[str] = []
        teachers.to(fabric.device, self.roles)

    def prepare(self, sets: DataSplits, loader: Loader, steps: int, begun: bool, parts: int = 1) -> None:
        """Choose, for a training of so many steps with batches of this loader, each in so many parts."""
        if not self.roles:
            return
        device, compile = self.fabric.device, self.execution.teacher_compile
        requested = self.execution.teacher_precision
        exact = (fastest_precision(device) if requested == "auto" else requested) == "float32"
        images = [] if begun or exact else [batch.image.to(device) for batch in self._some(sets).epoch(0)]
        networks = {role: self.teachers.network(role) for role in self.roles}
        built = freeze_all(networks, requested, images, self._news.append, sets.image_size)
        self.form = replace(next(iter(built.values())).form, compiled=compile == "on")
        if self.run.optim.mixes and self.execution.cache_teachers is True:
            raise UserError(
                "--cache-teachers: teachers are asked about mixed images, new ones in every step; "
                "leave it out, or set optim.mixup and optim.cutmix to 0"
            )
        saved = not self.dense and not self.stages and not self.run.optim.mixes  # vectors are cached, maps are not
        if self.execution.cache_teachers and saved:
            self.cache = self._cache(loader, steps, len(sets.train), parts)
        if compile == "on" or (compile == "auto" and not (begun or self.cache or self.fabric.world_size > 1)):
            whole = next(iter(loader.epoch(0))).image
            image = whole[: -(-len(whole) // parts)].to(device)  # as most steps will ask
            if compile == "on":
                built = compile_all(built, image, {} if begun else networks)
            else:
                built = compile_if_faster(built, image, networks, steps * parts, self._news.append)
        self.form = self.teachers.quicken(built)

    def _some(self, sets: DataSplits) -> Loader:
        """Training images on which answers are compared."""
        return Loader(
            limited(sets.train, FEWER if self.dense else CHECKED, 0),
            batch=self.run.optim.batch,
            seed=0,
            image_size=sets.image_size,
            augment=self.run.data.augment if self.dense else "none",
            shuffle=False,
            workers=self.execution.workers,
        )

    def _cache(self, loader: Loader, steps: int, images: int, parts: int) -> TeacherCache | None:
        """Refused here, before anything is written, when there is no room for it."""
        built = cache_key(self.run, self.fabric.device, self.fabric.world_size, str(self.form), parts)
        cache = TeacherCache(self.teachers, self.roles, built, images)
        unasked = self.execution.cache_teachers == "auto"
        try:
            views = {loader.view(epoch) for epoch in range(-(-steps // len(loader)))}
            cache.reserve(views, ROOMY if unasked else 1.0)
        except NoRoom:
            if not unasked:
                raise
            self._news.append("teacher cache: none, since it would take much of the disk; --cache-teachers makes it")
            return None
        return cache

    def how(self) -> dict[str, Any]:
        """What was settled, as execution settings."""
        return {
            "teacher_precision": self.form.precision,
            "teacher_compile": "on" if self.form.compiled else "off",
            "cache_teachers": self.cache is not None or self.execution.cache_teachers is True,
        }

    def begin(self, say: Callable[[str], None]) -> None:
        """Before the first step."""
        for line in self._news:
            say(line)
        if self.cache is not None:
            self.cache.begin(say)
        elif self.execution.cache_teachers is True and self.roles:
            say(f"{self.run.method} reads the teacher's maps, which are not cached: it is asked each time")

    def features(self, batch: Batch, view: int) -> Mapping[str, Features]:
        """What every wanted state says of a batch of this view."""
        if self.cache is None:
            return self.teachers.features(self.roles, batch.image, self.stages)
        return self.cache.features(batch, view)
