"""A few real training steps on random images of the right size, as the trainer would do them."""
# B images of a step, S their side

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import nn

from antishortcut.bench import Bench, asking
from antishortcut.cost.estimate import Measured
from antishortcut.cost.groups import Group, Size
from antishortcut.cost.kept import Machine
from antishortcut.data import Loader
from antishortcut.data.sources import WITH_PATH, find
from antishortcut.errors import UserError
from antishortcut.fabric import make_fabric, resolved
from antishortcut.frozen import Form, Frozen, fastest
from antishortcut.machine import cores, processor
from antishortcut.methods import make_method, options_of, roles_of
from antishortcut.models import Network, probe
from antishortcut.run import DataSettings, Execution, ModelSettings, TaskSettings
from antishortcut.tasks import task_of
from antishortcut.teachers import network_of
from antishortcut.types import Batch, Features, ImageSet, Method, Prepares, Sets, Sizes, Task, is_dense

STEPS, SECONDS = 20, 2.0  # whichever is reached first; one step at least
SLOW = 5.0  # seconds of a step on a CPU beside which warming up is nothing
POOL = 4  # batches that are drawn from
PIXELS, DENSE_PIXELS = 2**20, 2**19  # of a batch on a CPU; larger ones are measured in part, the rest in proportion


class Stopwatch:
    """A `Clock` of this machine. Threads not given are all cores, as when `asd suite run` does one run at a time."""

    def __init__(self, execution: Execution) -> None:
        threads = execution.threads or cores()
        self.fabric = make_fabric(execution.model_copy(update={"threads": threads}))
        self.machine = Machine(
            device=_name(self.fabric.device),
            threads=torch.get_num_threads(),
            precision=resolved(execution).precision,
            torch=str(torch.__version__),
        )

    def step(self, group: Group) -> Measured:
        """The median, with the batch's augmentation and its way to the device."""
        torch.manual_seed(0)
        whole = images = -(-group.batch // group.accumulate)
        cpu = self.fabric.device.type == "cpu"
        if cpu:
            most = DENSE_PIXELS if group.size.dense else PIXELS
            images = min(images, max(most // group.size.side**2, 2))
        drawn = _drawn(group.size, POOL * images)
        task = _task(group, drawn, images / whole)
        batches = self._batches(group, drawn, images, task)
        bench = self._bench(group, next(batches), task)
        start, worked = time.perf_counter(), time.process_time()
        times = [_timed(bench, batches)]
        if times[0] < SLOW or not cpu:  # the first one was to warm up
            times = [_timed(bench, batches)]
            while len(times) < STEPS and sum(times) < SECONDS:
                times.append(_timed(bench, batches))
        share = (time.process_time() - worked) / (time.perf_counter() - start) if cpu else 1.0
        return Measured(statistics.median(times) * group.batch / images, len(times), min(share, 1.0))

    def count(self, data: DataSettings) -> Size:
        kind = data.name.partition(":")[0]
        if kind not in WITH_PATH:
            raise UserError(f"steps on {data.name} are not measured yet; folder:PATH and groups:PATH are counted")
        found, _ = find(data.name, None, seed=data.seed, options=data.options)
        dense = is_dense(found.train)
        return Size(images=len(found.train), classes=len(found.classes), side=found.image_size, dense=dense)

    def _bench(self, group: Group, batch: Batch, task: Task) -> Bench:
        size, device = group.size, self.fabric.device
        form = Form(fastest(device))
        settings = options_of(group.method, group.options)
        teachers = {role: _frozen(_taught_by(group, role), size) for role in roles_of(group.method, settings)}
        student = network_of(group.network, size.classes, size.side)
        shapes = {role: probe(network, size.side) for role, network in teachers.items()}
        labels = _labels(size) if task.vectors else None
        sizes = Sizes(size.classes, task.samples(size.images), probe(student, size.side), shapes, labels)
        method = make_method(group.method, sizes, settings).to(device)
        for network in (*teachers.values(), student):
            network.to(device)
        if isinstance(method, Prepares):
            method.prepare(_seen(teachers, method, batch, task) for _ in range(1))  # one that need not look does not
        asked = {role: asking(Frozen(network, form, size.side)) for role, network in teachers.items()}
        bench = Bench(asked, student, method, autocast=self.fabric.autocast, task=task)
        if group.optimizer == "adamw":
            bench.optimizer = torch.optim.AdamW(bench.step.parameters(), lr=0.001)
        return bench

    def _batches(self, group: Group, drawn: ImageSet, images: int, task: Task) -> Iterator[Batch]:
        """Batches of random images without end; their places are drawn from the whole training set."""
        size, labels = group.size, _labels(group.size)
        loader = Loader(drawn, batch=images, seed=0, image_size=size.side, augment=group.augment)
        for epoch in itertools.count():
            for batch in loader.epoch(epoch):
                index = torch.randint(size.images, (len(batch.index),))  # (B,)
                parts = (batch.image, labels[index] if task.vectors else batch.label, index)  # labels (B,) or (B, S, S)
                yield Batch(*(tensor.to(self.fabric.device) for tensor in parts))


def _timed(bench: Bench, batches: Iterator[Batch]) -> float:
    start = time.perf_counter()
    bench.turn(next(batches))
    return time.perf_counter() - start


def _drawn(size: Size, count: int) -> ImageSet:
    """Random images, with labels of the right shape."""
    image = torch.randint(256, (count, 3, size.side, size.side), dtype=torch.uint8)
    if size.dense:
        return ImageSet(image, torch.randint(size.classes, (count, size.side, size.side), dtype=torch.uint8))
    return ImageSet(image, torch.zeros(count, dtype=torch.int64))


def _task(group: Group, drawn: ImageSet, share: float) -> Task:
    """The task its data pose; of a batch measured in part, methods learn from that part of the locations."""
    size, task = group.size, group.task or TaskSettings()
    sets = Sets("drawn", tuple(map(str, range(size.classes))), size.side, drawn, None, {}, "")
    return task_of(sets, rows=max(round(share * task.rows), 1), aux=task.aux)


def _taught_by(group: Group, role: str) -> ModelSettings:
    network = group.other if role == "early" and group.other is not None else group.teacher
    assert network is not None
    return network


def _frozen(model: ModelSettings, size: Size) -> Network:
    return network_of(model, size.classes, size.side).requires_grad_(False).eval()


def _labels(size: Size) -> torch.Tensor:
    return torch.arange(size.images) % size.classes


@torch.no_grad()
def _seen(teachers: dict[str, Network], method: nn.Module, batch: Batch, task: Task) -> Mapping[str, Features]:
    """What the teachers say, as rows."""
    seen: dict[str, Features] = {role: teachers[role](batch.image) for role in cast(Method, method).roles}
    return task.rows(next(iter(seen.values())), seen, batch)[1] if seen else seen


def _name(device: torch.device) -> str:
    """What its maker calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    return processor()
