"""States of a teacher, kept from anyone's training loop, and read again. Needs torch and safetensors alone.

    snapshots = Snapshots("teacher-states", total_steps=epochs * len(loader))
    …
        optimizer.step()
        snapshots(teacher, step)  # how many steps are done
    …
    early.load_state_dict(load_state("teacher-states", "15%"))

A folder holds manifest.json and snapshots/<state>.safetensors, laid out as those of `asd teach` are.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from antishortcut.errors import UserError, first_line, near
from antishortcut.files import sha256, text

KEEP = (2, 5, 10, 15, 20, 30, 50, 75, 100)  # per cent of training: what `asd teach` keeps

STEPS = 10**18  # more than anybody takes


class Snapshots:
    """Keeps the states of a model at given shares of its training: `snapshots(model, step)` after every step.

    folder: where they go. total_steps: optimiser steps of the whole training. keep: the shares, in per cent; the end is
    always kept, and 0 is the untrained model: `snapshots(model, 0)` before the first step.

    What was kept is known by the folder alone, so a loop that resumes has nothing to restore. A state that is reached
    again replaces the old one, and later ones are forgotten: all that are listed led to the last. Of several processes
    all may call, the first one writes. Not for sharded models (FSDP), of which no process has the whole.
    """

    def __init__(self, folder: str | Path, total_steps: int, keep: Iterable[float] = KEEP) -> None:
        shares = sorted({*keep, 100})
        if total_steps < 1 or shares[0] < 0 or shares[-1] > 100:
            raise ValueError(f"total_steps must be at least 1, keep within 0 and 100, not {total_steps} and {shares}")
        self.folder, self.total_steps = Path(folder), total_steps
        self.due: dict[int, list[str]] = {}  # after how many steps → which states
        for share in shares:
            step = max(round(share / 100 * total_steps), 1) if share else 0
            self.due.setdefault(step, []).append(f"{share:g}%")
        self.due[total_steps].append("final")
        self._step: int | None = None  # of the last call
        self._labels: list[str] = []  # what was due then

    def __call__(self, model: nn.Module, step: int) -> Path | None:
        """Keep the state after `step` steps if one is due, or was due since the last call; its file, if so."""
        if step == self._step:  # called for every batch while gradients are accumulated: nothing has changed
            return None
        self._labels = self._due(step)
        self._step = step
        return self._keep(model)

    def _due(self, step: int) -> list[str]:
        """States that were due since the last call; at the first one, only the latest since the last that was kept."""
        if self._step is not None and self._step <= step:
            return [label for due, labels in self.due.items() if self._step < due <= step for label in labels]
        kept = max((known["step"] for known in _states(self.folder) if known["step"] < step), default=0)
        late = [due for due in self.due if kept < due <= step or due == step]
        return list(self.due[max(late)]) if late else []

    def finish(self, model: nn.Module) -> Path | None:
        """Keep the state as the final one where a loop ends before total_steps; otherwise it has been kept."""
        if self._step is None or self._step >= self.total_steps or "final" in self._labels:
            return None
        self._labels = [*self._labels, "final"]
        return self._keep(model)

    def _keep(self, model: nn.Module) -> Path | None:
        if not self._labels or self._step is None or not _first_process():
            return None
        path = self.folder / "snapshots" / f"{'final' if 'final' in self._labels else self._labels[0]}.safetensors"
        data: bytes = save(_state(model))
        _replace(path, data)
        entry = {
            "labels": self._labels,
            "step": self._step,
            "fraction": self._step / self.total_steps,
            "file": path.name,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        others = [known for known in _states(self.folder) if not set(known["labels"]) & set(self._labels)]
        states = [known for known in others if known["step"] < self._step] + [entry]
        _replace(self.folder / "manifest.json", (json.dumps({"states": states}, indent=1) + "\n").encode())
        return path


Trajectory = Snapshots  # what they are together


def load_state(folder: str | Path, state: str = "final") -> dict[str, Tensor]:
    """The weights of a kept state, "15%" or "final", on the CPU; a file that is not as it was saved is refused."""
    folder = Path(folder)
    known = {label: entry for entry in _states(folder) for label in entry["labels"]}
    if not known:
        raise UserError(f"{folder} holds no states; antishortcut.Snapshots keeps them while a model is trained")
    known.setdefault("final", known.get("100%", {}))  # how `asd teach` calls it
    if not known.get(state):
        ended = "training has not ended (if it was stopped: Snapshots.finish); " if state == "final" else ""
        there = [label for label, entry in known.items() if entry]
        raise UserError(f"{folder} kept no state {state!r}: {ended}{near(state, there).removeprefix('; ')}")
    path = folder / "snapshots" / known[state]["file"]
    if not os.path.isfile(path) or _digest(path) != known[state]["sha256"]:
        raise UserError(f"{path} is missing or damaged; restore it, or train again")
    try:
        return dict(load(path.read_bytes()))
    except Exception as error:  # of a file that was something else when it was listed
        raise UserError(f"{path} holds no weights ({first_line(error)}); train again") from None


def _digest(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def bare(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif isinstance(compiled := getattr(model, "_orig_mod", None), nn.Module):
            model = compiled
        else:
            return model


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers on the CPU, each with memory of its own (tied weights share theirs)."""
    sharded = any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules())
    state = {} if sharded else bare(model).state_dict()  # which would wait for the other processes
    if sharded or any(hasattr(value, "full_tensor") for value in state.values()):
        raise UserError("Snapshots keeps no sharded models: this process has only a part of each tensor")
    return {
        key.replace("_orig_mod.", ""): value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in state.items()  # a compiled part of a model has the wrapper's name in the middle
    }


def _first_process() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _states(folder: Path) -> list[dict[str, Any]]:
    path = folder / "manifest.json"
    try:
        return checked(json.loads(text(path))["states"]) if path.exists() else []
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path} is damaged; restore it, or remove {folder} and train again") from None


def checked(states: Any) -> list[dict[str, Any]]:
    """The lines of a manifest, each with what every reader asks it for; a ValueError where one is not."""
    if not isinstance(states, list):
        raise ValueError("its states are no list")
    for each in states:
        step = each.get("step") if isinstance(each, dict) else None
        good = type(step) is int and 0 <= step <= STEPS and isinstance(each.get("sha256"), str)
        labels, file = (each.get("labels"), each.get("file")) if good else (None, None)
        if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
            raise ValueError("a state without its names, step or checksum")
        if not isinstance(file, str) or not re.fullmatch(r"[^/\\\0]{1,200}", file) or file in (".", ".."):
            raise ValueError("a state whose file is not in its folder")
    return states


def _replace(path: Path, data: bytes) -> None:
    """Write a file that takes the place of the old one at once and whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
