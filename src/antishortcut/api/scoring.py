"""Scores of a finished run, and its data if they are still there."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.config.recipe import WEAK, Run
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


def flat_scores(scores: dict[str, Any], requested: Container[str]) -> dict[tuple[str, str], Any]:
    """(set with its source and number of images, score) → value, of the evaluations that were requested."""
    flat: dict[tuple[str, str], Any] = {}
    for name, score in _requested(scores, requested):
        known = score["values"]
        twice = {"accuracy_overlap"} if known.get("chance") == known.get("chance_overlap", 0) else set[str]()
        shown = {key: value for key, value in known.items() if not key.startswith("chance") and key not in twice}
        for values in numbers({name: {"values": shown}}).values():
            flat |= {(_titled(name, score), key): value for key, value in values.items()}
    return flat


def flat_guesses(scores: dict[str, Any], requested: Container[str], classes: int) -> dict[tuple[str, str], Any]:
    """The same of what guessing one class in so many would score."""
    each = [(_titled(name, score), guesses(name, score, classes)) for name, score in _requested(scores, requested)]
    return {(title, key): value for title, values in each for key, value in values.items()}


def _titled(name: str, score: Mapping[str, Any]) -> str:
    count = f"{score['count']:,} images" if "count" in score else ""
    more = ", ".join(filter(None, (score.get("source"), count)))
    return f"{name} ({more})" if more else name


def _requested(scores: dict[str, Any], requested: Container[str]) -> list[tuple[str, Any]]:
    """Those of the final state; sets of the data themselves are of the evaluation "clean"."""
    from antishortcut.evaluation import EVALUATIONS, FOLDER

    def by(name: str) -> str:
        return name if name in EVALUATIONS or name.startswith(f"{FOLDER} ") else "clean"

    return [(name, score) for name, score in scores.items() if "@" not in name and by(name) in requested]


def class_mapping(scores: dict[str, Any], requested: Container[str]) -> Iterator[str]:
    """Which classes of the student count as which category of the stimuli, and how many of these were left out."""
    for name, score in _requested(scores, requested):
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
    """`images` are folders of the named evaluations, `own` any folders of class folders.

    A student's teacher, final and early, is scored on the same sets where that is one pass over their images.
    """
    from antishortcut.evaluation import FOLDER, folder_score
    from antishortcut.evaluation import evaluate as evaluate_run
    from antishortcut.evaluation.context import evaluate_teacher

    folder, parent = RunDir(path), runs or path.resolve().parent.parent
    run, _ = folder.read()
    context = eval_context(session, run.data, parent, own or {}, images)
    requested = [*names, *([FOLDER] if own else [])]
    scores = evaluate_run(folder, context, requested, device=device)
    for line in evaluate_teacher(folder, context, requested, device):
        session.say_once(line)
    for line in _limits(run, parent, scores, {*names, *map(folder_score, own or ())}, session):
        session.say_once(line)
    return scores


def _limits(run: Run, runs: Path, scores: dict[str, Any], requested: Container[str], session: Session) -> list[str]:
    """Where the teacher of a student has nothing to hand down, of the sets that were requested."""
    from antishortcut.evaluation import FOLDER
    from antishortcut.report.summary import teacher_limits

    final, early = (teacher_scores(run, runs, state) for state in ("final", run.early))
    known, classes = [], len(session.sets(run.data).classes)
    for name, score in _requested(scores, requested):
        if "accuracy" in score["values"]:
            last, first = (each.get(name, {}).get("values", {}).get("accuracy") for each in (final, early))
            where = f"on {name.removeprefix(f'{FOLDER} ')}"
            known.append((where, last, first, guesses(name, score, classes).get("accuracy")))
    return teacher_limits(known)


def teacher_scores(run: Run, runs: Path, state: str = "final") -> dict[str, Any]:
    """The scores that a student's teacher has in this state, by set; none if it is not there."""
    from antishortcut.teachers.trajectory import find_trajectory

    if not run.roles:
        return {}
    try:
        trajectory, name = find_trajectory(runs, run.teacher or "", state)
        scores = trajectory.folder.scores()
    except UserError:
        return {}
    mark = "" if name == "final" else f"@{name}"
    return {key.removesuffix(mark): score for key, score in scores.items() if "".join(key.partition("@")[1:]) == mark}


def guesses(name: str, score: Mapping[str, Any], classes: int) -> dict[str, float]:
    """What guessing would score on a set, by the keys of a score that has them."""
    from antishortcut.report.reference_rows import guessed

    each = {key: guessed(name, key, score["values"], classes) for key in score["values"]}
    return {key: value for key, value in each.items() if value is not None}


def eval_context(
    session: Session, data: DataSettings, runs: Path, own: dict[str, Path], images: dict[str, Path] | None = None
) -> EvalContext:
    """With the folders opened and their notes printed; one that cannot be scored is an error here."""
    from antishortcut.evaluation.context import EvalContext

    root: dict[str, Any] = {"root": session.root} if session.root else {}
    context = EvalContext(session.sets(data), runs, at=images or {}, quiet=session.quiet, **root).with_folders(own)
    for shift in context.folders.values():
        session.say_once(shift.note)
    return context


def score_also(run: Run, session: Session, own: dict[str, Path], device: str) -> list[dict[str, Any]]:
    """A student on folders of class folders; its teacher, final and early, if it learned from one; and guessing."""
    from antishortcut.evaluation import folder_score

    scores = score_run(run.folder(session.runs), session.runs, session, [], {}, device, own)
    networks = {"student": scores}
    if run.roles:
        networks["teacher"] = teacher_scores(run, session.runs)
        early = "weak reference" if WEAK in run.early else "early teacher"
        networks[early] = teacher_scores(run, session.runs, run.early)
    rows = []
    for name in own:
        key = folder_score(name)
        score = scores[key]
        values = {network: each[key]["values"] for network, each in networks.items() if key in each}
        values["chance"] = guesses(key, score, len(session.sets(run.data).classes))
        size = {"images": score["count"], "classes": score["facts"]["overlap_count"]}
        for network, each in values.items():
            shares = {key: each[key] for key in ("accuracy", "accuracy_overlap")}
            rows.append({"folder": name, "network": network, **shares, **size})
    return rows


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
