"""Scores of a finished run, and its data if they are still there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.config.recipe import Run
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir

if TYPE_CHECKING:
    from antishortcut.training.pipeline import Session
    from antishortcut.types import DataSplits


def flat_scores(scores: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """(set, score) → value."""
    flat = {}
    for name, score in scores.items():
        source = f" ({score['source']})" if "source" in score else ""
        for key, value in score["values"].items():
            for inner, number in value.items() if isinstance(value, dict) else [("", value)]:
                flat[name + source, f"{key} {inner}".strip()] = number
    return flat


def numbers(scores: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{set: {score: number}}."""
    result: dict[str, dict[str, Any]] = {}
    for (name, score), value in flat_scores(scores).items():
        result.setdefault(name, {})[score] = value
    return result


def score_run(
    path: Path, runs: Path | None, session: Session, names: list[str], images: dict[str, Path], device: str
) -> dict[str, dict[str, Any]]:
    from antishortcut.evaluation import evaluate as evaluate_run
    from antishortcut.evaluation.context import EvalContext

    folder, parent = RunDir(path), runs or path.resolve().parent.parent
    root: dict[str, Any] = {"root": session.root} if session.root else {}
    context = EvalContext(session.sets(folder.read()[0].data), parent, at=images, quiet=False, **root)
    return evaluate_run(folder, context, names, device=device)


def own_sets(run: Run, session: Session) -> DataSplits | None:
    """The run's own data, if they are available."""
    try:
        sets = session.sets(run.data)
        if sets.fingerprint == run.fingerprint:
            return sets
        reason = "those here are not the ones it was trained on"
    except UserError as error:
        reason = str(error)
    session.say(f"Note: without its data ({reason}) it is checked on noise, and its classes have no names")
    return None
