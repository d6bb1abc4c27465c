"""Save snapshots of a teacher from any training loop, and load them again. Needs torch and safetensors alone.

    snapshots = Snapshots("teacher-states", total_steps=epochs * len(loader))
    …
        optimizer.step()
        snapshots(teacher, step)  # number of finished optimizer steps
    …
    early.load_state_dict(load_state("teacher-states", "15%"))

The folder holds manifest.json and snapshots/<state>.safetensors, in the layout of `asd teach`.
"""

import hashlib
import json
import operator
import re
import warnings
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from antishortcut.errors import UserError, first_line, short_repr, suggest
from antishortcut.fileio import atomic_write, sha256

KEEP = (2, 5, 10, 15, 20, 30, 50, 75, 100)  # percent of training, as `asd teach` saves


class Snapshots:
    """Saves a model at given percentages of its training: call `snapshots(model, step)` after every optimizer step.

    folder: where the files go. total_steps: optimizer steps of the whole training; each folder is tied to one value,
    and a different one raises a UserError. keep: percentages (15, not 0.15; below one percent as "0.5%"). The end is
    always saved; 0 is the untrained model: call `snapshots(model, 0)` before the first step.

    A resumed loop has nothing to restore: the folder knows what was saved. Reaching a step again replaces its snapshot
    and drops later ones, so all listed snapshots led to the last one.

    A loop that runs past total_steps is warned once; `snapshots.finish(model)` after the loop saves its last state as
    "final". Under DDP all ranks may call and rank 0 writes. Sharded models (FSDP) are not supported.
    """

    def __init__(self, folder: str | Path, total_steps: int, keep: Iterable[float | str] = KEEP) -> None:
        if isinstance(keep, str) or not isinstance(keep, Iterable):
            raise TypeError(f"keep must be a list of percentages, like [15, 50], not {short_repr(keep)}")
        self.folder, self.total_steps = Path(folder), _integer(total_steps, "total_steps", minimum=1)
        self.schedule: dict[int, list[str]] = {}  # step → labels of the snapshots taken there
        for percent in sorted({*(_percent(value, "keep") for value in keep), 100.0}):
            step = max(round(percent / 100 * self.total_steps), 1) if percent else 0
            self.schedule.setdefault(step, []).append(f"{percent:g}%")
        self.schedule[self.total_steps].append("final")
        self._step: int | None = None  # of the last call
        self._labels: list[str] = []  # scheduled at that call
        self._warned = False
        self._entries()  # a folder of another training is refused before the first step

    def __call__(self, model: nn.Module, step: int) -> Path | None:
        """Save the model if a snapshot is scheduled at `step`, or was since the last call. Returns its file, if so."""
        _check_module(model)
        step = _integer(step, "step", minimum=0)
        if step == self._step:  # called for every micro-batch: nothing has changed
            return None
        if step > self.total_steps and not self._warned and _is_rank0():
            self._warned = True
            warnings.warn(
                f"step {step} is past total_steps={self.total_steps}: the percentages in {self.folder} refer to "
                f"{self.total_steps} steps; call finish(model) after the loop to save its last state as 'final'",
                stacklevel=2,
            )
        self._labels, self._step = self._scheduled(step), step
        return self._save(model)

    def finish(self, model: nn.Module) -> Path | None:
        """Save the state as "final" when a loop ends before or after total_steps; otherwise it is already there."""
        _check_module(model)
        if self._step is None or "final" in self._labels:
            return None
        self._labels = [*self._labels, *(["100%"] if self._step > self.total_steps else []), "final"]
        return self._save(model)

    def _scheduled(self, step: int) -> list[str]:
        """Labels scheduled since the last call; at the first call, the latest one since the last saved snapshot."""
        if self._step is not None and self._step <= step:
            return [label for at, labels in self.schedule.items() if self._step < at <= step for label in labels]
        last = max((entry["step"] for entry in self._entries() if entry["step"] < step), default=0)
        late = [at for at in self.schedule if last < at <= step or at == step]
        return list(self.schedule[max(late)]) if late else []

    def _save(self, model: nn.Module) -> Path | None:
        if not self._labels or self._step is None or not _is_rank0():
            return None
        known = self._entries()
        taken = {*self._labels, "final"}
        earlier = [
            old | {"labels": [label for label in old["labels"] if label not in taken]}
            for old in known
            if old["step"] < self._step
        ]
        earlier = [old for old in earlier if old["labels"]]
        names = [f"{label}.safetensors" for label in sorted(self._labels, key=lambda label: label != "final")]
        file = next(name for name in names if all(old["file"] != name for old in earlier))
        data: bytes = save(_state(model))
        entry = {
            "labels": self._labels,
            "step": self._step,
            "fraction": min(self._step / self.total_steps, 1.0),
            "file": file,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        if any(old["file"] == file for old in known):  # at no moment a file is listed that is another one by then
            self._write_manifest(earlier)
        with atomic_write(self.folder / "snapshots" / file) as target:
            target.write(data)
        self._write_manifest([*earlier, entry])
        return self.folder / "snapshots" / file

    def _write_manifest(self, entries: list[dict[str, Any]]) -> None:
        tree = {"total_steps": self.total_steps, "states": entries}
        with atomic_write(self.folder / "manifest.json") as target:
            target.write((json.dumps(tree, indent=1) + "\n").encode())

    def _entries(self) -> list[dict[str, Any]]:
        """The manifest's entries, which must be of a training of the same length."""
        total, entries = _read_manifest(self.folder)
        if entries and total != self.total_steps:
            raise UserError(
                f"{self.folder} holds snapshots of a training with total_steps={total}, this one has "
                f"total_steps={self.total_steps}; pass {total} to resume it, use another folder, or remove this one"
            )
        return entries


def load_state(folder: str | Path, state: str | float = "final") -> dict[str, Tensor]:
    """The weights of a snapshot on the CPU: "15%" (or 15) or "final". A damaged file raises a UserError."""
    folder = Path(folder)
    entries = {label: entry for entry in _read_manifest(folder)[1] for label in entry["labels"]}
    if not entries:
        raise UserError(f"{folder} holds no snapshots; antishortcut.Snapshots saves them while a model is trained")
    if "100%" in entries:
        entries.setdefault("final", entries["100%"])
    if not isinstance(state, str):
        state = f"{_percent(state, 'state'):g}%"
    if state not in entries:
        ended = "training has not finished (if it was stopped: Snapshots.finish); " if state == "final" else ""
        raise UserError(f"{folder} has no snapshot {state!r}: {ended}{suggest(state, entries).removeprefix('; ')}")
    path = folder / "snapshots" / entries[state]["file"]
    try:
        if sha256(path) != entries[state]["sha256"]:
            raise ValueError("its checksum is wrong")
        return dict(load(path.read_bytes()))
    except Exception as error:
        raise UserError(f"{path} is missing or damaged ({first_line(error)}); restore it, or train again") from None


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif isinstance(compiled := getattr(model, "_orig_mod", None), nn.Module):
            model = compiled
        else:
            return model


def check_entries(entries: Any) -> list[dict[str, Any]]:
    """Validate the entries of a manifest: labels, step, checksum, and a file name without a path."""
    if not isinstance(entries, list):
        raise ValueError("'states' is not a list")
    for entry in entries:
        labels, step, file = (entry.get(key) for key in ("labels", "step", "file"))
        if not (isinstance(labels, list) and labels and all(isinstance(label, str) for label in labels)):
            raise ValueError("an entry has no labels")
        if type(step) is not int or step < 0 or not isinstance(entry.get("sha256"), str):
            raise ValueError("an entry has no step or checksum")
        if not isinstance(file, str) or file in (".", "..") or not re.fullmatch(r"[^/\\\0]{1,200}", file):
            raise ValueError("an entry's file is not inside the folder")
    return entries


def _read_manifest(folder: Path) -> tuple[int | None, list[dict[str, Any]]]:
    """total_steps and the entries; (None, []) when there is no manifest."""
    path = folder / "manifest.json"
    if not path.exists():
        return None, []
    try:
        tree = json.loads(path.read_text())
        return tree.get("total_steps"), check_entries(tree["states"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is damaged; restore it, or remove {folder} and train again") from None


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers on the CPU, each with its own memory (tied weights share theirs)."""
    sharded = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    state = {} if sharded else unwrap(model).state_dict()  # state_dict() of FSDP would wait for the other ranks
    if sharded or any(hasattr(value, "full_tensor") for value in state.values()):
        raise UserError("Snapshots does not support sharded models: this process has only a part of each tensor")
    return {
        key.replace("_orig_mod.", ""): value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in state.items()
    }


def _is_rank0() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _percent(value: object, name: str) -> float:
    """15 or "15%"; 0.15 could mean either and is refused."""
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?%", value):
        number = float(value[:-1])
    elif isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        if 0 < number < 1:
            raise ValueError(f"{name} is in percent: write {100 * number:g} for {100 * number:g} %, or '{number:g}%'")
    else:
        error = ValueError if isinstance(value, str) else TypeError
        raise error(f"{name} takes percentages of training, like 15, not {short_repr(value)}")
    if not 0 <= number <= 100:
        raise ValueError(f"{name} must be between 0 and 100 percent, not {number:g}")
    return number


def _integer(value: object, name: str, minimum: int) -> int:
    """A number of steps: an int, an integer of numpy or torch, or a float like 20.0."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer number of optimizer steps, not {short_repr(value)}") from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {short_repr(number)}")
    return number


def _check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module (not its state_dict), not a {type(model).__name__}")
