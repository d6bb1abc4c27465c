"""Size and latency of a network beside its teacher's: one image at a time, one network after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from antishortcut.errors import UserError
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Examination, Scored
from antishortcut.hardware import processor
from antishortcut.models import Network
from antishortcut.run_dir import RunDir
from antishortcut.teachers.trajectory import Teachers, Trajectory

NAME, TEACHER = "cost", "teacher_"
ROUNDS, FEWEST, WARM = 60, 5, 3
SECONDS = 20.0  # after which few rounds are enough: a DeepLab takes seconds an image on a CPU
SYNCHRONIZE: dict[str, Callable[[], None]] = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}


def cost(bench: EvalContext) -> Iterator[Examination]:
    """Parameters, bytes of the weights, milliseconds an image. What was measured on another machine is done again."""
    yield Scored(NAME, f"{bench.sets.image_size} pixels", _score, made=_measured_here)


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    rounds: int = ROUNDS,
    warm: int = WARM,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every call, round by round, there and back: what disturbs one disturbs all.

    The first `warm` rounds do not count; when `seconds` are over, a few rounds are enough.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    begun = clock()
    for number in range(-warm, rounds):
        if number >= FEWEST and clock() - begun > seconds:
            break
        for name in list(calls)[:: -1 if number % 2 else 1]:
            start = clock()
            calls[name]()
            if number >= 0:
                taken[name].append(clock() - start)
    return taken


def _score(subject: EvaluatedRun) -> Mapping[str, Any]:
    sets, device, teachers = subject.bench.sets, subject.device, _teachers(subject)
    side = sets.image_size
    networks = {"": subject.network}
    files = {"": _weights(subject.folder, subject.state)}
    if teachers is not None:
        networks[TEACHER] = teachers.network("final")
        home, entry = teachers.state("final")
        files[TEACHER] = home.snapshots / entry["file"]
    image = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device)
    taken = interleaved({who: partial(_look, each.to(device), image, device) for who, each in networks.items()})
    values: dict[str, float] = {}
    for who, network in networks.items():
        values[f"{who}ms"] = 1e3 * median(taken[who])
        values[f"{who}parameters"] = sum(parameter.numel() for parameter in network.parameters())
        values[f"{who}bytes"] = files[who].stat().st_size
    if teachers is not None:
        values["times_faster"] = median(t / s for s, t in zip(taken[""], taken[TEACHER], strict=True))
    return {"count": len(taken[""]), "values": values, "machine": _machine(device), "image_size": side}


def _look(network: Network, image: Tensor, device: str) -> None:
    with torch.inference_mode():
        network(image)
    SYNCHRONIZE.get(device, lambda: None)()


def _teachers(subject: EvaluatedRun) -> Teachers | None:
    """Those of a student, where their final state is here."""
    sets = subject.bench.sets
    teachers = Teachers(subject.run, subject.bench.runs, len(sets.classes), sets.image_size)
    try:
        teachers.state("final")
    except UserError:  # a teacher has none; that of a student may lie elsewhere
        return None
    return teachers


def _weights(folder: RunDir, state: str) -> Path:
    trajectory = Trajectory(folder)
    return folder.snapshots / trajectory.entry(state)["file"] if trajectory.entries else folder.student


def _measured_here(subject: EvaluatedRun) -> bool:
    known = subject.folder.score(NAME + subject.mark) or {"values": {}}
    compared = _teachers(subject) is None or f"{TEACHER}ms" in known["values"]
    return compared and known.get("machine") == _machine(subject.device)


def _machine(device: str) -> str:
    """What the milliseconds depend on besides the networks."""
    threads = torch.get_num_threads()
    own = torch.cuda.get_device_name() if device == "cuda" else f"{processor()}, {threads} thread{'s' * (threads > 1)}"
    return f"{own}, {device}, float32, torch {torch.__version__}"
