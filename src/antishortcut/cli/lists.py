"""asd list: what there is."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from antishortcut.cli.options import JsonOption, print_json, table
from antishortcut.errors import UserError, near


def list_(
    what: Annotated[str, typer.Argument(help="methods, models, datasets, recipes or suites.")],
    as_json: JsonOption = False,
) -> None:
    """What there is."""
    kinds = {"methods": _methods, "models": _models, "datasets": _datasets, "recipes": _recipes, "suites": _suites}
    if what not in kinds:
        raise UserError(f"asd list knows no {what!r}{near(what, kinds)}")
    rows = kinds[what]()
    if as_json:
        print_json(rows)
        return
    table(what, list(rows[0]), [tuple(row.values()) for row in rows])


def _methods() -> list[dict[str, Any]]:
    from antishortcut.methods import METHODS, options_of, roles_of

    rows = []
    for name, method in METHODS.items():
        module = getattr(method, "func", method).__module__  # named variants are partials of their class
        told = (sys.modules[module].__doc__ or "").strip().splitlines()[0]
        rows.append(
            {"name": name, "what": told, "teacher states": ", ".join(roles_of(name, options_of(name, {}))) or "–"}
        )
    return rows


def _models() -> list[dict[str, Any]]:
    from antishortcut.models import describe

    return describe()


def _datasets() -> list[dict[str, Any]]:
    from antishortcut.data import SOURCES

    return [{"name": name, "what": source.description} for name, source in SOURCES.items()]


def _suites() -> list[dict[str, Any]]:
    from antishortcut.suites import describe

    return describe()


def _recipes() -> list[dict[str, Any]]:
    from antishortcut.run import load_recipe, shipped_recipes

    rows = []
    for name in shipped_recipes():
        recipe = load_recipe(name)
        pair = f"{recipe.teacher.name} → {recipe.student.name}"
        rows.append(
            {"name": name, "pair": pair, "data": recipe.data.name, "length": recipe.length, "what": recipe.title}
        )
    return rows
