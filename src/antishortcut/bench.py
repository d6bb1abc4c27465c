"""What a training step costs: methods beside each other on one pair, interleaved, median of many rounds.

Random images: the networks' time does not depend on them. `plain-kd` is the outside measure: KD as anyone would write
it, float32 and the default memory layout for both networks; the others run as the trainer runs them. `asd-cached` is
ASD that reads what its teachers say from disk.
"""
# B batch

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from antishortcut.cache import Rows
from antishortcut.data import Loader
from antishortcut.errors import UserError, near
from antishortcut.frozen import Form, Frozen, compiled, fastest, quicker
from antishortcut.machine import processor
from antishortcut.methods import METHODS, make_method, options_of, roles_of
from antishortcut.models import Network, probe
from antishortcut.run import ModelSettings
from antishortcut.step import Step
from antishortcut.tasks import Classification
from antishortcut.teachers import network_of
from antishortcut.types import Batch, Features, ImageSet, Method, Shape, Sizes, Task

WARM = 2  # rounds that are not counted
POOL = 20  # batches that images are drawn from
PLAIN, CACHED = "plain-kd", "-cached"
PAST_WARMUP = 1e6
PARTS = ("data", "teachers", "student", "method", "optimiser")

Ask = Callable[[Batch, bool], Features]  # a batch, and whether stage maps are wanted
Pair = tuple[ModelSettings, ModelSettings]  # teacher and student


@dataclass(frozen=True)
class Images:
    """What the pair is trained on."""

    classes: int
    count: int
    side: int


CIFAR = Images(100, 50_000, 32)


@dataclass
class Bench:
    """One method on one pair; every round adds the milliseconds of a step to `rounds`, by part."""

    teachers: Mapping[str, Ask]  # by role; different weights, or there would be no eigenspace to find
    student: Network
    method: nn.Module
    rounds: list[dict[str, float]] = field(default_factory=list)
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext  # around the student's pass
    passes: int = 0  # of teachers in a step
    task: Task = field(default_factory=Classification)

    def __post_init__(self) -> None:
        self.step = Step(self.student, self.method, self.task)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.step.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4
        )
        self.student.register_forward_pre_hook(lambda *_: self.marks.update(before=now()))
        self.student.register_forward_hook(self._seen)
        self.marks: dict[str, float] = {}

    def turn(self, batch: Batch, data: float = 0.0) -> None:
        """One step, timed; `data` are the seconds that its batch took."""
        method = cast(Method, self.method)
        start = now()
        with torch.no_grad():
            seen = {role: ask(batch, "stages" in method.taps) for role, ask in self.teachers.items()}
        told = now()
        with self.autocast():
            terms = self.step(batch, seen, PAST_WARMUP)
        self.marks["reached"] = now()
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        back = now()
        self.optimizer.step()
        self.optimizer.zero_grad()
        end = now()
        ahead = self.marks["student"] - self.marks["before"]
        down = back - self.marks["reached"]  # what autograd did once it had come to the student's outputs
        spans = (data, told - start, ahead + down, back - told - ahead - down, end - back)
        self.rounds.append({part: 1000 * span for part, span in zip(PARTS, spans, strict=True)})

    def _seen(self, module: nn.Module, given: object, seen: Features) -> None:
        """Mark the time, and have it marked again when gradients arrive: autograd does the latest arithmetic first."""
        self.marks["student"] = now()
        for output in (seen.logits, seen.embedding):
            if output.requires_grad:
                output.register_hook(lambda grad: self.marks.update(reached=now()))  # type: ignore[no-untyped-call]


