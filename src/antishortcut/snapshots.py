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
import operator
import os
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

from antishortcut.errors import UserError, first_line, near, shown
from antishortcut.files import replacing, sha256, text

KEEP = (2, 5, 10, 15, 20, 30, 50, 75, 100)  # per cent of training: what `asd teach` keeps

STEPS = 10**18  # more than anybody takes


class Snapshots:
    """Keeps the states of a model at given shares of its training: `snapshots(model, step)` after every step.

    folder: where they go. total_steps: optimiser steps of the whole training. keep: the shares, in per cent (15, not
    0.15; what is less than one as "0.5%"); the end is always kept, and 0 is the untrained model: `snapshots(model, 0)`
    before the first step.

    What was kept is known by the folder alone, so a loop that resumes has nothing to restore. A state that is reached
    again replaces the old one, and later ones are forgotten: all that are listed led to the last. A folder is of one
    total_steps, which its manifest tells; another is a UserError, because the names would mean other shares.

    A loop that goes on after total_steps is warned once. Its final state is that of total_steps until
    `snapshots.finish(model)`, after the loop, puts the last one in its place; the other shares stay of total_steps.

    Of several processes all may call, the first one writes. Not for sharded models (FSDP), of which no process has the
    whole.
    """

    def __init__(self, folder: str | Path, total_steps: int, keep: Iterable[float | str] = KEEP) -> None:
        self.folder, self.total_steps = Path(folder), _whole(total_steps, "total_steps", least=1)
        self.due: dict[int, list[str]] = {}  # after how many steps → which states
        for share in sorted({*_shares(keep), 100.0}):
            step = max(round(share / 100 * self.total_steps), 1) if share else 0
            self.due.setdefault(step, []).append(f"{share:g}%")
        self.due[self.total_steps].append("final")
        self._step: int | None = None  # of the last call
        self._labels: list[str] = []  # what was due then
        self._warned = False
        self._known()  # refused before a step is trained

    def __call__(self, model: nn.Module, step: int) -> Path | None:
        """Keep the state after `step` steps if one is due, or was due since the last call; its file, if so."""
        _refuse_weights(model)
        step = _whole(step, "step", least=0)
        if step == self._step:  # called for every batch while gradients are accumulated: nothing has changed
            return None
        if step > self.total_steps and not self._warned and _first_process():
            self._warned = True
            warnings.warn(
                f"step {step} is past total_steps={self.total_steps}: the shares in {self.folder} are of "
                f"{self.total_steps} steps; call finish(model) after the loop to keep its last state as 'final'",
                stacklevel=2,
            )
        self._labels = self._due(step)
        self._step = step
        return self._keep(model)

    def _due(self, step: int) -> list[str]:
        """States that were due since the last call; at the first one, only the latest since the last that was kept."""
        if self._step is not None and self._step <= step:
            return [label for due, labels in self.due.items() if self._step < due <= step for label in labels]
        kept = max((known["step"] for known in self._known() if known["step"] < step), default=0)
        late = [due for due in self.due if kept < due <= step or due == step]
        return list(self.due[max(late)]) if late else []

    def finish(self, model: nn.Module) -> Path | None:
        """Keep the state as the final one where a loop ends before total_steps or after; otherwise it has been kept."""
        _refuse_weights(model)
        if self._step is None or "final" in self._labels:
            return None
        self._labels = [*self._labels, *(["100%"] if self._step > self.total_steps else []), "final"]
        return self._keep(model)

    def _keep(self, model: nn.Module) -> Path | None:
        if not self._labels or self._step is None or not _first_process():
            return None
        known = self._known()  # once more: another training may have begun here since
        path = self.folder / "snapshots" / f"{'final' if 'final' in self._labels else self._labels[0]}.safetensors"
        data: bytes = save(_state(model))
        entry = {
            "labels": self._labels,
            "step": self._step,
            "fraction": min(self._step / self.total_steps, 1.0),
            "file": path.name,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        with replacing(path) as file:
            file.write(data)
            before = [_apart(each, path) for each in self._before(known)]
            if any(each["file"] == path.name for each in known):
                self._list(before)  # killed before the next lines are done, no file is listed that is another by now
        self._list([*before, entry])
        return path

    def _known(self) -> list[dict[str, Any]]:
        """The states in the folder, which must be of a training of as many steps."""
        states, totals = _listed(self.folder)
        if totals - {self.total_steps}:
            told = " and ".join(f"total_steps={total}" for total in sorted(totals))
            same = f"give {told} to go on with it (finish keeps a later end), " if len(totals) == 1 else ""
            raise UserError(
                f"{self.folder} holds states of a training of {told}, this one has total_steps={self.total_steps}: the "
                f"same share would be another step; {same}name another folder, or remove this one"
            )
        return states

    def _before(self, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """States that led to the present one, without the names it takes; what an earlier end was is none any more."""
        taken = {*self._labels, "final"}
        named = [each | {"labels": [label for label in each["labels"] if label not in taken]} for each in known]
        return [each for each in named if each["labels"] and each["step"] < (self._step or 0)]

    def _list(self, states: list[dict[str, Any]]) -> None:
        told = {"total_steps": self.total_steps, "states": states}
        with replacing(self.folder / "manifest.json") as file:
            file.write((json.dumps(told, indent=1) + "\n").encode())


Trajectory = Snapshots  # what they are together


def load_state(folder: str | Path, state: str | float = "final") -> dict[str, Tensor]:
    """The weights of a kept state, "15%" (or 15, in per cent) or "final", on the CPU.

    A file that is not as it was saved is refused.
    """
    folder = Path(folder)
    known = {label: entry for entry in _listed(folder)[0] for label in entry["labels"]}
    if not known:
        raise UserError(f"{folder} holds no states; antishortcut.Snapshots keeps them while a model is trained")
    known.setdefault("final", known.get("100%", {}))  # how `asd teach` calls it
    there = [label for label, entry in known.items() if entry]
    if not isinstance(state, str):
        try:
            state = f"{_per_cent(state, 'state'):g}%"
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}; {folder} kept {', '.join(there)}") from None
    if not known.get(state):
        ended = "training has not ended (if it was stopped: Snapshots.finish); " if state == "final" else ""
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


def _listed(folder: Path) -> tuple[list[dict[str, Any]], set[int]]:
    """The states of a folder, and of how many steps their trainings were, as far as it tells."""
    path = folder / "manifest.json"
    try:
        tree = json.loads(text(path)) if path.exists() else {"states": []}
        states = checked(tree["states"])
        return states, _totals(tree.get("total_steps"), states)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path} is damaged; restore it, or remove {folder} and train again") from None


