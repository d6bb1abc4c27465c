"""Checkpoints of a running training: resume/<step>-<checksum>.pt, whole or not there."""

import hashlib
import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from antishortcut.errors import UserError
from antishortcut.fileio import atomic_write, content
from antishortcut.run_dir import RunDir

NEWEST = 2  # how many are left on disk: the last one, and the one before it in case the last is damaged


class Checkpoints:
    """The checkpoints of one run. As text: what there is to resume from."""

    def __init__(self, run_dir: RunDir, run_hash: str) -> None:
        self.run_dir, self.run_hash = run_dir, run_hash
        self.folder = run_dir.path / "resume"

    def __str__(self) -> str:
        paths = self.run_dir.checkpoints
        return f"the state after step {_step(paths[-1])} is saved" if paths else "no state was saved yet"

    def save(self, state: dict[str, Any], say: Callable[[str], None] | None = None) -> None:
        """Write the state of a step. With `say`, a disk that fails costs a line, and a later step tries again."""
        step, buffer = state["step"], io.BytesIO()
        torch.save(state | {"run": self.run_hash}, buffer)
        data = buffer.getvalue()
        try:
            self.run_dir.settle()
            with atomic_write(self.folder / f"{step:09d}-{_digest(data)}.pt", parents=False) as file:
                file.write(data)
        except OSError as error:
            if say is None:
                raise
            say(f"step {step} could not be saved ({reason(error)}); {self}; training continues and tries again")
            return
        for path in self.run_dir.checkpoints[:-NEWEST]:
            path.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """The newest checkpoint that is whole and of this run; None if there is none."""
        paths, problem = self.run_dir.checkpoints, ""
        for path in reversed(paths):
            try:
                data = content(path, None)
                if _digest(data) != path.stem.partition("-")[2]:
                    continue
                state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
                if state["step"] != _step(path):
                    continue
                if state["run"] == self.run_hash:
                    return state
                problem = f"{path}: a state of another run; remove {self.run_dir.path} to start again"
            except OSError as error:
                problem = f"{path}: cannot be read ({reason(error)}); check the disk, then run the same command again"
            except Exception:  # what is no checkpoint can make torch raise anything; the one before may do
                continue
        if paths:
            damaged = f"{self.folder}: every saved state is damaged; remove {self.run_dir.path} to start again"
            raise UserError(problem or damaged)
        return None

    def drop_after(self, step: int) -> None:
        """Remove damaged checkpoints of later steps, which would count as the newest."""
        for path in self.run_dir.checkpoints:
            if _step(path) > step:
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def require_disk(run_dir: RunDir) -> Iterator[None]:
    """Write what a run cannot end without: if the disk fails, one line says what is left."""
    try:
        run_dir.settle()
        yield
    except OSError as error:
        saved = Checkpoints(run_dir, "")
        raise UserError(f"{run_dir.path}: {reason(error)}; {saved}; make room and run the same command again") from None


def is_finished(run_dir: RunDir) -> bool:
    """Whether a run is finished; checkpoints of one that was killed as it ended are removed."""
    if run_dir.finished:
        shutil.rmtree(run_dir.path / "resume", ignore_errors=True)
    return run_dir.finished


def reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _step(path: Path) -> int:
    return int(path.name[:9])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
