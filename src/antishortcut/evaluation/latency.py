"""Size and latency of a network compared with its teacher: one image at a time, in alternation."""

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from antishortcut.errors import UserError
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score
from antishortcut.hardware import processor
from antishortcut.models import Network
from antishortcut.teachers.trajectory import Teachers, Trajectory

NAME, TEACHER = "cost", "teacher_"
ROUNDS, FEWEST, WARM = 60, 5, 3
SECONDS = 20.0  # after which FEWEST rounds are enough: a DeepLab takes seconds per image on a CPU


def cost(context: EvalContext) -> Iterator[Score]:
    """Parameters, bytes of the weights, milliseconds per image. Measured again on another machine."""
    yield Score(NAME, f"{context.sets.image_size} pixels", _score, complete=_measured_here)


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    rounds: int = ROUNDS,
    warm: int = WARM,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every call in every round, in alternating order, so that a disturbance affects all.

    The first `warm` rounds do not count; after `seconds`, FEWEST rounds are enough.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin = clock()
    for number in range(-warm, rounds):
        if number >= FEWEST and clock() - begin > seconds:
            break
        for name in list(calls)[:: -1 if number % 2 else 1]:
            start = clock()
            calls[name]()
            if number >= 0:
                times[name].append(clock() - start)
    return times


def _score(evaluated: EvaluatedRun) -> Mapping[str, Any]:
    folder, device, teachers = evaluated.folder, evaluated.device, _teachers(evaluated)
    side, trajectory = evaluated.context.sets.image_size, Trajectory(folder)
    own = folder.snapshots / trajectory.entry(evaluated.state)["file"] if trajectory.entries else folder.student
    networks, files = {"": evaluated.network}, {"": own}
    if teachers is not None:
        networks[TEACHER] = teachers.network("final")
        home, entry = teachers.state("final")
        files[TEACHER] = home.snapshots / entry["file"]
    image = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device)
    times = interleaved({who: partial(_infer, each.to(device), image, device) for who, each in networks.items()})
    values: dict[str, float] = {}
    for who, network in networks.items():
        values[f"{who}ms"] = 1e3 * median(times[who])
        values[f"{who}parameters"] = sum(parameter.numel() for parameter in network.parameters())
        values[f"{who}bytes"] = files[who].stat().st_size
    if teachers is not None:
        values["times_faster"] = median(t / s for s, t in zip(times[""], times[TEACHER], strict=True))
    return {"count": len(times[""]), "values": values, "machine": _machine(device), "image_size": side}


def _infer(network: Network, image: Tensor, device: str) -> None:
    with torch.inference_mode():
        network(image)
    if device != "cpu":
        torch.accelerator.synchronize()


def _teachers(evaluated: EvaluatedRun) -> Teachers | None:
    """Those of a student, if their final state is here."""
    sets = evaluated.context.sets
    teachers = Teachers(evaluated.run, evaluated.context.runs, len(sets.classes), sets.image_size)
    try:
        teachers.state("final")
    except UserError:  # a teacher has none; that of a student may be elsewhere
        return None
    return teachers


def _measured_here(evaluated: EvaluatedRun) -> bool:
    score = evaluated.folder.score(NAME + evaluated.suffix) or {"values": {}}
    compared = _teachers(evaluated) is None or f"{TEACHER}ms" in score["values"]
    return compared and score.get("machine") == _machine(evaluated.device)


def _machine(device: str) -> str:
    threads = torch.get_num_threads()
    own = torch.cuda.get_device_name() if device == "cuda" else f"{processor()}, {threads} thread{'s' * (threads > 1)}"
    return f"{own}, {device}, float32, torch {torch.__version__}"
