"""Where a run goes on after it was stopped: the state of a step, whole or not there."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from antishortcut.errors import UserError
from antishortcut.fileio import atomic_write, content
from antishortcut.run_dir import RunDir

State = dict[str, Any]
Found = tuple[int, State]  # with its step
KEPT = 2  # the newest state, and the one before it in case the newest is damaged


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write the state of a step as resume/<step>-<checksum>.pt, then let go of the oldest."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    with atomic_write(folder / f"{step:09d}-{_digest(data)}.pt", parents=False) as file:
        file.write(data)
    for path in sorted(folder.glob("*.pt"))[:-KEPT]:
        path.unlink(missing_ok=True)


def try_save_checkpoint(folder: RunDir, step: int, state: dict[str, Any], say: Callable[[str], None]) -> None:
    """Save a state and what was logged before it. A disk that fails for a while ends no training: it is tried again."""
    try:
        folder.settle()
        save_checkpoint(folder.path / "resume", step, state)
    except OSError as error:
        say(f"step {step} could not be saved ({reason(error)}); {saved_step(folder)}; training goes on and tries again")


@contextmanager
def require_disk(folder: RunDir) -> Iterator[None]:
    """Writing without which a run cannot end well: where it fails, a line says what is left."""
    try:
        folder.settle()
        yield
    except OSError as error:
        raise UserError(
            f"{folder.path}: {reason(error)}; {saved_step(folder)}; make room there and give the same command again"
        ) from None


def saved_step(folder: RunDir) -> str:
    """What would be gone on from."""
    states = sorted((folder.path / "resume").glob("*.pt"))
    return f"the state after step {int(states[-1].name[:9])} is kept" if states else "no state was saved yet"


def reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def load_checkpoint(folder: Path, run: str | None = None) -> Found | None:
    """The newest state whose checksum is right and that is of this run (its hash); None if there is no state."""
    paths, wrong = sorted(folder.glob("*.pt"), reverse=True), ""
    for path in paths:
        step, _, digest = path.stem.partition("-")
        try:
            data = content(path, None)
            if step.isdecimal() and _digest(data) == digest:
                state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
                if isinstance(state, dict) and state.get("step", int(step)) != int(step):  # renamed
                    continue
                if isinstance(state, dict) and run is not None and state.get("run", run) != run:
                    wrong = f"{path}: a state of another run; remove {folder.parent} to start again"
                elif isinstance(state, dict):
                    return int(step), state
        except OSError as error:
            wrong = f"{path}: cannot be read ({reason(error)}); see to its disk, then give the same command again"
        except Exception:  # what is no state can make torch raise anything; the one before may do
            continue
    if paths:
        raise UserError(wrong or f"{folder}: every saved state is damaged; remove {folder.parent} to start again")
    return None


def refuse_unsound(state: State, step: int, last: int) -> None:
    """A ValueError where the plain values of a state are not of the kinds that training puts there."""
    seconds = state["seconds"]
    sound = (
        step <= last
        and all(isinstance(state.get(name, {}), dict) for name in ("last", "best", "raw", "meter"))
        and all(isinstance(value, Tensor) and value.numel() == 1 for value in state["meter"].values())
        and all(isinstance(other, dict) for other in state.get("others", []))
        and isinstance(seconds, int | float)
        and abs(seconds) < 1e12
    )
    if not sound:
        raise ValueError("no state of this training")


def restore_optimizer(optimizer: Optimizer, state: State) -> None:
    """Give an optimiser the state it had; one of other settings, or of other weights, is a ValueError."""
    own = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, before in zip(optimizer.param_groups, own, strict=True):
        if any(group.get(key, value) != value for key, value in before.items() if key != "lr"):  # set before each step
            raise ValueError("settings of another optimiser")
        for weight in group["params"]:
            for value in optimizer.state.get(weight, {}).values():
                if value is not None and (not isinstance(value, Tensor) or value.shape not in (weight.shape, ())):
                    raise ValueError("averages of other weights")


def drop_later_checkpoints(folder: Path, step: int) -> None:
    """Let go of states after a step: they were found damaged, and would count as the newest."""
    for path in folder.glob("*.pt"):
        name = path.name[:9]
        if not name.isdecimal() or int(name) > step:
            path.unlink(missing_ok=True)


def clear_checkpoints(folder: Path) -> None:
    """A finished run needs no state."""
    shutil.rmtree(folder, ignore_errors=True)


def is_finished(folder: RunDir) -> bool:
    """Whether a run is finished; the states of one that was killed as it ended are cleared."""
    if folder.finished:
        clear_checkpoints(folder.path / "resume")
    return folder.finished


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
