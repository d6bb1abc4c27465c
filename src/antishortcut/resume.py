"""Where a run goes on after it was stopped: the state of a step, whole or not there."""

from __future__ import annotations

import hashlib
import io
import shutil
from pathlib import Path
from typing import Any

import torch

from antishortcut.errors import UserError
from antishortcut.folder import replacing

KEPT = 2  # the newest state, and the one before it in case the newest is damaged


def save_state(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write the state of a step as resume/<step>-<checksum>.pt, then let go of the oldest."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getvalue()
    with replacing(folder / f"{step:09d}-{_digest(data)}.pt") as file:
        file.write(data)
    for path in sorted(folder.glob("*.pt"))[:-KEPT]:
        path.unlink(missing_ok=True)


def load_state(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """The newest state whose checksum is right, None when there is none at all."""
    paths = sorted(folder.glob("*.pt"), reverse=True)
    for path in paths:
        step, _, digest = path.stem.partition("-")
        data = path.read_bytes()
        if _digest(data) == digest:
            return int(step), torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if paths:
        raise UserError(f"{folder}: every saved state is damaged; remove {folder.parent} to start again")
    return None


def clear_states(folder: Path) -> None:
    """A finished run needs no state."""
    shutil.rmtree(folder, ignore_errors=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
