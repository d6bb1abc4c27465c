"""asd list: what there is, with a line on each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from antishortcut.cli import complete
from antishortcut.cli.options import MEASURED, JsonOption, print_json, table
from antishortcut.errors import UserError, near

Rows = list[dict[str, Any]]


def _kinds(incomplete: str) -> list[str]:
    return [name for name in KINDS if name.startswith(incomplete)]


def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help="methods, models, recipes, datasets, suites, augmentations or evaluations; nothing for how many.",
            autocompletion=_kinds,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What there is, with a line on each."""
    if what is None:
        rows = _overview()
    elif (kind := KINDS.get({"data": "datasets"}.get(what, what))) is not None:
        rows = kind.rows()
    else:
        raise UserError(f"asd list knows no {what!r}{near(what, KINDS)}")
    if as_json:
        print_json(rows)
        return
    table(what or "what there is", list(rows[0]), [tuple(row.values()) for row in rows])


def _overview() -> Rows:
    """How many of each there are, how they are shown and where they are used. No torch."""
    return [
        {"what": name, "there are": len(kind.names()), "shown by": f"asd list {name}", "used by": kind.use}
        for name, kind in KINDS.items()
    ]


def _methods() -> Rows:
    from antishortcut.methods import METHODS, options_of, roles_of

    rows = []
    for name, method in METHODS.items():
        plain = getattr(method, "func", method)  # named variants are partials of their class
        told = (sys.modules[plain.__module__].__doc__ or "").strip().splitlines()[0].rstrip(".")
        own = ", ".join(f"{key} = {value}" for key, value in getattr(method, "keywords", {}).items())
        states = ", ".join(roles_of(name, options_of(name, {}))) or "–"
        rows.append({"name": name, "what": f"{told}; with {own}" if own else told, "teacher states": states})
    return rows


def _models() -> Rows:
    from antishortcut.models import describe

    return describe()


def _datasets() -> Rows:
    from antishortcut.data import DATASETS

    return [{"name": name, "what": source.help} for name, source in DATASETS.items()]


def _augmentations() -> Rows:
    from antishortcut.data import AUGMENTS

    return [{"name": name, "what": told} for name, told in AUGMENTS.items()]


def _evaluations() -> Rows:
    return [{"name": name, "what": told} for name, told in MEASURED.items()]


def _suites() -> Rows:
    from antishortcut.suites import describe

    return describe()


def _suite_names() -> Sequence[str]:
    return complete.suites("")


def _recipes() -> Rows:
    from antishortcut.run import load_recipe, shipped_recipes

    rows = []
    for name in shipped_recipes():
        recipe = load_recipe(name)
        pair = f"{recipe.teacher.name} → {recipe.student.name}"
        rows.append(
            {"name": name, "pair": pair, "data": recipe.data.name, "length": recipe.length, "what": recipe.title}
        )
    return rows


class Kind(NamedTuple):
    rows: Callable[[], Rows]
    names: Callable[[], Sequence[str]]  # without torch
    use: str


KINDS = {
    "methods": Kind(_methods, lambda: complete.names("methods"), "asd distill RECIPE --method NAME"),
    "models": Kind(_models, lambda: complete.names("models"), "asd distill RECIPE --set student.name=NAME"),
    "recipes": Kind(_recipes, complete.shipped, "asd distill NAME"),
    "datasets": Kind(_datasets, lambda: complete.names("datasets"), "asd check NAME"),
    "suites": Kind(_suites, _suite_names, "asd suite run NAME"),
    "augmentations": Kind(
        _augmentations, lambda: complete.names("augmentations"), "asd distill RECIPE --set data.augment=NAME"
    ),
    "evaluations": Kind(_evaluations, lambda: tuple(MEASURED), "asd evaluate RUN --on NAME"),
}
