"""What a training step costs: methods beside each other on one pair, interleaved, median of many rounds.

Random images: the networks' time does not depend on them. `plain-kd` is the outside measure: KD as anyone would write
it, float32 and the default memory layout for both networks; the others run as the trainer runs them. `asd-cached` is
ASD that reads its teachers' outputs from disk. `Stopwatch` times single steps for the estimates of `cost`.
"""
# B batch, S side of an image

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from antishortcut.config.recipe import DataSettings, Execution, ModelSettings, TaskSettings
from antishortcut.data import Loader
from antishortcut.data.datasets import WITH_PATH, find
from antishortcut.errors import UserError, suggest
from antishortcut.experiments.cost import KNOWN, Group, Size
from antishortcut.hardware import cores, processor
from antishortcut.methods import METHODS, build_method, method_options, method_roles
from antishortcut.models import Network, feature_shapes
from antishortcut.tasks import Classification, Segmentation
from antishortcut.teachers.cache import CachedOutputs
from antishortcut.teachers.frozen import FrozenModel, InferenceForm, compile_all, compile_if_faster, fastest_precision
from antishortcut.teachers.trajectory import build_model
from antishortcut.training.fabric import build_fabric, resolve_execution
from antishortcut.training.step import DistillationStep
from antishortcut.types import Batch, Features, ImageSet, Method, Prepares, Sizes, Task, is_dense

WARM = 2  # rounds that are not counted
POOL = 10  # batches that images are drawn from
PLAIN, CACHED = "plain-kd", "-cached"
PAST_WARMUP = 1e6
PARTS = ("data", "teachers", "student", "method", "optimiser")
CIFAR = KNOWN["cifar100"]
# of a stopwatch
STEPS, SECONDS = 20, 2.0  # whichever is reached first; one step at least
SLOW = 5.0  # seconds of a step beside which warming up is nothing
PIXELS = 2**19  # of a batch on a CPU; larger ones are measured in part, the rest in proportion

Ask = Callable[[Batch, bool], Features]  # a batch, and whether stage maps are wanted
Pair = tuple[ModelSettings, ModelSettings]  # teacher and student


@dataclass
class Bench:
    """One method on one pair; every round adds the milliseconds of a step to `rounds`, by part."""

    teachers: Mapping[str, Ask]  # by role; different weights, or there would be no eigenspace to find
    student: nn.Module
    method: nn.Module
    rounds: list[dict[str, float]] = field(default_factory=list)
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext  # around the student's pass
    passes: int = 0  # of teachers in a step
    task: Task = field(default_factory=Classification)

    def __post_init__(self) -> None:
        self.step = DistillationStep(self.student, self.method, self.task)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.step.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4
        )
        self.student.register_forward_pre_hook(lambda *_: self.marks.update(before=now()))
        self.student.register_forward_hook(self._mark_outputs)
        self.marks: dict[str, float] = {}

    def turn(self, batch: Batch, data: float = 0.0) -> None:
        """One step, timed; `data` are the seconds that its batch took."""
        method = cast(Method, self.method)
        start = now()
        with torch.no_grad():
            outputs = {role: ask(batch, "stages" in method.taps) for role, ask in self.teachers.items()}
        taught = now()
        with self.autocast():
            terms = self.step(batch, outputs, PAST_WARMUP)
        self.marks["reached"] = now()
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        back = now()
        self.optimizer.step()
        self.optimizer.zero_grad()
        end = now()
        ahead = self.marks["student"] - self.marks["before"]
        down = back - self.marks["reached"]  # what autograd did once it had come to the student's outputs
        spans = (data, taught - start, ahead + down, back - taught - ahead - down, end - back)
        self.rounds.append({part: 1000 * span for part, span in zip(PARTS, spans, strict=True)})

    def _mark_outputs(self, module: nn.Module, inputs: object, outputs: Features) -> None:
        """Mark the time, and have it marked again when gradients arrive: autograd does the latest arithmetic first."""
        self.marks["student"] = now()
        for output in (outputs.logits, outputs.embedding):
            if output.requires_grad:
                output.register_hook(lambda grad: self.marks.update(reached=now()))  # type: ignore[no-untyped-call]


