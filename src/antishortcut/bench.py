"""What a training step costs: methods beside each other on one pair, interleaved, median of many rounds.

Random images: the networks' time does not depend on them. `plain-kd` is the outside measure: KD as anyone would write
it, float32 and the default memory layout for both networks; the others run as the trainer runs them.
"""
# B batch

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from antishortcut.errors import UserError, near
from antishortcut.methods import METHODS, make_method, options_of, roles_of
from antishortcut.models import Network, build, probe
from antishortcut.step import Step
from antishortcut.tasks import Classification
from antishortcut.types import Batch, Features, Method, Sizes, Task

CLASSES, EXAMPLES, SIDE = 100, 50_000, 32
WARM = 2  # rounds that are not counted
PLAIN = "plain-kd"
PAST_WARMUP = 1e6
PARTS = ("teachers", "student", "method", "backward", "optimizer")


@dataclass
class Bench:
    """One method on one pair; every round adds the milliseconds of a step to `rounds`, by part."""

    teachers: Mapping[str, Network]  # by role; different weights, or there would be no eigenspace to find
    student: Network
    method: nn.Module
    rounds: list[dict[str, float]] = field(default_factory=list)
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext  # around the student's pass
    task: Task = field(default_factory=Classification)

    def __post_init__(self) -> None:
        self.step = Step(self.student, self.method, self.task)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.step.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4
        )
        self.student.register_forward_pre_hook(lambda *_: self.marks.update(before=_now()))
        self.student.register_forward_hook(lambda *_: self.marks.update(student=_now()))
        self.marks: dict[str, float] = {}

    @property
    def passes(self) -> int:
        """Teacher passes a step takes."""
        return len(self.teachers)

    def turn(self, batch: Batch) -> None:
        """One step, timed."""
        method = cast(Method, self.method)
        start = _now()
        with torch.no_grad():
            seen = {role: _asked(network, batch, "stages" in method.taps) for role, network in self.teachers.items()}
        told = _now()
        with self.autocast():
            terms = self.step(batch, seen, PAST_WARMUP)
        summed = _now()
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        back = _now()
        self.optimizer.step()
        self.optimizer.zero_grad()
        end = _now()
        student = self.marks["student"] - self.marks["before"]
        spans = (told - start, student, summed - told - student, back - summed, end - back)
        self.rounds.append({part: 1000 * span for part, span in zip(PARTS, spans, strict=True)})


def _now() -> float:
    """Seconds, when all that was asked of the device is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
    return time.perf_counter()


def _asked(teacher: Network, batch: Batch, stages: bool) -> Features:
    seen = teacher(batch.image)
    return Features(seen.logits.float(), seen.embedding.float(), seen.stages if stages else ())


def bench(
    pair: str,
    methods: Sequence[str],
    *,
    batch: int = 64,
    rounds: int = 20,
    device: str = "cpu",
    tell: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Milliseconds of a step by method and part, ratios round by round, and teacher passes."""
    first, mark, second = pair.partition(":")
    if not mark or not first or not second:
        raise UserError(f"--pair {pair!r}: write TEACHER:STUDENT, like wrn-40-2:wrn-16-2")
    for name in methods:
        if name not in METHODS:
            raise UserError(f"unknown method {name!r}{near(name, METHODS)}")
    torch.manual_seed(0)
    labels = torch.arange(EXAMPLES) % CLASSES
    runs = {PLAIN: _bench("kd", first, second, labels, device, torch.contiguous_format)}
    runs |= {name: _bench(name, first, second, labels, device, torch.channels_last) for name in methods}
    for number in range(WARM + rounds):
        index = torch.randint(EXAMPLES, (batch,))
        images = Batch(torch.rand(batch, 3, SIDE, SIDE), labels[index], index)
        here = Batch(*(tensor.to(device) for tensor in (images.image, images.label, images.index)))
        for run in runs.values():
            run.turn(here)
        tell(number + 1)
    times = {name: [sum(parts.values()) for parts in run.rounds[WARM:]] for name, run in runs.items()}
    medians = {name: _median(values) for name, values in times.items()}
    ratio = {f"{name}/{other}": _ratio(times[name], times[other]) for name, other in _pairs(list(runs))}
    split = {
        name: {part: _median([parts[part] for parts in run.rounds[WARM:]]) for part in PARTS}
        for name, run in runs.items()
    }
    machine = {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }
    passes = {name: run.passes for name, run in runs.items()}
    facts = {"pair": pair, "batch": batch, "rounds": rounds, "machine": machine}
    return {"ms": medians, "ratio": ratio, "split": split, "teacher_passes": passes} | facts


def _bench(name: str, first: str, second: str, labels: torch.Tensor, device: str, layout: torch.memory_format) -> Bench:
    settings = options_of(name, {})
    teachers = {role: build(first, CLASSES, image_size=SIDE).eval() for role in roles_of(name, settings)}
    student = build(second, CLASSES, image_size=SIDE)
    shapes = {role: probe(network, SIDE) for role, network in teachers.items()}
    sizes = Sizes(CLASSES, EXAMPLES, probe(student, SIDE), shapes, labels)
    method = make_method(name, sizes, settings)
    for network in (*teachers.values(), student):
        network.to(device=device, memory_format=layout)  # type: ignore[call-overload]
    return Bench(teachers, student, method.to(device))


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    """Every method beside plain-kd, kd and asd, where they were asked for."""
    others = [other for other in (PLAIN, "kd", "asd") if other in names]
    return [(name, other) for other in others for name in names if name not in (PLAIN, other)]


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2)


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Of steps of the same round: what slows the machine slows both."""
    return round(statistics.median(a / b for a, b in zip(mine, theirs, strict=True)), 3)