def now() -> float:
    """Seconds, when all that was asked of the device is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
    return time.perf_counter()


def asking(network: nn.Module) -> Ask:
    """A teacher that is asked every time."""

    def ask(batch: Batch, stages: bool) -> Features:
        seen: Features = network(batch.image)
        maps = tuple(stage.float() for stage in seen.stages) if stages else ()
        return Features(seen.logits.float(), seen.embedding.float(), maps)

    return ask


def _reading(place: Path, images: Images, width: int) -> Ask:
    """A teacher whose every answer lies on disk, as the trainer's cache keeps them."""
    rows = Rows(place, {"bench": 1}, images.count, width)
    rows.begin()
    noise = np.random.default_rng(list(place.name.encode()))
    for part in np.array_split(np.arange(images.count), -(-images.count // 10_000)):
        rows.write(0, part, noise.normal(size=(len(part), width)).astype(np.float16))

    def ask(batch: Batch, stages: bool) -> Features:
        values = rows.read(0, batch.index.cpu().numpy())
        assert values is not None
        both = torch.from_numpy(values).to(batch.image.device).float()
        return Features(both[:, : images.classes].contiguous(), both[:, images.classes :].contiguous())

    return ask


class _Default(Network):
    """In torch's default layout, as most write it."""

    def forward(self, image: Tensor) -> Features:
        seen: Features = self.body((self.resized(image) - self.mean) / self.std)
        return seen


def pair_of(text: str) -> Pair:
    """TEACHER:STUDENT; either may be timm:NAME, torchvision:NAME or import:MODULE:FUNCTION."""
    words = text.split(":")
    taken = {"timm": 2, "torchvision": 2, "import": 3}.get(words[0], 1)
    first, second = ":".join(words[:taken]), ":".join(words[taken:])
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
    images: Images = CIFAR,
    tell: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Milliseconds of a step by method and part, ratios round by round, teacher passes, and how it was computed.

    compile: of the teachers; "auto" keeps what is faster here.
    """
    for name in methods:
        if name not in METHODS:
            raise UserError(f"unknown method {name!r}{near(name, METHODS)}")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        maker = Maker(pair, images, batch, torch.device(device), compile, Path(place))
        runs = {PLAIN: maker.plain()}
        for name in methods:
            runs[name] = maker.ours(name)
            if name == "asd":
                runs[name + CACHED] = maker.ours(name, cached=True)
        batches = maker.batches()
        for number in range(WARM + rounds):
            start = now()
            here = next(batches)
            data = now() - start
            order = list(runs.values())
            for run in (*order[number % len(order) :], *order[: number % len(order)]):  # nobody is always first
                run.turn(here, data)
            tell(number + 1)
    times = {name: [sum(parts.values()) for parts in run.rounds[WARM:]] for name, run in runs.items()}
    medians = {name: median(values) for name, values in times.items()}
    ratio = {f"{name}/{other}": ratio_of(times[name], times[other]) for name, other in _pairs(list(runs))}
    split = {
        name: {part: median([parts[part] for parts in run.rounds[WARM:]]) for part in PARTS}
        for name, run in runs.items()
    }
    passes = {name: run.passes for name, run in runs.items()}
    facts = {
        "pair": ":".join(model.name for model in pair),
        "images": asdict(images),
        "batch": batch,
        "rounds": rounds,
        "machine": machine(device) | maker.how,
    }
    return {"ms": medians, "ratio": ratio, "split": split, "teacher_passes": passes} | facts


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

    def __init__(self, pair: Pair, images: Images, batch: int, device: torch.device, compile: str, place: Path) -> None:
        self.first, self.second = pair
        self.images, self.batch, self.device, self.place = images, batch, device, place
        self.labels = torch.arange(images.count) % images.classes
        self.teachers = {role: self._network(self.first, torch.channels_last).eval() for role in ("final", "early")}
        form = Form(fastest(device))
        image = torch.rand(batch, 3, images.side, images.side, device=device)
        made = {role: Frozen(network, form, images.side) for role, network in self.teachers.items()}
        if compile == "auto":
            made = quicker(made, image, self.teachers, 10**9, lambda text: None)
        self.frozen = compiled(made, image, self.teachers) if compile == "on" else made
        form = next(iter(self.frozen.values())).form
        self.mixed = fastest(device) == "bfloat16"
        self.how = {"teacher": str(form), "student": "bf16-mixed" if self.mixed else "32-true"}

    def batches(self) -> Iterator[Batch]:
        """Of random images, augmented as CIFAR's are; their places are drawn from the whole set."""
        side = self.images.side
        pool = torch.randint(256, (POOL * self.batch, 3, side, side), dtype=torch.uint8)
        made_up = ImageSet(pool, torch.zeros(len(pool), dtype=torch.int64))
        loader = Loader(made_up, batch=self.batch, seed=0, image_size=side)
        epoch = 0
        while True:
            for made in loader.epoch(epoch):
                index = torch.randint(self.images.count, (len(made.index),))  # (B,)
                yield Batch(*(tensor.to(self.device) for tensor in (made.image, self.labels[index], index)))
            epoch += 1

    def plain(self) -> Bench:
        networks = [_default(self._network(model, torch.contiguous_format)) for model in (self.first, self.second)]
        teacher, student = networks[0].eval(), networks[1]
        method = self._method("kd", {"final": teacher}, student)
        return Bench({"final": asking(teacher)}, student, method, passes=1)

    def ours(self, name: str, cached: bool = False) -> Bench:
        student = self._network(self.second, torch.channels_last)
        roles = roles_of(name, options_of(name, {}))
        networks = {role: self.teachers[_state(role)] for role in roles}
        asks = {role: asking(self.frozen[_state(role)]) for role in roles}
        if cached:
            widths = {role: self._shape(network).embedding + self.images.classes for role, network in networks.items()}
            asks = {role: _reading(self.place / role, self.images, width) for role, width in widths.items()}
        method = self._method(name, networks, student)
        return Bench(asks, student, method, autocast=self._casting, passes=0 if cached else len(roles))

    def _casting(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.mixed else nullcontext()

    def _method(self, name: str, teachers: Mapping[str, Network], student: Network) -> nn.Module:
        shapes = {role: self._shape(network) for role, network in teachers.items()}
        sizes = Sizes(self.images.classes, self.images.count, self._shape(student), shapes, self.labels)
        return make_method(name, sizes, options_of(name, {})).to(self.device)

    def _shape(self, network: Network) -> Shape:
        return probe(network, self.images.side)

    def _network(self, model: ModelSettings, layout: torch.memory_format) -> Network:
        network = network_of(model, self.images.classes, self.images.side)
        return network.to(device=self.device, memory_format=layout)  # type: ignore[call-overload,no-any-return]


def _state(role: str) -> str:
    """Any state but the last costs what the early one does."""
    return "final" if role == "final" else "early"


def _default(network: Network) -> Network:
    network.__class__ = _Default
    return network


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    """Every method beside plain-kd, kd and asd, where they were asked for."""
    others = [other for other in (PLAIN, "kd", "asd") if other in names]
    return [(name, other) for other in others for name in names if name not in (PLAIN, other)]


def median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2)


def ratio_of(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Of steps of the same round: what slows the machine slows both."""
    return round(statistics.median(a / b for a, b in zip(mine, theirs, strict=True)), 3)
