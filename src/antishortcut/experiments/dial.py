"""The dial: how strong contrast targets and hints are, chosen for what you are willing to pay on ordinary images.

The reference that is divided out is T_early, or the first state after it that knows the easy answers. If no state of
the first half of the teacher's training does, no easy cue was learned early, and the student is trained by plain KD:
such a state is weak rather than biased, and what it lacks is not a shortcut. Otherwise levels are tried from mild to
strong until one costs too much, each as a whole training, so that the chosen one is finished. They are scored on the
validation split: on all of its images, where the most accurate level is what the budget is counted from, and on those
that the reference gets wrong, which stand for images on which the shortcut lies. Test images are never looked at.
"""
# N images, C classes

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from antishortcut.analysis.features import predict
from antishortcut.config.recipe import DIALS, LEVELS, TRIALS, Recipe, Value, recipe_from
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited
from antishortcut.errors import UserError
from antishortcut.evaluation.context import EvalContext, EvaluatedRun
from antishortcut.fileio import atomic_write
from antishortcut.fileio import text as text_of
from antishortcut.run_dir import RunDir
from antishortcut.tasks import build_task
from antishortcut.teachers.selection import largest, target_statistics
from antishortcut.teachers.trajectory import Trajectory, build_saved, find_trajectory
from antishortcut.training.pipeline import Session, distill, make_early, teach
from antishortcut.types import DataSplits

METHOD = "contrast+hint"
START = "mild"  # tried after the first; then the stronger ones, or, if it costs too much, the one before
ERRORS = 0.5  # standard errors by which a loss may exceed the budget before it counts
FIRST_HALF = 0.5  # of the teacher's training, in which an easy cue is learned
KNOWS = 0.85  # share of T_final's accuracy from which a state knows the easy answers; below, it is weak, not biased


@dataclass(frozen=True)
class LevelTrial:
    """One level on the validation split."""

    level: str
    accuracy: float  # on all images
    hard: float | None  # where the reference is wrong
    loss: float  # accuracy lost against the most accurate level
    error: float  # standard error of that loss, over images
    allowed: bool


@dataclass(frozen=True)
class DialChoice:
    """What the dial chose, and why."""

    level: str
    options: dict[str, Value]
    why: str
    trials: tuple[LevelTrial, ...] = ()


def is_open(recipe: Recipe, method: str) -> bool:
    """Whether the settings are left to the dial: it is the method's, and nobody set one of its keys."""
    return method in DIALS and not any(key in recipe.methods.get(method, {}) for key in DIALS[method])


def applied(recipe: Recipe, choice: DialChoice) -> Recipe:
    """The recipe with what was chosen."""
    own = dict(recipe.methods.get(METHOD, {})) | choice.options
    return recipe.model_copy(update={"methods": dict(recipe.methods) | {METHOD: own}})


def record(path: Path, choice: DialChoice) -> str:
    """Write what was chosen, and why, into a planned recipe, unless somebody set it meanwhile. Returns a line on it."""
    place = path.resolve()  # a link may lead to another disk
    with FileLock(place.with_name(".recipe.lock")):
        text = text_of(path)
        recipe = recipe_from(text, path)
        if not is_open(recipe, METHOD):
            return f"{path} has settings of {METHOD} by now: they stay, and further runs use them"
        try:
            new = written(text, choice)
            if recipe_from(new, path) != applied(recipe, choice):
                raise ValueError
        except ValueError:  # an unusual spelling of its section
            lines = ", ".join(f"{key} = {json.dumps(value)}" for key, value in choice.options.items())
            return f"not written into {path}; for further seeds, put it into its section of {METHOD}: {lines}"
        with atomic_write(place) as file:
            file.write(new.encode())
    return f"this choice is now in {path}"


def written(text: str, choice: DialChoice) -> str:
    """The text of a recipe with what was chosen in the method's section, which is added if there is none."""
    lines = [f"# {choice.why}", *(f"{key} = {json.dumps(value)}" for key, value in choice.options.items())]
    head = f'[methods."{METHOD}"]'
    rows = text.splitlines()
    if head not in rows:
        return "\n".join([*rows, "", head, *lines]) + "\n"
    at = rows.index(head) + 1
    return "\n".join([*rows[:at], *lines, *rows[at:]]) + "\n"


