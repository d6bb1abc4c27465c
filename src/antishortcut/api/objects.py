"""Python objects among the arguments → names and files, which recipes and run folders can hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.errors import UserError

if TYPE_CHECKING:
    from torch import nn

WEIGHTS, DATA = "weights", "data"  # folders below runs/


def named(pair: dict[str, Any], runs: Path, quiet: bool) -> dict[str, Any]:
    """The arguments of a plan with names in place of modules and data sets.

    A teacher that is a module is trained already: its weights are written to a file, as are those of an early state.
    """
    if all(value is None or isinstance(value, str | int | Path) for value in pair.values()):
        return pair
    from antishortcut.models.live import register

    pair = dict(pair)
    for who in ("teacher", "student"):
        module = pair[who]
        if module is None or isinstance(module, str):
            continue
        module = _module(module, who)
        given = who == "teacher" and pair["final"] is not None
        pair[who] = register(module, weights=not given)
        if who == "teacher" and not given:
            pair["final"] = module
    for state in ("final", "early"):
        if pair[state] is not None and not isinstance(pair[state], str | Path):
            pair[state] = str(_write_weights(_module(pair[state], state), runs / WEIGHTS))
    if pair["data"] is not None and not isinstance(pair["data"], str | Path):
        from antishortcut.data.from_torch import write_folder

        pair["data"] = f"folder:{write_folder(pair['data'], runs / DATA, quiet)}"
    return pair


def register_again(runs: Path, run: Any, student: nn.Module | None, teacher: nn.Module | None) -> None:
    """The objects of a run that was trained in another session."""
    from antishortcut.models.live import register
    from antishortcut.run_dir import RunDir

    if student is not None:
        register(_module(student, "student"), name=run.model.name)
    if teacher is not None and run.teacher is not None:
        settings, _ = RunDir(runs / "teachers" / run.teacher).read()
        register(_module(teacher, "teacher"), name=settings.model.name)


def _module(value: Any, what: str) -> nn.Module:
    from torch import nn

    from antishortcut.teachers.snapshots import unwrap

    if not isinstance(value, nn.Module):
        kind = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise UserError(f"{what} is {kind}; pass an nn.Module, or a name like timm:resnet50")
    return unwrap(value)


def _write_weights(module: nn.Module, folder: Path) -> Path:
    """A file of weights that is named by its content."""
    import hashlib

    from safetensors.torch import save

    from antishortcut.fileio import atomic_write
    from antishortcut.teachers.trajectory import cpu_tensors

    data: bytes = save(cpu_tensors(module))
    path = folder / f"{type(module).__name__}-{hashlib.sha256(data).hexdigest()[:10]}.safetensors"
    if not path.exists():
        with atomic_write(path) as file:
            file.write(data)
    return path
