"""Whose runs are the paper's, and whether they were made as the paper's were."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from antishortcut.paper.pairs import PAIRS
from antishortcut.paper.scale import MARK
from antishortcut.report.collect import Found
from antishortcut.run import DataSettings, ModelSettings, OptimSettings, Recipe, Run

SIGNS = "compare signs against KD only"
DESK = f"desk scale, not the paper's size: {SIGNS}"
FREE = {"batch", "accumulate"}  # of the optimiser: rows of the paper vary the one, the other is of no effect


def pair_of(run: Run) -> str | None:
    """The pair that a run belongs to by its suite and its data, at either scale; P2 on other data is nobody's."""
    name = run.suite.removesuffix(MARK)
    if name not in PAIRS:
        return None
    return name if _recipe(name).data.name == run.data.name else None


def at_desk(run: Run) -> bool:
    return run.suite.endswith(MARK)


def title_of(run: Run) -> str:
    """P1: ResNet-34 → ResNet-18, CIFAR-100."""
    pair = PAIRS[run.suite.removesuffix(MARK)]
    return f"{run.suite}: {pair.teacher} → {pair.student}, {pair.data}"


def unlike(run: Run) -> str:
    """In what length, images, network or optimiser of a run are not the paper's, in words; empty where all are."""
    theirs = _printed_course(run.suite.removesuffix(MARK))
    ours = _course(run, run.data, run.model, run.optim)
    changed = [key for key in ours if ours[key] != theirs[key]]
    return ", ".join(f"{key} {_word(ours[key])} instead of {_word(theirs[key])}" for key in changed)


def comparable(runs: Iterable[Run]) -> bool:
    """Whether numbers of these runs stand beside the printed ones as numbers, not by their signs alone."""
    return not any(at_desk(run) or unlike(run) for run in runs)


def labels(found: Found) -> dict[str, list[str]]:
    """Suite of a pair → what must be said before its numbers are read; a suite made as the paper's has nothing."""
    suites: dict[str, dict[str, list[str]]] = {}  # suite → what is other → rows
    for group in found.groups.values():
        run = group[0].run
        if pair_of(run) is None:
            continue
        suites.setdefault(run.suite, {})
        for other in dict.fromkeys(DESK if at_desk(s.run) else unlike(s.run) for s in group):
            if other:
                suites[run.suite].setdefault(other, []).append(run.name)
    return {suite: [_label(*each) for each in others.items()] for suite, others in suites.items() if others}


def _label(other: str, names: list[str]) -> str:
    return DESK if other == DESK else f"{', '.join(names)}: not made as the paper's ({other}): {SIGNS}"


def _course(of: Run | Recipe, data: DataSettings, model: ModelSettings, optim: OptimSettings) -> dict[str, Any]:
    fields = {"epochs": of.epochs, "iterations": of.iterations, "model": model.name}
    fields |= {f"data.{key}": value for key, value in data.model_dump().items()}
    return fields | {f"optim.{key}": value for key, value in optim.model_dump(exclude=FREE).items()}


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


@cache
def _printed_course(name: str) -> dict[str, Any]:
    recipe = _recipe(name)
    return _course(recipe, recipe.data, recipe.student, recipe.optim)


@cache
def _recipe(name: str) -> Recipe:
    return PAIRS[name].recipe()
