"""Reference made from the code when the site is built: commands, settings, methods, the paper's suites."""

import re
import sys
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic_core import PydanticUndefined

from antishortcut.cli import app
from antishortcut.config.recipe import Recipe
from antishortcut.config.schema import ModelSettings, Settings, TeacherSettings
from antishortcut.experiments.paper import TABLES
from antishortcut.methods import METHODS, method_options, method_roles

CARD_TABLE = re.compile(r"^\| setting \| meaning \|\n\|---\|---\|\n((?:\| .*\n?)*)", re.MULTILINE)
SUITES = "<!-- suites of the paper -->"
EVERY_METHOD = "<!-- every method -->"
# settings that mean the same wherever a card does not say otherwise
COMMON = {
    "weight": "weight of the distillation term",
    "temperature": "τ",
    "kd": "weight of KD",
    "kd_temperature": "τ of KD",
    "task_weight": "weight of the task's own loss (cross-entropy)",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages that lie nowhere on disk."""
    for name, content in PAGES.items():
        files.append(File.generated(config, name, content=content()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return complete(markdown, page.file.src_uri)


def complete(markdown: str, page: str) -> str:
    """A page with its tables; on a method's card the settings get their defaults, and those it leaves out are added."""
    folder, _, name = page.rpartition("/")
    for mark, make in ((SUITES, suites), (EVERY_METHOD, every_method)):
        markdown = markdown.replace(mark, make() if mark in markdown else "")
    return card(markdown, name.removesuffix(".md")) if folder == "methods" else markdown


def suites() -> str:
    """Every table of the paper: its suite, what it is, and how many students it trains."""
    names = (f"`{name}`" + f", `{known.also}`" * bool(known.also) for name, known in TABLES.items())
    rows = [
        [name, _cell(known.what), str(len(known.jobs()))] for name, known in zip(names, TABLES.values(), strict=True)
    ]
    return table(["suite", "of the paper", "students"], rows)


def card(markdown: str, module: str) -> str:
    """A card with the settings and defaults of every method in antishortcut.methods.<module>."""
    names = [name for name, method in METHODS.items() if module_of(method) == module]

    def complete(found: re.Match[str]) -> str:
        told = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", found[1], re.MULTILINE))
        options = {name: method_options(name, {}) for name in names}
        keys = list(dict.fromkeys(key for settings in options.values() for key in settings))
        if unknown := [*(told.keys() - keys), *(key for key in keys if key not in told | COMMON)]:
            raise ValueError(f"the card of {module} must explain the settings of its methods, see {unknown}")
        columns = ["default"] if len(names) == 1 else [f"`{name}`" for name in names]
        rows = [
            [f"`{key}`", *(_value(settings.get(key)) for settings in options.values()), (COMMON | told)[key]]
            for key in keys
        ]
        return table(["setting", *columns, "meaning"], rows)

    return CARD_TABLE.sub(complete, markdown)


def every_method() -> str:
    """The first line of each method's file, and the teacher's checkpoints that it needs."""
    rows = []
    for name, method in METHODS.items():
        what = sys.modules[getattr(method, "func", method).__module__].__doc__ or ""
        needs = ", ".join(method_roles(name, method_options(name, {}))) or "–"
        rows.append([f"`{name}`", _cell(what.strip().splitlines()[0].rstrip(".")), needs])
    return table(["method", "what", "checkpoints"], rows)


def module_of(method: Any) -> str:
    """The file of a method; named variants (partial) share it."""
    return str(getattr(method, "func", method).__module__).rpartition(".")[2]


def commands() -> str:
    """Every command with its arguments and options."""
    parts = ["# Commands", "Every command prints this with `--help`. Bad input exits with code 2 and one line."]
    for name, command in _leaves(typer.main.get_command(app), "asd"):
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [each for each in command.params if each.param_type_name == "option" and "--help" not in each.opts]
        usage = [f"{each.name.upper()}{'…' * (each.nargs != 1)}" for each in arguments]
        words = (word if each.required else f"[{word}]" for word, each in zip(usage, arguments, strict=True))
        call = " ".join([name, *words])
        rows = [
            *([f"`{word}`", _default(each), _cell(each.help)] for word, each in zip(usage, arguments, strict=True)),
            *([f"`{'/'.join(each.opts + each.secondary_opts)}`", _default(each), _cell(each.help)] for each in options),
        ]
        help_text = re.sub(r"\s*\n\s*", " ", (command.help or "").replace("\b", "").strip())
        parts += [f"## {name}", f"```\n{call}{' [OPTIONS]' * bool(options)}\n```", _escaped(help_text)]
        parts += [table(["", "default", "meaning"], rows)] if rows else []
    return "\n\n".join(parts)


def settings() -> str:
    """Every setting of a recipe."""
    parts = [
        "# Settings",
        "What a recipe (`recipe.toml`) can set; every default is written to `run.json`. Change one with "
        "`--set optim.lr=0.1`. How a run is computed (device, precision, workers) is set by options of the "
        "[commands](commands.md#asd-distill). Settings of a method, `--set method.KEY=VALUE`, are on its "
        "[card](methods/index.md).",
        "## Length, title, methods",
        _fields(Recipe),
    ]
    for name, field in Recipe.model_fields.items():
        model: Any = field.annotation
        if isinstance(model, type) and issubclass(model, Settings):
            parts += [f"## [{name}]"]
            if model is TeacherSettings:
                parts += ["And all of [[student]](#student), for the teacher's network."]
            parts += [_fields(model, without=ModelSettings if model is TeacherSettings else None)]
    return "\n\n".join(parts)


PAGES = {"commands.md": commands, "settings.md": settings}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for key, each in command.commands.items():
        yield from _leaves(each, f"{name} {key}")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    return "" if value is None or value is False or value == "" else f"`{value}`"


def _fields(model: type[Settings], without: type[Settings] | None = None) -> str:
    rows = []
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        is_section = isinstance(kind, type) and issubclass(kind, Settings)
        if is_section or (without is not None and name in without.model_fields):
            continue
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else _value(default)
        rows.append([f"`{name}`", ", ".join(dict.fromkeys(_kinds(kind))), shown, _cell(field.description)])
    return table(["setting", "values", "default", "meaning"], rows)


def _kinds(kind: Any) -> Iterator[str]:
    """What a setting may be, in words."""
    origin = get_origin(kind)
    if origin is Literal:
        yield from (f"`{value}`" for value in get_args(kind))
    elif origin in (Union, UnionType):
        for each in get_args(kind):
            yield from _kinds(each)
    elif origin is Annotated:
        yield from _kinds(get_args(kind)[0])
    elif origin is tuple:
        yield "list of " + " or ".join(dict.fromkeys(_kinds(get_args(kind)[0])))
    elif origin is dict:
        yield "table"
    elif kind is not NoneType:
        yield {int: "integer", float: "number", bool: "true or false", str: "text"}[kind]


def _value(value: Any) -> str:
    if value is None or value in ("", (), {}):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(f'{each:g}' if isinstance(each, float) else str(each) for each in value)}]`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _cell(text: str | None) -> str:
    return _escaped(re.sub(r"\s+", " ", text or "")).replace("|", "\\|")


def _escaped(text: str) -> str:
    return re.sub(r"[<*_\[]", lambda mark: f"\\{mark[0]}", text) if "`" not in text else text