def check_recorded(recipe: Recipe, planned: Path | None, budget: float | None) -> None:
    """Settings that stand in the recipe must be what the dial wrote there, for the same budget."""
    text = "" if planned is None else text_of(planned)
    line = re.search(r"^# level (\w+) for a budget of ([^\s:,]+)[:,]", text, re.M)
    own = {key: recipe.methods[METHOD].get(key) for key in DIALS[METHOD]}
    if line is None or own != LEVELS.get(line[1]):
        keys = ", ".join(DIALS[METHOD])
        raise UserError(f"--budget and --frontier are for the dial, but {keys} are set by hand; leave them out")
    if budget is not None and f"{budget:g}" != line[2]:
        raise UserError(f"{planned} has the dial's choice for a budget of {line[2]}; for another, use another --suite")


def choose(recipe: Recipe, session: Session, *, seed: int, suite: str, budget: float = 0.0) -> DialChoice:
    """The level for a budget: accuracy on ordinary images, as a share, that may be lost against plain KD."""
    if not 0 <= budget < 1:
        raise UserError(f"--budget {budget:g}: a share of accuracy is wanted, from 0 to below 1, like 0.01")
    sets = session.sets(recipe.data)
    if build_task(sets).dense:
        return DialChoice(
            "mild", LEVELS["mild"], f"level mild for a budget of {budget:g}: images with masks have no trial"
        )
    reference = _reference(recipe, session)
    if reference is None and sets.val is not None:
        sign = f"no state of the first half of the teacher's training has {KNOWS:.0%} of its accuracy"
        why = f"{sign}, so no easy cue was learned early; this is plain KD (--frontier tries the others)"
        return DialChoice("none", LEVELS["none"], f"level none for a budget of {budget:g}: {why}")
    reference = reference or "early"
    chosen: dict[str, Value] = {"reference": reference}
    if sets.val is None:
        advice = "to try levels, add a val/ folder or data.val_fraction"
        why = f"level mild for a budget of {budget:g}, against {reference}: {advice}"
        return DialChoice("mild", LEVELS["mild"] | chosen, why)
    trials: list[LevelTrial] = []
    rights: dict[str, Tensor] = {}  # level → where it is right (N,)
    hard = torch.empty(0)
    names = list(LEVELS)
    waiting = [names[0], *names[names.index(START) :]]
    while waiting:
        level = waiting.pop(0)
        session.say(f"trial {level}: {_described(LEVELS[level])}")
        where: dict[str, Any] = {"method": METHOD, "seed": seed, "suite": suite + TRIALS, "name": level}
        run = distill(recipe, session, options=LEVELS[level] | chosen, **where)
        evaluated = EvaluatedRun(RunDir(run.folder(session.runs)), EvalContext(sets, session.runs))
        rights[level] = evaluated.outputs(sets.val)[0].argmax(dim=1) == sets.val.label
        if len(rights) == 1:
            early, _ = evaluated.outputs(sets.val, evaluated.teachers("the dial").network(reference))
            hard = early.argmax(dim=1) != sets.val.label
        trials = compared(rights, hard, budget)
        if not trials[-1].allowed:
            waiting = [names[names.index(START) - 1]] if level == START else []
    level = best(trials)
    return DialChoice(
        level, LEVELS[level] | chosen, _reason(trials, level, budget, reference, len(hard)), tuple(trials)
    )


def compared(rights: Mapping[str, Tensor], hard: Tensor, budget: float) -> list[LevelTrial]:
    """Every level beside the most accurate one, the mildest of equals. Where they are right: (N,) bool each.

    The first is plain KD, which may always be chosen: a level that gains on ordinary images alone does not replace it.
    """
    most = max(rights.values(), key=lambda right: int(right.sum()))
    budgets = [1.0, *[budget] * (len(rights) - 1)]
    return [trial(level, right, most, hard, own) for (level, right), own in zip(rights.items(), budgets, strict=True)]


def trial(level: str, right: Tensor, most: Tensor, hard: Tensor, budget: float) -> LevelTrial:
    """One level, from where it, the most accurate one, and not the reference is right: (N,) bool each."""
    lost = most.double() - right.double()  # (N,) of −1, 0 and 1
    error = float(lost.std(correction=0)) / math.sqrt(len(lost))
    on_hard = float(right[hard].double().mean()) if hard.any() else None
    accuracy, loss = float(right.double().mean()), float(lost.mean())
    return LevelTrial(level, accuracy, on_hard, loss, error, allowed=loss <= budget + ERRORS * error)


