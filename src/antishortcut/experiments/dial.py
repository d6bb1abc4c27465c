"""The dial: how strong contrast targets and hints are, chosen for what you are willing to pay on ordinary images.

Every level is tried in a short pilot and scored on the validation split: on all of its images, and on those that
T_early gets wrong, which stand for images on which the shortcut lies. Test images are never looked at.
"""
# N images, C classes

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from antishortcut.analysis.contrast_targets import measure
from antishortcut.config.recipe import DIALS, PILOTS, Recipe, Value, recipe_from, weak_length
from antishortcut.errors import UserError
from antishortcut.evaluation.context import EvalContext, EvaluatedRun
from antishortcut.fileio import atomic_write
from antishortcut.run_dir import RunDir
from antishortcut.tasks import build_task
from antishortcut.training.pipeline import Session, distill, make_early, teach

METHOD = "contrast+hint"
LEVELS: dict[str, dict[str, Value]] = {  # the first is plain KD
    "none": {"strength": 0.0, "beta": 0.0, "hint": 0.0},
    "mild": {"strength": 0.5, "beta": 0.0, "hint": 30.0},
    "medium": {"strength": 1.0, "beta": 0.0, "hint": 100.0},
    "strong": {"strength": 2.0, "beta": 0.0, "hint": 100.0},
}
PILOT = 0.5  # of a student's training; after a quarter, hints still cost what they bring later
ERRORS = 1.0  # standard errors by which a loss may exceed the budget before it counts
WEAK = 0.8  # share of T_final's accuracy below which T_early is weak rather than biased


@dataclass(frozen=True)
class Pilot:
    """One level on the validation split."""

    level: str
    accuracy: float  # on all images
    hard: float | None  # where T_early is wrong
    loss: float  # accuracy lost against "none"
    error: float  # standard error of that loss, over images
    allowed: bool


@dataclass(frozen=True)
class DialChoice:
    """What the dial chose, and why."""

    level: str
    options: dict[str, Value]
    why: str
    pilots: tuple[Pilot, ...] = ()


def is_open(recipe: Recipe, method: str) -> bool:
    """Whether the settings are left to the dial: it is the method's, and nobody set one of its keys."""
    return method in DIALS and not any(key in recipe.methods.get(method, {}) for key in DIALS[method])


def applied(recipe: Recipe, choice: DialChoice) -> Recipe:
    """The recipe with what was chosen."""
    own = dict(recipe.methods.get(METHOD, {})) | choice.options
    return recipe.model_copy(update={"methods": dict(recipe.methods) | {METHOD: own}})


def record(path: Path, choice: DialChoice) -> str:
    """Write what was chosen, and why, into a planned recipe, unless somebody set it meanwhile. Returns a line on it."""
    path = path.resolve()
    with FileLock(path.with_name(".recipe.lock")):
        text = path.read_text(encoding="utf-8-sig")
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
        with atomic_write(path) as file:
            file.write(new.encode())
    return f"written into {path}"


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
    line = re.search(r"^# level (\w+) for a budget of (\S+):", "" if planned is None else planned.read_text(), re.M)
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
            "mild", LEVELS["mild"], f"level mild for a budget of {budget:g}: images with masks have no pilot"
        )
    if sets.val is None:
        return _by_signs(recipe, session, budget)
    outputs: dict[str, Tensor] = {}
    early = torch.empty(0)
    for level, options in LEVELS.items():
        session.say(f"pilot {level}: {_described(options)}")
        run = distill(
            _short(recipe), session, method=METHOD, seed=seed, suite=suite + PILOTS, name=level, options=options
        )
        evaluated = EvaluatedRun(RunDir(run.folder(session.runs)), EvalContext(sets, session.runs))
        outputs[level], _ = evaluated.outputs(sets.val)
        if not len(early):
            early, _ = evaluated.outputs(sets.val, evaluated.teachers("the dial").network("early"))
    pilots = compare(outputs, early, sets.val.label, budget)
    level = best(pilots)
    return DialChoice(level, LEVELS[level], _reason(pilots, level, budget, len(sets.val)), tuple(pilots))


def compare(outputs: Mapping[str, Tensor], early: Tensor, label: Tensor, budget: float) -> list[Pilot]:
    """Every level from logits (N, C) on the validation images; the first is the one that others may lose against."""
    hard = early.argmax(dim=1) != label  # (N,)
    right = {level: (logits.argmax(dim=1) == label).double() for level, logits in outputs.items()}
    base = next(iter(right.values()))
    pilots = []
    for level, hits in right.items():
        lost = base - hits  # (N,) of −1, 0 and 1
        error = float(lost.std(correction=0)) / math.sqrt(len(label))
        loss = float(lost.mean())
        on_hard = float(hits[hard].mean()) if hard.any() else None
        allowed = loss <= budget + (ERRORS * error if level != next(iter(right)) else 0)
        pilots.append(Pilot(level, float(hits.mean()), on_hard, loss, error, allowed))
    return pilots


def best(pilots: Sequence[Pilot]) -> str:
    """Of the levels that the budget allows, the one most often right where T_early is wrong."""
    return max((one for one in pilots if one.allowed), key=lambda one: -1.0 if one.hard is None else one.hard).level


def _by_signs(recipe: Recipe, session: Session, budget: float) -> DialChoice:
    """Without a validation split: T_early's accuracy on training images, against T_final's."""
    run = teach(recipe, session)
    state = make_early(recipe, run, session)
    row = measure(RunDir(run.folder(session.runs)), session.sets(recipe.data), [state], [1.0], session.say)["rows"][0]
    share = row["early_accuracy"] / max(row["final_accuracy"], 1e-9)
    level = "medium" if share >= WEAK else "mild"
    words = "biased early" if share >= WEAK else "weak early"
    why = f"no validation split, so no pilot; T_early has {share:.0%} of T_final's accuracy: {words}"
    why = f"level {level} for a budget of {budget:g}: {why}"
    return DialChoice(level, LEVELS[level], why)


def _short(recipe: Recipe) -> Recipe:
    """The recipe with a student's training cut to a pilot; teacher and weak reference stay the same."""
    length = "epochs" if recipe.epochs else "iterations"
    whole = getattr(recipe, length)
    short = max(1, round(PILOT * whole))
    same = {"epochs": recipe.teacher.epochs or whole, "weak_epochs": recipe.teacher.weak_epochs or weak_length(whole)}
    teacher = recipe.teacher.model_copy(update=same)
    own = dict(recipe.methods.get(METHOD, {}))
    if "warmup" in own:
        own["warmup"] = float(own["warmup"]) * short / whole
    return recipe.model_copy(
        update={length: short, "teacher": teacher, "methods": dict(recipe.methods) | {METHOD: own}}
    )


def _described(options: Mapping[str, Any]) -> str:
    if not any(options.values()):
        return "plain KD"
    return f"λ {options['strength']:g}, β {options['beta']:g}, hint {options['hint']:g}"


def _reason(pilots: Sequence[Pilot], level: str, budget: float, images: int) -> str:
    rows = [
        f"{one.level} {one.accuracy:.3f}"
        + ("" if one.hard is None else f" / {one.hard:.3f}")
        + ("" if one.allowed else " (costs too much)")
        for one in pilots
    ]
    where = f"pilots on {images:,} validation images, all / those T_early gets wrong"
    return f"level {level} for a budget of {budget:g}: {where}: {', '.join(rows)}"