def now() -> float:
    """Seconds, when all that the device was given is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
    return time.perf_counter()


def asking(network: nn.Module) -> Ask:
    """A teacher that computes its outputs every time."""

    def ask(batch: Batch, stages: bool) -> Features:
        outputs: Features = network(batch.image)
        maps = tuple(stage.float() for stage in outputs.stages) if stages else ()
        return Features(outputs.logits.float(), outputs.embedding.float(), maps)

    return ask


def _reading(path: Path, size: Size, width: int) -> Ask:
    """A teacher whose outputs lie on disk, as the trainer's cache keeps them."""
    rows = CachedOutputs(path, {"bench": 1}, size.images, width)
    rows.begin()
    noise = np.random.default_rng(list(path.name.encode()))
    for part in np.array_split(np.arange(size.images), -(-size.images // 10_000)):
        rows.write(0, part, noise.normal(size=(len(part), width)).astype(np.float16))

    def ask(batch: Batch, stages: bool) -> Features:
        values = rows.read(0, batch.index.cpu().numpy())
        assert values is not None
        both = torch.from_numpy(values).to(batch.image.device).float()
        return Features(both[:, : size.classes].contiguous(), both[:, size.classes :].contiguous())

    return ask


class _DefaultLayout(nn.Module):
    """A network in torch's default memory layout, as most write it."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Features:
        network = self.network
        outputs: Features = network.body((network.resized(image) - network.mean) / network.std)
        return outputs


def pair_of(text: str) -> Pair:
    """TEACHER:STUDENT; either may be timm:NAME, torchvision:NAME or import:MODULE:FUNCTION."""
    words = text.split(":")
    count = {"timm": 2, "torchvision": 2, "import": 3}.get(words[0], 1)
    first, second = ":".join(words[:count]), ":".join(words[count:])
    if not all(words) or not first or not second or second in ("timm", "torchvision", "import"):
        raise UserError(f"--pair {text!r}: write TEACHER:STUDENT, like wrn-40-2:wrn-16-2")
    return ModelSettings(name=first), ModelSettings(name=second)


def bench(
    pair: Pair,
    methods: Sequence[str],
    *,
    batch: int = 64,
    rounds: int = 20,
    device: str = "cpu",
    compile: str = "off",
    images: Size = CIFAR,
    tell: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Milliseconds of a step by method and part, ratios round by round, teacher passes, and how it was computed.

    compile: of the teachers; "auto" keeps what is faster here.
    """
    for name in methods:
        if name not in METHODS:
            raise UserError(f"unknown method {name!r}{suggest(name, METHODS)}")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        maker = Maker(pair, images, batch, torch.device(device), compile, Path(place))
        runs = {PLAIN: maker.plain()}
        for name in methods:
            runs[name] = maker.ours(name)
            if name == "asd":
                runs[name + CACHED] = maker.ours(name, cached=True)
        batches, order = maker.batches(), list(runs.values())
        for number in range(WARM + rounds):
            start = now()
            here = next(batches)
            data = now() - start
            for run in (*order[number % len(order) :], *order[: number % len(order)]):  # nobody is always first
                run.turn(here, data)
            tell(number + 1)
    counted = {name: run.rounds[WARM:] for name, run in runs.items()}
    times = {name: [sum(pieces.values()) for pieces in steps] for name, steps in counted.items()}
    rest = [other for other in (PLAIN, "kd", "asd") if other in runs]
    pairs = [(name, other) for other in rest for name in runs if name not in (PLAIN, other)]
    return {
        "ms": {name: median(values) for name, values in times.items()},
        "ratio": {f"{name}/{other}": ratio_of(times[name], times[other]) for name, other in pairs},
        "split": {
            name: {part: median([pieces[part] for pieces in steps]) for part in PARTS}
            for name, steps in counted.items()
        },
        "teacher_passes": {name: run.passes for name, run in runs.items()},
        "pair": ":".join(model.name for model in pair),
        "images": {"classes": images.classes, "count": images.images, "side": images.side},
        "batch": batch,
        "rounds": rounds,
        "machine": machine(device) | maker.how,
    }


def machine(device: str) -> dict[str, Any]:
    """What a measurement was made on."""
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }


class Maker:
    """Networks and methods of one pair, as the trainer has them, and batches for them."""

    def __init__(self, pair: Pair, size: Size, batch: int, device: torch.device, compile: str, place: Path) -> None:
        self.first, self.second = pair
        self.size, self.batch, self.device, self.place = size, batch, device, place
        self.teachers = {role: self._network(self.first, torch.channels_last).eval() for role in ("final", "early")}
        image = torch.rand(batch, 3, size.side, size.side, device=device)
        self.frozen = {
            role: FrozenModel(network, InferenceForm(fastest_precision(device)), size.side)
            for role, network in self.teachers.items()
        }
        if compile == "auto":
            self.frozen = compile_if_faster(self.frozen, image, self.teachers, 10**9, lambda text: None)
        elif compile == "on":
            self.frozen = compile_all(self.frozen, image, self.teachers)
        self.mixed = fastest_precision(device) == "bfloat16"
        self.how = {"teacher": str(self.frozen["final"].form), "student": "bf16-mixed" if self.mixed else "32-true"}

    def batches(self) -> Iterator[Batch]:
        return _batches(self.size, self.batch, "crop-flip", self.device)

    def plain(self) -> Bench:
        teacher, student = (self._network(model, torch.contiguous_format) for model in (self.first, self.second))
        method = _method("kd", method_options("kd", {}), {"final": teacher}, student, self.size, Classification())
        asks = {"final": asking(_DefaultLayout(teacher.eval()))}
        return Bench(asks, _DefaultLayout(student), method.to(self.device), passes=1)

    def ours(self, name: str, cached: bool = False) -> Bench:
        student, options = self._network(self.second, torch.channels_last), method_options(name, {})
        states = {role: "final" if role == "final" else "early" for role in method_roles(name, options)}
        networks = {role: self.teachers[state] for role, state in states.items()}
        if cached:
            width = feature_shapes(self.teachers["final"], self.size.side).embedding + self.size.classes
            asks = {role: _reading(self.place / role, self.size, width) for role in states}
        else:
            asks = {role: asking(self.frozen[state]) for role, state in states.items()}
        method = _method(name, options, networks, student, self.size, Classification()).to(self.device)
        return Bench(asks, student, method, autocast=self._autocast, passes=0 if cached else len(asks))

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.mixed else nullcontext()

    def _network(self, model: ModelSettings, layout: torch.memory_format) -> Network:
        network = build_model(model, self.size.classes, self.size.side)
        return network.to(device=self.device, memory_format=layout)  # type: ignore[call-overload,no-any-return]


class Stopwatch:
    """Measures steps on this machine. Threads default to all cores, as when `asd suite run` does one run at a time."""

    def __init__(self, execution: Execution) -> None:
        self.fabric = build_fabric(execution.model_copy(update={"threads": execution.threads or cores()}))
        self.device = self.fabric.device
        facts = machine(self.device.type)
        name = facts["processor"] if self.device.type == "cpu" else facts["device"]
        self.machine = (
            f"{name}, threads {facts['threads']}, {resolve_execution(execution).precision}, torch {facts['torch']}"
        )

    def seconds(self, group: Group) -> float:
        """Of a step: the median, with the batch's augmentation and its way to the device."""
        torch.manual_seed(0)
        size, whole = group.size, -(-group.batch // group.accumulate)
        images = min(whole, max(PIXELS // size.side**2, 2)) if self.device.type == "cpu" else whole
        batches = _batches(size, images, group.augment, self.device)
        task: Task = Classification()
        settings = group.task or TaskSettings()
        if size.dense:  # methods learn from as large a part of the locations as there is of the batch
            task = Segmentation(
                size.classes, samples=max(round(images / whole * settings.samples), 1), aux=settings.aux
            )
        run = self._bench(group, next(batches), task)

        def timed() -> float:
            start = time.perf_counter()
            run.turn(next(batches))
            return time.perf_counter() - start

        times = [timed()]
        if times[0] < SLOW:  # the first one was to warm up
            times = [timed()]
            while len(times) < STEPS and sum(times) < SECONDS:
                times.append(timed())
        return statistics.median(times) * group.batch / images

    def count(self, data: DataSettings) -> Size:
        kind = data.name.partition(":")[0]
        if kind not in WITH_PATH:
            raise UserError(f"steps on {data.name} are not measured yet; folder:PATH and groups:PATH are counted")
        sets, _ = find(data.name, None, seed=data.seed, options=data.options)
        dense = is_dense(sets.train)
        return Size(images=len(sets.train), classes=len(sets.classes), side=sets.image_size, dense=dense)

    def _bench(self, group: Group, batch: Batch, task: Task) -> Bench:
        size, options = group.size, method_options(group.method, group.options)
        teachers = dict[str, Network]()
        for role in method_roles(group.method, options):
            model = cast(ModelSettings, group.other or group.teacher if role == "early" else group.teacher)
            teachers[role] = build_model(model, size.classes, size.side).to(self.device).requires_grad_(False).eval()
        student = build_model(group.network, size.classes, size.side).to(self.device)
        method = _method(group.method, options, teachers, student, size, task).to(self.device)
        if isinstance(method, Prepares) and teachers:
            with torch.no_grad():
                outputs = {role: network(batch.image) for role, network in teachers.items()}
                method.prepare([task.samples(next(iter(outputs.values())), outputs, batch)[1]])
        form = InferenceForm(fastest_precision(self.device))
        asks = {role: asking(FrozenModel(network, form, size.side)) for role, network in teachers.items()}
        run = Bench(asks, student, method, autocast=self.fabric.autocast, task=task)
        if group.optimizer == "adamw":
            run.optimizer = torch.optim.AdamW(run.step.parameters(), lr=0.001)
        return run


def _method(
    name: str, options: dict[str, Any], teachers: Mapping[str, Network], student: Network, size: Size, task: Task
) -> nn.Module:
    shapes = {role: feature_shapes(network, size.side) for role, network in teachers.items()}
    labels = None if task.dense else _labels(size)
    sizes = Sizes(size.classes, task.num_samples(size.images), feature_shapes(student, size.side), shapes, labels)
    return build_method(name, sizes, options)


def _batches(size: Size, images: int, augment: str, device: torch.device) -> Iterator[Batch]:
    """Batches of random images without end, augmented; their places are drawn from the whole training set."""
    loader = Loader(_random_images(size, POOL * images), batch=images, seed=0, image_size=size.side, augment=augment)
    labels = _labels(size)
    for epoch in itertools.count():
        for batch in loader.epoch(epoch):
            index = torch.randint(size.images, (len(batch.index),))  # (B,)
            label = batch.label if size.dense else labels[index]  # (B, S, S) or (B,)
            yield Batch(*(tensor.to(device) for tensor in (batch.image, label, index)))


def _random_images(size: Size, count: int) -> ImageSet:
    image = torch.randint(256, (count, 3, size.side, size.side), dtype=torch.uint8)
    if size.dense:
        return ImageSet(image, torch.randint(size.classes, (count, size.side, size.side), dtype=torch.uint8))
    return ImageSet(image, torch.zeros(count, dtype=torch.int64))


def _labels(size: Size) -> Tensor:
    return torch.arange(size.images) % size.classes


def median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2)


def ratio_of(times: Sequence[float], reference: Sequence[float]) -> float:
    """Of steps of the same round: what slows the machine slows both."""
    return round(statistics.median(a / b for a, b in zip(times, reference, strict=True)), 3)
