"""Every method's terms and gradients on a device, or on two processes, against those on the CPU in one process.

Features are random, in the shapes of small networks: what is compared is the method alone. Its random draws are made on
the CPU everywhere, because generators of different devices give different numbers.
"""
# B rows

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.overrides import TorchFunctionMode

from antishortcut.methods import build_method, method_roles
from antishortcut.models import build, feature_shapes
from antishortcut.training.step import gather_samples
from antishortcut.training.trainer import deployed
from antishortcut.types import Batch, Features, Method, Sizes

CLASSES, IMAGES, ROWS, PAST_WARMUP = 5, 200, 16, 1000.0
TEACHER, STUDENT = "resnet8", "cnn-4-16"
EQUAL_CHANNELS = ("fsp",)  # methods for pairs whose stages have as many channels
LOCAL = ("byot",)  # its heads have batch statistics of each process
DRAWS = (torch.rand, torch.randn, torch.randint, torch.randperm)
FLOOR = 0.01  # of the largest gradient of its kind, below which a tensor's own scale does not count
WORLD, LONGEST = 2, timedelta(seconds=300)
Examined = dict[str, Tensor]


class Subject:
    """One method on one pair of small networks, seeded, and features for it."""

    def __init__(self, name: str, rows: int = ROWS) -> None:
        torch.manual_seed(0)
        self.name = name
        teacher = STUDENT if name in EQUAL_CHANNELS else TEACHER
        self.teachers = {role: build(teacher, CLASSES).eval() for role in method_roles(name, {})}
        student = build(STUDENT, CLASSES)
        shapes = {role: feature_shapes(network, 32) for role, network in self.teachers.items()}
        labels, groups = torch.arange(IMAGES) % CLASSES, torch.arange(IMAGES) % 10
        sizes = Sizes(CLASSES, IMAGES, feature_shapes(student, 32), shapes, labels, groups)
        self.method: nn.Module = build_method(name, sizes, {})
        self.student = deployed(self.method, student, self.teachers.get("final"), 32)
        index = torch.randperm(IMAGES)[:rows]
        self.batch = Batch(torch.rand(rows, 3, 32, 32), labels[index], index)

    @cached_property
    def features(self) -> dict[str, list[Tensor]]:
        """Of the student, under "", and of each teacher: logits, embedding, stages, last map."""
        return {role: self._random(network) for role, network in {"": self.student, **self.teachers}.items()}

    def _random(self, network: nn.Module) -> list[Tensor]:
        shape, rows = feature_shapes(network, 32), len(self.batch.index)
        sizes = ((CLASSES,), (shape.embedding,), *shape.stages, (shape.embedding, *shape.side))
        return [torch.randn(rows, *size) for size in sizes]


class _DrawsOnCPU(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function in DRAWS and kwargs.get("device") is not None:
            return function(*args, **kwargs | {"device": "cpu"}).to(kwargs["device"])
        return function(*args, **kwargs)


def examine(
    name: str,
    device: torch.device,
    epochs: Iterable[float] = (0.0, PAST_WARMUP),
    rank: int | None = None,
    noise: float = 0.0,
) -> Examined:
    """Terms in these epochs, one after the other, and gradients of their sum.

    rank: which half of the rows is here; results are averaged as by DDP. noise: relative, on every feature.
    """
    subject = Subject(name)
    method = subject.method.to(device).train(name not in LOCAL)
    half = ROWS // WORLD
    part = slice(None) if rank is None else slice(rank * half, (rank + 1) * half)
    generator = torch.Generator().manual_seed(1)

    def here(rows: Tensor, learns: bool) -> Tensor:
        other = rows * (1 + noise * torch.randn(rows.shape, generator=generator))
        return other[part].to(device).requires_grad_(learns)

    features = {role: [here(rows, not role) for rows in values] for role, values in subject.features.items()}
    whole = subject.batch
    batch = Batch(*(rows[part].to(device) for rows in (whole.image, whole.label, whole.index)))
    teachers = {role: _features(values) for role, values in features.items() if role}
    samples = gather_samples(_features(features[""]), teachers, batch)
    result: Examined = {}
    torch.manual_seed(5)  # the noise of a step is a function of (seed, step), the same everywhere
    with _DrawsOnCPU():
        for epoch in epochs:
            terms = cast(Method, method).terms(*samples, epoch)
            result |= {f"{key} at {epoch:g}": value for key, value in terms.items()}
        if result:
            torch.autograd.backward(torch.stack(list(result.values())).sum())
    result = {key: value.detach().clone() for key, value in result.items()}
    result |= {f"head {key}": value.grad for key, value in method.named_parameters() if value.grad is not None}
    if rank is not None:
        for value in result.values():
            dist.all_reduce(value)
            value /= WORLD
    for place, rows in enumerate(features[""]):
        if rows.grad is not None:
            result[f"rows {place}"] = rows.grad if rank is None else _gathered(rows.grad / WORLD)
    return {key: value.cpu() for key, value in result.items()}


def _features(values: list[Tensor]) -> Features:
    logits, embedding, *stages, last = values
    return Features(logits, embedding, tuple(stages), last=last, preact=tuple(stages))


def _gathered(rows: Tensor) -> Tensor:
    """What reaches each process, which DDP divides by their number."""
    pieces = [torch.empty_like(rows) for _ in range(WORLD)]
    dist.all_gather(pieces, rows.contiguous())
    return torch.cat(pieces)


def largest_difference(one: Examined, two: Examined) -> float:
    """Of any entry, relative to the largest of its tensor; infinite if the tensors are not the same ones.

    A gradient that is zero but for rounding, like a bias before batch norm has, is measured by the others of its kind.
    """
    if one.keys() != two.keys():
        return float("inf")
    largest: dict[str, float] = {}
    for key, value in one.items():
        kind = key.split()[0]
        largest[kind] = max(largest.get(kind, 0.0), float(value.abs().max()))
    differences = [
        float((two[key] - value).abs().max()) / max(float(value.abs().max()), FLOOR * largest[key.split()[0]], 1e-6)
        for key, value in one.items()
    ]
    return max((value if value == value else float("inf") for value in differences), default=0.0)


def on_two_processes(names: Iterable[str], backend: str, folder: Path) -> dict[str, Examined]:
    """`examine` of these methods, in two processes with a half each, on two cards by nccl or on the CPU by gloo."""
    spawn(_joined, args=(list(names), backend, folder), nprocs=WORLD)  # type: ignore[no-untyped-call]
    result: dict[str, Examined] = torch.load(folder / "terms.pt", weights_only=True)
    return result


def _joined(rank: int, names: list[str], backend: str, folder: Path) -> None:
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    meeting = f"file://{folder.absolute()}/meeting"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=WORLD, timeout=LONGEST)
    result = {name: examine(name, device, rank=rank) for name in names}
    if rank == 0:
        torch.save(result, folder / "terms.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may abort when Python is taken apart under them
