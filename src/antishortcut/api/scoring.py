"""Scores of a finished run, and its data if they are still there."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.config.recipe import Run
from antishortcut.config.schema import DataSettings
from antishortcut.errors import UserError
from antishortcut.run_dir import RunDir

if TYPE_CHECKING:
    from antishortcut.evaluation.context import EvalContext
    from antishortcut.training.pipeline import Session
    from antishortcut.types import DataSplits


def numbers(scores: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{set: {score: number}}."""
    result: dict[str, dict[str, Any]] = {}
    for name, score in scores.items():
        source = f" ({score['source']})" if "source" in score else ""
        for key, value in score["values"].items():
            for inner, number in value.items() if isinstance(value, dict) else [("", value)]:
                result.setdefault(name + source, {})[f"{key} {inner}".strip()] = number
    return result


def flat_scores(scores: dict[str, Any], asked: Container[str]) -> dict[tuple[str, str], Any]:
    """(set with its source and number of images, score) → value, of the evaluations that were asked for."""
    flat: dict[tuple[str, str], Any] = {}
    for name, score in _asked(scores, asked):
        count = f"{score['count']:,} images" if "count" in score else ""
        more = ", ".join(filter(None, (score.get("source"), count)))
        for values in numbers({name: {"values": score["values"]}}).values():
            flat |= {(f"{name} ({more})" if more else name, key): value for key, value in values.items()}
    return flat


def _asked(scores: dict[str, Any], asked: Container[str]) -> list[tuple[str, Any]]:
    """Those of the final state; sets of the data themselves are of the evaluation "clean"."""
    from antishortcut.evaluation import EVALUATIONS, FOLDER

    def by(name: str) -> str:
        return name if name in EVALUATIONS or name.startswith(f"{FOLDER} ") else "clean"

    return [(name, score) for name, score in scores.items() if "@" not in name and by(name) in asked]


def class_mapping(scores: dict[str, Any], asked: Container[str]) -> Iterator[str]:
    """Which classes of the student count as which category of the stimuli, and how many of these were left out."""
    for name, score in _asked(scores, asked):
        facts = score.get("facts", {})
        if "categories" in facts:
            yield f"{name}: " + "; ".join(f"{key} = {', '.join(own)}" for key, own in facts["categories"].items())
            left = (
                f"{facts['without_category']:,} of categories without a class, {facts['no_conflict']:,} not in conflict"
            )
            yield f"{name}: {facts['images']:,} stimuli scored, left out: {left}"


def score_run(
    path: Path,
    runs: Path | None,
    session: Session,
    names: list[str],
    images: dict[str, Path],
    device: str,
    own: dict[str, Path] | None = None,
) -> dict[str, dict[str, Any]]:
    """`images` are folders of the named evaluations, `own` any folders of class folders."""
    from antishortcut.evaluation import FOLDER
    from antishortcut.evaluation import evaluate as evaluate_run

    folder, parent = RunDir(path), runs or path.resolve().parent.parent
    context = eval_context(session, folder.read()[0].data, parent, own or {}, images)
    return evaluate_run(folder, context, [*names, *([FOLDER] if own else [])], device=device)


def eval_context(
    session: Session, data: DataSettings, runs: Path, own: dict[str, Path], images: dict[str, Path] | None = None
) -> EvalContext:
    """With the folders opened and their notes printed; one that cannot be scored is an error here."""
    from antishortcut.evaluation.context import EvalContext

    root: dict[str, Any] = {"root": session.root} if session.root else {}
    context = EvalContext(session.sets(data), runs, at=images or {}, quiet=False, **root).with_folders(own)
    for shift in context.folders.values():
        session.say_once(shift.note)
    return context


def score_also(run: Run, session: Session, own: dict[str, Path], device: str) -> list[dict[str, Any]]:
    """A student on folders of class folders; and its teacher, final and early, if it learned from one."""
    from antishortcut.evaluation import score_folders
    from antishortcut.teachers.trajectory import find_trajectory

    context = eval_context(session, run.data, session.runs, own)
    networks = {"student": (RunDir(run.folder(session.runs)), "final")}
    if run.roles and run.teacher is not None:
        for title, state in (("teacher", "final"), ("early teacher", run.early)):
            trajectory, name = find_trajectory(session.runs, run.teacher, state)
            networks[title] = (trajectory.folder, name)
    rows = []
    for network, (folder, state) in networks.items():
        for name, score in score_folders(folder, context, state, device).items():
            values = {key: score["values"][key] for key in ("accuracy", "accuracy_overlap")}
            size = {"images": score["count"], "classes": score["facts"]["overlap_count"]}
            rows.append({"folder": name, "network": network, **values, **size})
    return sorted(rows, key=lambda row: list(own).index(row["folder"]))


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
