"""asd list: what there is, with a line on each."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement

from antishortcut import __version__
from antishortcut import hardware as machine
from antishortcut.cli.options import MEASURED, JsonOption, RootOption, print_json, table, tell
from antishortcut.errors import UserError, first_line, suggest

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
        raise UserError(f"asd list knows no {what!r}{suggest(name, KINDS)}")
    if as_json:
        print_json(rows)
    else:
        table(what or "what there is", list(rows[0]), [tuple(row.values()) for row in rows])


def _methods() -> Rows:
    from antishortcut.methods import METHODS, method_options, method_roles

    rows = []
    for name, method in METHODS.items():
        module = getattr(method, "func", method).__module__  # named variants are partials of their class
        line = (sys.modules[module].__doc__ or "").strip().splitlines()[0].rstrip(".")
        own = ", ".join(f"{key} = {value}" for key, value in getattr(method, "keywords", {}).items())
        states = ", ".join(method_roles(name, method_options(name, {}))) or "–"
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
    from antishortcut.experiments.suites import describe

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


# --- asd doctor: versions, devices, what will be used ---


def doctor(data_root: RootOption = None, as_json: JsonOption = False) -> None:
    """Versions, devices, data found, what a run would use, and how to fix any problems."""

    result = examine(data_root)
    if as_json:
        print_json(result)
    else:
        rows = []
        for name, value in result.items():
            if isinstance(value, dict):
                rows += [(f"{name}: {key}", text or "missing") for key, text in value.items()]
            elif name not in ("warnings", "broken"):
                rows.append((name, value if isinstance(value, str) else ", ".join(value) or "none"))
        table("asd doctor", ("", ""), [(name, str(value)) for name, value in rows])
        for line in result["warnings"]:
            tell(f"- {line}")
    if result["broken"]:
        raise UserError(f"asd cannot run here: {'; '.join(result['broken'])}")
    if not as_json:
        tell("all well; next: asd demo, or asd check YOUR-FOLDER")


# --- What there is to compute with, what a run would use of it, and how to fix any problems ---

IMPORTED = ("torch", "torchvision", "timm", "lightning_fabric")
VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ANTISHORTCUT_DATA", "ANTISHORTCUT_NATIVE")
GIB = 2**30


def examine(data_root: Path | None = None) -> dict[str, Any]:
    """Everything, as JSON takes it: `warnings` say what to do, `broken` why asd cannot run."""
    broken, warnings = _broken(), list[str]()
    root = data_root or Path(os.environ.get("ANTISHORTCUT_DATA") or "data")
    sets = [] if broken else _present(root)
    if not root.is_dir() and (data_root or os.environ.get("ANTISHORTCUT_DATA")):
        warnings.append(f"data root {root}: no such folder")
    environment = {name: text for name, text in os.environ.items() if name in VARIABLES or "ANTISHORTCUT_" in name}
    warnings += [f"{name} is set, but means nothing" for name in environment if name not in VARIABLES]
    return {
        "versions": {"antishortcut": __version__, "python": platform.python_version()}
        | {name: _installed(name) for name in ("torch", "torchvision", "timm", "lightning-fabric")},
        "missing extras": _missing_extras(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": f"{machine.processor()}, {machine.cores()} of {os.cpu_count()} cores",
        **({} if broken else _torch(warnings)),
        "data root": str(root),
        "data sets there": sets,
        "disk free": _disk(warnings),
        "environment": environment,
        "warnings": warnings,
        "broken": broken,
    }


def _present(root: Path) -> list[str]:
    """Names of the data sets below the data root."""
    from antishortcut.data import DATASETS

    return [name for name, each in DATASETS.items() if any(_exists(root, mark) for mark in each.layout)]


def _exists(root: Path, mark: str) -> bool:
    """Below the root, or in it when the root is the data set's own folder."""
    first, _, rest = mark.partition("/")
    return (root / mark).exists() or (root.name == first and (root / rest).exists())


def _requirements() -> list[Requirement]:
    return [Requirement(line) for line in requires("antishortcut") or []]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _broken() -> list[str]:
    """Packages that are missing, too old, or cannot be imported."""
    problems = []
    for need in _requirements():
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            result = _installed(need.name)
            if result is None or not need.specifier.contains(result, prereleases=True):
                problems.append(f"{need.name} is {result or 'missing'}: pip install '{need.name}{need.specifier}'")
    for name in IMPORTED:
        try:
            importlib.import_module(name)
        except Exception as error:  # a library that does not fit its neighbours can raise anything
            problems.append(f"{name} cannot be imported ({first_line(error)}): install versions that fit each other")
    return problems


def _missing_extras() -> dict[str, str]:
    """Extras that are not installed, and the command that installs each."""
    needs, missing = _requirements(), {}
    for extra in metadata("antishortcut").get_all("Provides-Extra") or []:
        names = [need.name for need in needs if need.marker and need.marker.evaluate({"extra": extra})]
        if extra not in ("dev", "docs") and any(_installed(name) is None for name in names):
            missing[extra] = f"pip install 'antishortcut[{extra}]'"
    return missing


def _torch(warnings: list[str]) -> dict[str, Any]:
    """Devices, and what a run takes when no flag says otherwise."""
    import torch

    from antishortcut.config.recipe import Execution
    from antishortcut.teachers.frozen import fastest_precision, has_compiler
    from antishortcut.training.fabric import resolve_execution

    cards = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if not cards and shutil.which("nvidia-smi"):
        warnings.append(
            "there is an NVIDIA driver, but torch finds no GPU: install the build of pytorch.org/get-started"
        )
    if kind == "cpu":
        warnings.append("no GPU: fine for asd demo, cues and the desk suites; suites of the paper would take weeks")
    if not has_compiler(torch.device(kind)):
        warnings.append("no C++ compiler, so teachers are never compiled on the CPU: install g++ if runs are long")
    default: dict[str, Any] = {"device": kind, "threads": torch.get_num_threads()}
    try:
        chosen = resolve_execution(Execution())
        default |= {"student precision": chosen.precision, "teacher precision": fastest_precision(torch.device(kind))}
        default["workers"] = chosen.workers
    except UserError as error:  # ANTISHORTCUT_NATIVE, misspelt
        warnings.append(str(error))
    return {"GPUs": cards, "a run uses": default}


def _disk(warnings: list[str]) -> str:
    free, shared = shutil.disk_usage(".").free, machine.shared_bytes()
    if free < 5 * GIB:
        warnings.append(f"{free / GIB:.1f} GiB of disk are free here: make room")
    if shared is not None and shared < GIB / 4:
        warnings.append("/dev/shm is small, so few workers can pass batches: start the container with --shm-size=8g")
    return f"{free / GIB:.1f} GiB"
