"""asd list: what there is, with a line on each."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from antishortcut.cli.options import MEASURED, JsonOption, print_json, table
from antishortcut.errors import UserError, near

Rows = list[dict[str, Any]]


def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help="methods, models, recipes, datasets, suites, augmentations or evaluations; nothing for these.",
            autocompletion=lambda incomplete: [name for name in KINDS if name.startswith(incomplete)],
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What there is, with a line on each."""
    name = {"data": "datasets"}.get(what or "", what)
    if name is None:
        rows = [{"what": kind, "shown by": f"asd list {kind}", "used by": use} for kind, (_, use) in KINDS.items()]
    elif name in KINDS:
        rows = KINDS[name][0]()
    else:
        raise UserError(f"asd list knows no {what!r}{near(name, KINDS)}")
    if as_json:
        print_json(rows)
    else:
        table(what or "what there is", list(rows[0]), [tuple(row.values()) for row in rows])


def _methods() -> Rows:
    from antishortcut.methods import METHODS, options_of, roles_of

    rows = []
    for name, method in METHODS.items():
        module = getattr(method, "func", method).__module__  # named variants are partials of their class
        line = (sys.modules[module].__doc__ or "").strip().splitlines()[0].rstrip(".")
        own = ", ".join(f"{key} = {value}" for key, value in getattr(method, "keywords", {}).items())
        states = ", ".join(roles_of(name, options_of(name, {}))) or "–"
        rows.append({"name": name, "what": f"{line}; with {own}" if own else line, "teacher states": states})
    return rows


def _models() -> Rows:
    from antishortcut.models import describe

    return describe()


def _datasets() -> Rows:
    from antishortcut.data import DATASETS

    return [{"name": name, "what": source.help} for name, source in DATASETS.items()]


def _augmentations() -> Rows:
    from antishortcut.data import AUGMENTS

    return [{"name": name, "what": line} for name, line in AUGMENTS.items()]


def _evaluations() -> Rows:
    return [{"name": name, "what": line} for name, line in MEASURED.items()]


def _suites() -> Rows:
    from antishortcut.experiments.suites_suites import describe

    return describe()


def _recipes() -> Rows:
    from antishortcut.config.recipe import load_recipe, shipped_recipes

    return [
        {
            "name": name,
            "pair": f"{recipe.teacher.name} → {recipe.student.name}",
            "data": recipe.data.name,
            "length": recipe.length,
            "what": recipe.title,
        }
        for name in shipped_recipes()
        for recipe in [load_recipe(name)]
    ]


KINDS = {  # what there is: its rows, and where its names are used
    "methods": (_methods, "asd distill RECIPE --method NAME"),
    "models": (_models, "asd distill RECIPE --set student.name=NAME"),
    "recipes": (_recipes, "asd distill NAME"),
    "datasets": (_datasets, "asd check NAME"),
    "suites": (_suites, "asd suite run NAME"),
    "augmentations": (_augmentations, "asd distill RECIPE --set data.augment=NAME"),
    "evaluations": (_evaluations, "asd evaluate RUN --on NAME"),
}
