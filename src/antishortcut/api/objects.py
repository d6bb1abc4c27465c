"""Python objects among the arguments → names and files, which recipes and run folders can hold."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from antishortcut.training.pipeline import Session

WEIGHTS, DATA = "weights", "data"  # folders below runs/


def named(
    pair: dict[str, Any], session: Session, overrides: Iterable[str] = (), unlabelled: bool = False
) -> dict[str, Any]:
    """The arguments of a plan with names in place of modules and data sets.

    A teacher that is a module is trained already: its weights are written to a file, as are those of an early state.
    """
    complete = all(pair[key] is not None for key in ("data", "teacher", "student"))  # else it is refused soon
    if not complete or all(value is None or isinstance(value, str | int | Path) for value in pair.values()):
        return pair
    from antishortcut.models.user_models import register

    pair = dict(pair)
    for who in ("teacher", "student"):
        module = pair[who]
        if module is None or isinstance(module, str):
            continue
        module = _module(module, who)
        if not hasattr(module, "pretrained_cfg") and not any(text.startswith(f"{who}.mean=") for text in overrides):
            text = f"{who} {type(module).__name__}: images are normalised by ImageNet's mean and std"
            session.say(f"{text}; {who}.mean and {who}.std change that")
        given = who == "teacher" and pair["final"] is not None
        pair[who] = register(module, weights=not given)
        if who == "teacher" and not given:
            pair["final"] = module
    for state in ("final", "early"):
        if pair[state] is not None and not isinstance(pair[state], str | Path):
            pair[state] = str(write_weights(_module(pair[state], state), session.runs))
    if pair["data"] is not None and not isinstance(pair["data"], str | Path):
        from antishortcut.data.from_torch import write_folder

        pair["data"] = f"folder:{write_folder(pair['data'], session.runs / DATA, session.quiet, not unlabelled)}"
    return pair


def audited(final: Any, early: list[Any], model: Any, data: Any, session: Session) -> tuple[Any, list[str], Any, Any]:
    """The arguments of an audit with names and files in place of objects; a final module is the model too."""
    from torch import nn

    from antishortcut.models.user_models import register

    if isinstance(final, nn.Module) and model is None:
        model = final
    if isinstance(model, nn.Module):
        model = register(_module(model, "model"), weights=False)
    states = [write_weights(_module(x, "early"), session.runs) if isinstance(x, nn.Module) else x for x in early]
    if isinstance(final, nn.Module):
        final = write_weights(_module(final, "final"), session.runs)
    if data is not None and not isinstance(data, str | Path):
        from antishortcut.data.from_torch import write_folder

        data = f"folder:{write_folder(data, session.runs / DATA, session.quiet)}"
    return final, [str(state) for state in states], model, data


def register_again(runs: Path, run: Any, student: nn.Module | None, teacher: nn.Module | None) -> None:
    """The objects of a run that was trained in another session."""
    from antishortcut.models.user_models import register
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


def write_weights(module: nn.Module, runs: Path) -> Path:
    """A file of weights that is named by its content."""
    import hashlib

    from safetensors.torch import save

    from antishortcut.fileio import atomic_write
    from antishortcut.teachers.trajectory import cpu_tensors

    data: bytes = save(cpu_tensors(module))
    path = runs / WEIGHTS / f"{type(module).__name__}-{hashlib.sha256(data).hexdigest()[:10]}.safetensors"
    if not path.exists():
        with atomic_write(path) as file:
            file.write(data)
    return path
