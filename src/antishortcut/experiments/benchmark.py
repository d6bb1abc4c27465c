"""What a training step costs: methods on one pair, interleaved, median of many rounds.

Random images: the networks' time does not depend on them. `plain-kd` is KD as anyone would write it, float32 and the
default memory layout; the others run as in the trainer. `asd-cached` and `contrast+hint-cached` read their teachers'
outputs from disk, `contrast-weak` has the student's architecture in T_early's place (`teacher.early = "weak"`).
`Stopwatch` times single steps for the estimates of `cost`.
"""
# B batch, S side of an image

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from antishortcut.config.recipe import Execution, ModelSettings
from antishortcut.data import Loader
from antishortcut.data.datasets import TrainingSize
from antishortcut.data.transforms import with_strong_view
from antishortcut.errors import UserError
from antishortcut.experiments.cost import StepGroup, known_sizes
from antishortcut.hardware import cores, processor
from antishortcut.methods import build_method, method_options, method_roles
from antishortcut.models import Network, feature_shapes, tapped_features
from antishortcut.tasks import Classification, EmbeddingAgreement, Segmentation
from antishortcut.teachers.cache import CachedOutputs, Output, Values, features_of, outputs_of, width_of
from antishortcut.teachers.frozen import FrozenModel, InferenceForm, compile_all, compile_if_faster, fastest_precision
from antishortcut.teachers.trajectory import build_model
from antishortcut.training.fabric import build_fabric, resolve_execution
from antishortcut.training.step import DistillationStep
from antishortcut.training.trainer import deployed
from antishortcut.types import Batch, Features, ImageSet, Method, Prepares, ReusesClassifier, Sizes, StrongView, Task

WARM = 2  # rounds that are not counted
POOL = 10  # batches that images are drawn from
PLAIN, CACHED, WEAK = "plain-kd", "-cached", "-weak"
PAST_WARMUP = 1e6
MAPS = 2**25  # values that a cached map has on disk here, 64 MB
PHASES = ("data", "teachers", "student", "method", "optimiser")
CIFAR = known_sizes()["cifar100"]
# of a stopwatch
STEPS, SECONDS = 20, 2.0  # whichever is reached first; one step at least
SLOW = 5.0  # seconds of a step that needs no warm-up
PIXELS = 2**19  # of a batch on a CPU; of larger ones a part is measured, and scaled up

Teacher = Callable[[Batch], Features]
Pair = tuple[ModelSettings, ModelSettings]  # teacher and student