def best(trials: Sequence[LevelTrial]) -> str:
    """Of the levels that the budget allows, the one most often right where the reference is wrong."""
    return max((one for one in trials if one.allowed), key=lambda one: -1.0 if one.hard is None else one.hard).level


def _reference(recipe: Recipe, session: Session) -> str | None:
    """The recipe's own, T_early, or a later state that knows the easy answers, if there is one in the first half of the
    training; of a teacher that you bring, T_early."""
    own, early = recipe.methods.get(METHOD, {}).get("reference"), recipe.teacher.early_state
    run = teach(recipe, session)
    if own is not None or recipe.teacher.final is not None or not early.endswith("%"):
        make_early(recipe, run, session)
        return str(own or "early")
    teacher = RunDir(run.folder(session.runs))
    trajectory = Trajectory(teacher)
    first = trajectory.entry(early)["fraction"]
    entries = [entry for entry in trajectory.entries if first <= entry["fraction"] <= max(first, FIRST_HALF + 0.01)]
    rows = measure(teacher, session.sets(recipe.data), [entry["labels"][0] for entry in entries], [1.0], session.say)
    return earliest({row["state"]: row["early_accuracy"] / max(row["final_accuracy"], 1e-9) for row in rows["rows"]})


def earliest(share: Mapping[str, float]) -> str | None:
    """The first state with KNOWS of T_final's accuracy, of states in their order."""
    return next((state for state, own in share.items() if own >= KNOWS), None)


def _described(options: Mapping[str, Any]) -> str:
    if not any(options.values()):
        return "plain KD"
    return f"λ {options['strength']:g}, β {options['beta']:g}, hint {options['hint']:g}"


def _reason(trials: Sequence[LevelTrial], level: str, budget: float, reference: str, images: int) -> str:
    rows = [
        f"{one.level} {one.accuracy:.3f}"
        + ("" if one.hard is None else f" / {one.hard:.3f}")
        + ("" if one.allowed else " (costs too much)")
        for one in trials
    ]
    where = f"trials on {images:,} validation images, all / those that {reference} gets wrong"
    return f"level {level} for a budget of {budget:g}, against {reference}: {where}: {', '.join(rows)}"


# --- Contrast targets before any student is trained: measurements to choose λ and T_early by, without test images ---

MEASURED = 5_000  # images, at most


def measure(
    folder: RunDir,
    sets: DataSplits,
    states: Sequence[str],
    strengths: Sequence[float],
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Statistics of every state and λ on the validation split, or else on training images; never on test images.

    A state may be another teacher's: "<hash>/15%".
    """
    run, _ = folder.read()
    if not folder.finished or not run.keep:
        raise UserError(f"{folder.path} is not a finished teacher (asd teach makes one)")
    if run.fingerprint != sets.fingerprint:
        raise UserError(f"{folder.path} was trained on other data than these (fingerprints differ)")
    wants_labels("asd targets", sets.train, of="image")
    states = list(states) or [entry["labels"][0] for entry in Trajectory(folder).entries[:-1]]
    if not states:
        raise UserError(f"{folder.path} has no state before its last; teach one with more in teacher.keep")
    runs, places = folder.path.resolve().parent.parent, dict[str, tuple[Trajectory, str]]()
    for state in (*states, "final"):
        places[state] = find_trajectory(runs, "", state) if "/" in state else (Trajectory(folder), state)
    for trajectory, own in places.values():
        trajectory.entry(own)
    name, images = ("val", sets.val) if sets.val is not None else ("train", sets.train)
    if name == "train":
        say("no validation split (data.val_fraction): using training images, on which the teacher looks too good")
    images = limited(images, MEASURED, 0)
    logits = {}
    for state, (trajectory, own) in places.items():
        network = build_saved(trajectory.folder, len(sets.classes), sets.image_size)
        trajectory.fill(network, own)
        batches = predict({"": network}, images, sets.image_size)
        logits[state] = torch.cat([outputs[""].logits for outputs, _ in batches])
    rows = [
        {"state": state, "strength": value} | target_statistics(logits["final"], logits[state], images.label, value)
        for state in states
        for value in strengths
    ]
    best = {state: largest([row for row in rows if row["state"] == state]) for state in states}
    return {"teacher": str(folder.path), "set": name, "count": len(images), "rows": rows, "largest": best}