def _totals(total: object, states: list[dict[str, Any]]) -> set[int]:
    """Steps of the trainings that states are of; older manifests tell them by each state's share alone."""
    if type(total) is int:
        return {total} if states else set()
    shares = [(each["step"], each.get("fraction")) for each in states]
    return {
        round(step / share) for step, share in shares if isinstance(share, int | float) and 1 / STEPS <= share <= STEPS
    }


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


def _shares(keep: Iterable[float | str]) -> list[float]:
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise TypeError(f"keep must be a list of shares in per cent, like [15, 50], not {shown(keep)}")
    return [_per_cent(share, "keep") for share in keep]


def _per_cent(share: object, name: str) -> float:
    """A share of training that was given as 15 or "15%"; 0.15 may mean either and is refused."""
    if isinstance(share, str) and re.fullmatch(r"\d+(\.\d+)?%", share):
        number = float(share[:-1])
    elif isinstance(share, Real) and not isinstance(share, bool):
        number = float(share)
        if 0 < number < 1:
            raise ValueError(
                f"{name} is in per cent: for {100 * number:g} % write {100 * number:g}, not {number:g} "
                f"(for {number:g} % the text '{number:g}%')"
            )
    else:
        wrong = ValueError if isinstance(share, str) else TypeError
        raise wrong(f"{name} takes shares of training in per cent, like 15, not {shown(share)}")
    if not 0 <= number <= 100:
        raise ValueError(f"{name} must be within 0 and 100 per cent, not {number:g}")
    return number


def _whole(number: object, name: str, least: int) -> int:
    """A number of steps, also of numpy or torch, or 20.0; what else was given is an error that names it."""
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    try:
        if isinstance(number, bool):
            raise TypeError
        whole = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be a whole number of optimiser steps, not {shown(number)}") from None
    if not least <= whole <= STEPS:
        raise ValueError(f"{name} must be at least {least} and at most {STEPS:.0e}, not {shown(whole)}")
    return whole


def _refuse_weights(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be the network itself (an nn.Module, not its state_dict), not a {type(model).__name__}"
        )


def _apart(entry: dict[str, Any], path: Path) -> dict[str, Any]:
    """The same state in a file of its own where it shared the one that is about to be replaced."""
    if entry["file"] != path.name:
        return entry
    own = path.with_name(f"{Path(entry['labels'][0]).name}.safetensors")
    if path.is_file():
        with replacing(own) as file:
            file.write(path.read_bytes())
    return entry | {"file": own.name}