class TimedMethod:
    """One method on one pair; every step adds its milliseconds by phase to `rounds`."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        student: nn.Module,
        networks: Mapping[str, nn.Module],
        size: TrainingSize,
        task: Task | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        weak: bool = False,
    ) -> None:
        """networks: the teachers by role, with different weights, or there would be no eigenspace.

        weak: the early one is a weak reference.
        """
        self.autocast, self.task = autocast, task or Classification()
        shapes = {role: feature_shapes(network, size.side) for role, network in networks.items()}
        shapes |= {"early": replace(shapes["early"], weak=weak)} if "early" in shapes else {}
        labels = None if self.task.dense else _labels(size)
        count = self.task.num_samples(size.images)
        sizes = Sizes(size.classes, count, feature_shapes(student, size.side), shapes, labels, groups=labels)
        self.method = build_method(name, sizes, options).to(next(student.parameters()).device)
        if isinstance(self.method, ReusesClassifier):
            student = deployed(self.method, cast(Network, student), networks["final"], size.side)
        self.student = student
        self.teachers = {role: self.computed(network) for role, network in networks.items()}
        self.step = DistillationStep(student, self.method, self.task)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.step.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4
        )
        self.rounds: list[dict[str, float]] = []
        self.marks: dict[str, float] = {}
        student.register_forward_pre_hook(lambda *_: self.marks.update(before=now()))
        student.register_forward_hook(self._mark_outputs)

    def computed(self, network: nn.Module) -> Teacher:
        """A teacher that computes its outputs every time."""
        taps = cast(Method, self.method).taps
        return lambda batch: tapped_features(network, batch.image, taps).float32(taps)

    @property
    def passes(self) -> int:
        """Teacher passes over a batch in a step."""
        return len(self.teachers) * (2 if isinstance(self.method, StrongView) else 1)

    def turn(self, batch: Batch, data: float = 0.0) -> None:
        """One step, timed; `data` are the seconds that its batch took."""
        start = now()
        if isinstance(self.method, StrongView):
            batch = with_strong_view(batch, 0, 0)
            data, start = data + now() - start, now()
        with torch.no_grad():
            targets = {role: teacher(batch) for role, teacher in self.teachers.items()}
        taught = now()
        with self.autocast():
            losses = self.step(batch, targets, PAST_WARMUP)
        self.marks["reached"] = now()
        torch.autograd.backward(torch.stack(list(losses.values())).sum())
        back = now()
        self.optimizer.step()
        self.optimizer.zero_grad()
        end = now()
        # the student: its forward pass, and the backward pass from when autograd reached its outputs
        student = self.marks["student"] - self.marks["before"] + back - self.marks["reached"]
        seconds = (data, taught - start, student, back - taught - student, end - back)
        self.rounds.append({phase: 1000 * value for phase, value in zip(PHASES, seconds, strict=True)})

    def _mark_outputs(self, module: nn.Module, inputs: object, outputs: Features) -> None:
        """Mark the time, and again when gradients arrive."""
        self.marks["student"] = now()
        for output in (outputs.logits, outputs.embedding):
            if output.requires_grad:
                output.register_hook(lambda grad: self.marks.update(reached=now()))  # type: ignore[no-untyped-call]


def now() -> float:
    """Seconds, when the device has done its work."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


class _DefaultLayout(nn.Module):
    """A network in torch's default memory layout."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.contiguous_format)

    def forward(self, image: Tensor) -> Features:
        network = self.network
        outputs: Features = network.body((network.resized(image) - network.mean) / network.std)
        return outputs


def pair_of(text: str) -> Pair:
    """TEACHER:STUDENT; either may be timm:NAME, torchvision:NAME or import:MODULE:FUNCTION."""
    words = text.split(":")
    count = {"timm": 2, "torchvision": 2, "import": 3}.get(words[0], 1)
    first, second = ":".join(words[:count]), ":".join(words[count:])
    if not all(words) or not second or second in ("timm", "torchvision", "import"):
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
    images: TrainingSize = CIFAR,
    tell: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Milliseconds of a step by method and phase, ratios round by round, and teacher passes.

    compile: of the teachers; "auto" keeps what is faster here.
    """
    for name in methods:
        method_options(name, {})  # an unknown name is an error before networks are built
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        setup = BenchSetup(pair, images, batch, torch.device(device), compile, Path(folder), "contrast" in methods)
        runs = {PLAIN: setup.plain()}
        for name in methods:
            runs[name] = setup.ours(name)
            if name in ("asd", "contrast+hint"):
                runs[name + CACHED] = setup.ours(name, cached=True)
            if name == "contrast":
                runs[name + WEAK] = setup.ours(name, early="weak")
        batches, order = setup.batches(), list(runs.values())
        for number in range(WARM + rounds):
            start = now()
            here = next(batches)
            data = now() - start
            for run in (*order[number % len(order) :], *order[: number % len(order)]):  # nobody is always first
                run.turn(here, data)
            tell(number + 1)
    counted = {name: run.rounds[WARM:] for name, run in runs.items()}
    times = {name: [sum(phases.values()) for phases in steps] for name, steps in counted.items()}
    pairs = [(name, other) for other in (PLAIN, "kd", "asd") if other in runs for name in runs]
    return {
        "ms": {name: median(values) for name, values in times.items()},
        "ratio": {f"{a}/{b}": ratio_of(times[a], times[b]) for a, b in pairs if a not in (PLAIN, b)},
        "split": {
            name: {phase: median([step[phase] for step in steps]) for phase in PHASES}
            for name, steps in counted.items()
        },
        "teacher_passes": {name: 0 if name.endswith(CACHED) else run.passes for name, run in runs.items()},
        "pair": ":".join(model.name for model in pair),
        "images": {"classes": images.classes, "count": images.images, "side": images.side},
        "batch": batch,
        "rounds": rounds,
        "machine": machine(device) | setup.precision,
    }


def machine(device: str) -> dict[str, Any]:
    """What a measurement was made on."""
    name = torch.cuda.get_device_name() if device == "cuda" else device
    facts = {"processor": processor(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    return facts | {"device": name}


class BenchSetup:
    """Networks and methods of one pair, as in the trainer, and batches for them."""

    def __init__(
        self,
        pair: Pair,
        size: TrainingSize,
        batch: int,
        device: torch.device,
        compile: str,
        folder: Path,
        weak: bool = False,
    ) -> None:
        self.pair, self.size, self.batch, self.device, self.folder = pair, size, batch, device, folder
        models = {"final": pair[0], "early": pair[0]} | ({"weak": pair[1]} if weak else {})
        self.teachers = {state: self._network(model).eval() for state, model in models.items()}
        image = torch.rand(batch, 3, size.side, size.side, device=device)
        form = InferenceForm(fastest_precision(device))
        self.frozen = {state: FrozenModel(network, form, size.side) for state, network in self.teachers.items()}
        if compile == "auto":
            self.frozen = compile_if_faster(self.frozen, image, self.teachers, 10**9, lambda text: None)
        elif compile == "on":
            self.frozen = compile_all(self.frozen, image, self.teachers)
        mixed = form.precision == "bfloat16"
        self.autocast = partial(torch.autocast, device.type, torch.bfloat16) if mixed else nullcontext
        student = "bf16-mixed" if mixed else "32-true"
        self.precision = {"teacher": str(self.frozen["final"].form), "student": student}

    def batches(self) -> Iterator[Batch]:
        return _batches(self.size, self.batch, "crop-flip", self.device)

    def plain(self) -> TimedMethod:
        teacher, student = (_DefaultLayout(self._network(model)) for model in self.pair)
        return TimedMethod("kd", method_options("kd", {}), student, {"final": teacher.eval()}, self.size)

    def ours(self, name: str, cached: bool = False, early: str = "early") -> TimedMethod:
        """early: or "weak", for which a method must not compare embeddings."""
        options = method_options(name, {})
        networks = {role: self.frozen["final" if role == "final" else early] for role in method_roles(name, options)}
        run = TimedMethod(name, options, self._network(self.pair[1]), networks, self.size, autocast=self.autocast)
        if cached:
            method = cast(Method, run.method)
            run.teachers = {role: self._cached(role, networks[role], method) for role in networks}
        return run

    def _cached(self, role: str, network: nn.Module, method: Method) -> Teacher:
        """A teacher whose outputs, random here, are in the trainer's cache; maps of as many images as `MAPS` holds."""
        shape, classes = feature_shapes(network, self.size.side), self.size.classes
        caches: dict[Output, CachedOutputs] = {}
        noise = np.random.default_rng(list(role.encode()))
        for output in outputs_of(role, shape, method):
            width = width_of(output, shape, classes)
            images = min(self.size.images, max(MAPS // width, 1)) if output.tap else self.size.images
            caches[output] = cache = CachedOutputs(
                self.folder / type(method).__name__ / role, {"bench": str(output)}, images, width
            )
            cache.begin()
            for index in np.array_split(np.arange(images), -(-images * width // 2**22)):
                cache.write(0, index, noise.standard_normal((len(index), width), np.float32).astype(np.float16))

        def teacher(batch: Batch) -> Features:
            index, rows = batch.index.cpu().numpy(), dict[Output, Values]()
            for output, cache in caches.items():
                values = cache.read(0, index % cache.images)
                assert values is not None
                rows[output] = values
            return features_of(rows, shape, classes, batch.image.device)

        return teacher

    def _network(self, model: ModelSettings) -> Network:
        return build_model(model, self.size.classes, self.size.side).to(self.device)


class Stopwatch:
    """Measures steps on this machine. Threads default to all cores, as when `asd suite run` does one run at a time."""

    def __init__(self, execution: Execution) -> None:
        self.fabric = build_fabric(execution.model_copy(update={"threads": execution.threads or cores()}))
        self.device = self.fabric.device
        facts = machine(self.device.type)
        name = facts["processor"] if self.device.type == "cpu" else facts["device"]
        precision = resolve_execution(execution).precision
        self.machine = f"{name}, threads {facts['threads']}, {precision}, torch {facts['torch']}"

    def seconds(self, group: StepGroup) -> float:
        """Median seconds of a step, with the batch's augmentation and its transfer to the device."""
        torch.manual_seed(0)
        size, whole = group.size, -(-group.batch // group.accumulate)
        images = min(whole, max(PIXELS // size.side**2, 2)) if self.device.type == "cpu" else whole
        batches = _batches(size, images, group.augment, self.device)
        task: Task = Classification() if size.classes else EmbeddingAgreement()
        if size.dense:
            samples = max(round(images / whole * group.task.samples), 1)
            task = Segmentation(size.classes, samples=samples, aux=group.task.aux)
        run = self._timed_method(group, next(batches), task)

        def timed() -> float:
            start = now()
            run.turn(next(batches))
            return now() - start

        times = [timed()]
        if times[0] < SLOW:  # the first one was to warm up
            times = [timed()]
            while len(times) < STEPS and sum(times) < SECONDS:
                times.append(timed())
        return statistics.median(times) * group.batch / images

    def _timed_method(self, group: StepGroup, batch: Batch, task: Task) -> TimedMethod:
        size, options = group.size, method_options(group.method, group.options)
        form, networks = InferenceForm(fastest_precision(self.device)), dict[str, FrozenModel]()
        for role in method_roles(group.method, options, weak=group.weak):
            model = cast(ModelSettings, group.other or group.teacher if role == "early" else group.teacher)
            network = build_model(model, size.classes, size.side).to(self.device).requires_grad_(False).eval()
            networks[role] = FrozenModel(network, form, size.side)
        student = build_model(group.network, size.classes, size.side).to(self.device)
        run = TimedMethod(group.method, options, student, networks, size, task, self.fabric.autocast, group.weak)
        if isinstance(run.method, Prepares) and networks:
            outputs = {role: teacher(batch) for role, teacher in run.teachers.items()}
            run.method.prepare([task.samples(next(iter(outputs.values())), outputs, batch)[1]])
        if group.optimizer == "adamw":
            run.optimizer = torch.optim.AdamW(run.step.parameters(), lr=0.001)
        return run


def _batches(size: TrainingSize, images: int, augment: str, device: torch.device) -> Iterator[Batch]:
    """Endless batches of random images, augmented; their indices are drawn from the whole training set."""
    count, side = POOL * images, size.side
    image = torch.randint(256, (count, 3, side, side), dtype=torch.uint8)
    label = torch.zeros(count, dtype=torch.int64)
    if size.dense:
        label = torch.randint(size.classes, (count, side, side), dtype=torch.uint8)
    loader = Loader(ImageSet(image, label), batch=images, seed=0, image_size=side, augment=augment)
    labels = _labels(size)
    for epoch in itertools.count():
        for batch in loader.epoch(epoch):
            index = torch.randint(size.images, (len(batch.index),))  # (B,)
            label = batch.label if size.dense else labels[index]  # (B, S, S) or (B,)
            yield Batch(*(tensor.to(device) for tensor in (batch.image, label, index)))


def _labels(size: TrainingSize) -> Tensor:
    return torch.arange(size.images) % max(size.classes, 1)


def median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2)


def ratio_of(times: Sequence[float], reference: Sequence[float]) -> float:
    """Median over rounds: what slows the machine in a round slows both."""
    return round(statistics.median(a / b for a, b in zip(times, reference, strict=True)), 3)
