"""asd list, doctor, bench, selftest: what is available, whether this machine is ready, works, and how fast it is."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from packaging.requirements import Requirement
from typer import Argument, Option

from antishortcut import __version__, hardware
from antishortcut.cli import options
from antishortcut.cli.options import MEASURED, JsonOption, RootOption, print_json, print_rows, starting, table, tell
from antishortcut.config.recipe import Execution, load_recipe, shipped_recipes
from antishortcut.errors import UserError, first_line, suggest
from antishortcut.experiments.suites import describe_suites
from antishortcut.progress import ProgressBar

if TYPE_CHECKING:
    from antishortcut.data.datasets import TrainingSize
    from antishortcut.experiments.benchmark import Pair

KINDS = {  # kind → where its names are used
    "methods": "asd distill RECIPE --method NAME",
    "models": "asd distill RECIPE --set student.name=NAME",
    "recipes": "asd distill NAME",
    "datasets": "asd check NAME",
    "suites": "asd suite run NAME",
    "augmentations": "asd distill RECIPE --set data.augment=NAME",
    "evaluations": "asd evaluate RUN --on NAME",
}
LISTED = f"{', '.join(KINDS)}; without it, this list."


def list_(
    what: Annotated[
        str | None, Argument(help=LISTED, autocompletion=lambda incomplete: starting(KINDS, incomplete))
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List what is available, with a line on each."""
    name = {"data": "datasets"}.get(what or "", what)
    if name is None:
        rows = [{"what": kind, "shown by": f"asd list {kind}", "used by": use} for kind, use in KINDS.items()]
    elif name in KINDS:
        rows = _rows(name)
    else:
        raise UserError(f"asd list knows no {what!r}{suggest(name, KINDS)}")
    print_rows(what or "asd list", rows, as_json)


def _rows(kind: str) -> list[dict[str, Any]]:
    if kind == "methods":
        return _methods()
    if kind == "models":
        from antishortcut.models import describe

        return describe()
    if kind == "suites":
        return describe_suites()
    if kind == "recipes":
        recipes = {name: load_recipe(name) for name in shipped_recipes()}
        return [
            {"name": name, "pair": f"{r.teacher.name} → {r.student.name}", "data": r.data.name, "length": r.length}
            | {"what": r.title}
            for name, r in recipes.items()
        ]
    from antishortcut.data import AUGMENTS, DATASETS

    datasets = {name: dataset.help for name, dataset in DATASETS.items()}
    lines = {"datasets": datasets, "augmentations": AUGMENTS, "evaluations": MEASURED}[kind]
    return [{"name": name, "what": line} for name, line in lines.items()]


def _methods() -> list[dict[str, Any]]:
    from antishortcut.methods import METHODS, method_options, method_roles

    rows = []
    for name, method in METHODS.items():
        module = getattr(method, "func", method).__module__  # named variants are partials of their class
        line = (sys.modules[module].__doc__ or name).strip().splitlines()[0].rstrip(".")
        own = ", ".join(f"{key} = {value}" for key, value in getattr(method, "keywords", {}).items())
        states = ", ".join(method_roles(name, method_options(name, {}))) or "–"
        rows.append({"name": name, "what": f"{line}; with {own}" if own else line, "teacher states": states})
    return rows


# --- asd doctor ---

VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ANTISHORTCUT_DATA", "ANTISHORTCUT_NATIVE")
GIB = 2**30


def doctor(data_root: RootOption = None, as_json: JsonOption = False) -> None:
    """Check your environment: versions, devices, data, defaults of a run, and how to fix any problems."""
    result = examine(data_root)
    if as_json:
        print_json(result)
    else:
        rows: list[tuple[str, str]] = []
        for name, value in result.items():
            if isinstance(value, dict):
                rows += [(f"{name}: {key}", str(text or "missing")) for key, text in value.items()]
            elif name not in ("warnings", "broken"):
                rows.append((name, value if isinstance(value, str) else ", ".join(value) or "none"))
        table("asd doctor", ("", ""), rows)
        for line in result["warnings"]:
            tell(f"- {line}")
    if result["broken"]:
        raise UserError(f"asd cannot run here: {'; '.join(result['broken'])}")
    if not as_json:
        tell("no problems; next: asd demo, or asd check YOUR-FOLDER")


def examine(data_root: Path | None = None) -> dict[str, Any]:
    """The report as JSON: `warnings` say what to do, `broken` why asd cannot run."""
    needs = [Requirement(line) for line in requires("antishortcut") or []]
    broken, warnings = _broken(needs), list[str]()
    variable = os.environ.get("ANTISHORTCUT_DATA")
    root = data_root or Path(variable or "data")
    if not root.is_dir() and (data_root or variable):
        warnings.append(f"data root {root}: no such folder")
    environment = {name: text for name, text in os.environ.items() if name in VARIABLES or "ANTISHORTCUT_" in name}
    warnings += [f"{name} is set, but means nothing" for name in environment if name not in VARIABLES]
    free, shared = shutil.disk_usage(".").free, hardware.shared_bytes()
    if free < 5 * GIB:
        warnings.append(f"{free / GIB:.1f} GiB of disk are free here: make room")
    if shared is not None and shared < GIB / 4:
        warnings.append("/dev/shm is small, so few workers can pass batches: start the container with --shm-size=8g")
    return {
        "versions": {"antishortcut": __version__, "python": platform.python_version()}
        | {name: _installed(name) for name in ("torch", "torchvision", "timm", "lightning-fabric")},
        "missing extras": _missing_extras(needs),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": f"{hardware.processor()}, {hardware.cores()} of {os.cpu_count()} cores",
        **({} if broken else _devices(warnings)),
        "data root": str(root),
        "data sets there": [] if broken else _present(root),
        "disk free": f"{free / GIB:.1f} GiB",
        "environment": environment,
        "warnings": warnings,
        "broken": broken,
    }


def _present(root: Path) -> list[str]:
    """Names of the data sets below the data root, or in it if the root is a data set's own folder."""
    from antishortcut.data import DATASETS

    def exists(mark: str) -> bool:
        first, _, rest = mark.partition("/")
        return (root / mark).exists() or (root.name == first and (root / rest).exists())

    return [name for name, dataset in DATASETS.items() if any(map(exists, dataset.layout))]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _broken(needs: list[Requirement]) -> list[str]:
    """Packages that are missing, too old, or cannot be imported."""
    problems = []
    for need in needs:
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            installed = _installed(need.name)
            if installed is None or not need.specifier.contains(installed, prereleases=True):
                problems.append(f"{need.name} is {installed or 'missing'}: pip install '{need.name}{need.specifier}'")
    for name in ("torch", "torchvision", "timm", "lightning_fabric"):
        try:
            importlib.import_module(name)
        except Exception as error:  # a library that does not fit its neighbours can raise anything
            problems.append(f"{name} cannot be imported ({first_line(error)}): install versions that fit each other")
    return problems


def _missing_extras(needs: list[Requirement]) -> dict[str, str]:
    """Extra → the command that installs it."""
    missing = {}
    for extra in metadata("antishortcut").get_all("Provides-Extra") or []:
        names = [need.name for need in needs if need.marker and need.marker.evaluate({"extra": extra})]
        if extra not in ("dev", "docs") and any(_installed(name) is None for name in names):
            missing[extra] = f"pip install 'antishortcut[{extra}]'"
    return missing


def _devices(warnings: list[str]) -> dict[str, Any]:
    """GPUs, and the defaults of a run."""
    import torch

    from antishortcut.teachers.frozen import fastest_precision, has_compiler
    from antishortcut.training.fabric import resolve_execution

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if not gpus and shutil.which("nvidia-smi"):
        warnings.append("an NVIDIA driver is here, but torch finds no GPU: see pytorch.org/get-started")
    if kind == "cpu":
        warnings.append("no GPU: fine for asd demo, cues and the desk suites; suites of the paper would take weeks")
    if not has_compiler(torch.device(kind)):
        warnings.append("no C++ compiler, so teachers are never compiled on the CPU: install g++ if runs are long")
    execution = resolve_execution(Execution())
    default = {"device": kind, "threads": torch.get_num_threads(), "workers": execution.workers}
    default |= {"student precision": execution.precision, "teacher precision": fastest_precision(torch.device(kind))}
    return {"GPUs": gpus, "a run uses": default}


# --- asd bench ---

PAIR = "TEACHER:STUDENT on CIFAR-100, or a recipe."
METHOD_NAMES = options.last_of(lambda: options.methods(""))


def bench(
    pair: Annotated[str, Option(help=PAIR, autocompletion=options.recipes)] = "wrn-40-2:wrn-16-2",
    methods: Annotated[str, Option(help="Comma-separated, or all.", autocompletion=METHOD_NAMES)] = "kd,asd,contrast",
    batch: Annotated[int | None, Option(min=2, help="Batch size [default: 64, or the recipe's].")] = None,
    rounds: Annotated[int, Option(min=1, help="Measured steps of each method.")] = 20,
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 0,
    compile: Annotated[str, Option("--teacher-compile", help="on, off; auto: whichever is faster.")] = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Milliseconds of a training step by method, interleaved, with ratios and where the time goes."""
    from antishortcut.experiments.benchmark import PHASES, WARM
    from antishortcut.experiments.benchmark import bench as measure
    from antishortcut.methods import METHODS

    names = list(METHODS) if methods.strip() == "all" else options.split_names(methods)
    if not names:
        raise UserError("--methods names none; asd list methods shows them")
    options.execution_of(teacher_compile=compile)  # checked
    device = options.use_hardware(device, threads)
    models, size, usual = _networks(pair)
    settings: dict[str, Any] = {"batch": batch or usual, "rounds": rounds, "compile": compile, "images": size}
    with ProgressBar(f"bench {pair} on {device}", rounds + WARM) as bar:
        result = measure(models, names, device=device, tell=lambda n: bar.update(n, {}), **settings)
    if as_json:
        options.print_json(result)
        return
    split, passes = result["split"], result["teacher_passes"]
    rows = [(method, passes[method], ms, *split[method].values()) for method, ms in result["ms"].items()]
    title = f"ms a step, {pair}, batch {result['batch']}, {device}, median of {rounds}"
    options.table(title, ("method", "teacher passes", "step", *PHASES), rows)
    options.table("ratios, round by round", ("", "ratio"), list(result["ratio"].items()))


# --- asd selftest ---

PARTS = "Comma-separated: terms, precision, resume, processes, speed, loader."
CONTRIBUTE = (
    "to contribute it, copy it to docs/results/gpu, run python benchmarks/gpu.py, and open a pull request with both"
)


def selftest(
    device: options.DeviceOption = "auto",
    threads: options.ThreadsOption = 0,
    only: Annotated[str | None, Option(help=PARTS)] = None,
    quick: Annotated[bool, Option("--quick", help="Fewer pairs, steps and images: a few minutes on a CPU.")] = False,
    out: Annotated[Path | None, Option(help="The JSON file [default: selftest-DEVICE.json].")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Check that everything works on this device, and measure how fast. About ten minutes on a GPU."""
    from antishortcut.experiments.selftest import rows
    from antishortcut.experiments.selftest import selftest as run
    from antishortcut.run_dir import write_json

    device = options.use_hardware(device, threads)
    result = run(device, options.split_names(only or ""), quick, lambda line: tell(line, sys.stderr))
    name = re.sub(r"[^0-9a-z]+", "-", result["machine"]["device"].lower()).strip("-")
    path = out or Path(f"selftest-{name}.json")
    write_json(path, result)
    if as_json:
        print_json(result)
    else:
        table(f"asd selftest on {result['machine']['device']}", ("part", "", ""), rows(result))
    failed = [name for name, part in result["parts"].items() if not part["passed"]]
    if failed:
        raise UserError(f"selftest failed: {', '.join(failed)}; the details are in {path}: report it with that file")
    tell(f"wrote {path}; {CONTRIBUTE}", sys.stderr)


def _networks(pair: str) -> tuple[Pair, TrainingSize, int]:
    """Teacher and student, the size of their data, and the usual batch size."""
    from antishortcut.experiments.benchmark import CIFAR, pair_of
    from antishortcut.experiments.cost import architecture, size_of

    if pair.partition("@")[0] not in shipped_recipes() and not Path(pair).is_file():
        return pair_of(pair), CIFAR, 64
    recipe = load_recipe(pair)
    size = size_of(recipe.data)
    if size.dense:
        raise UserError(f"--pair {pair}: {recipe.data.name} is not measured here; write TEACHER:STUDENT")
    return (architecture(recipe.teacher), architecture(recipe.student)), size, recipe.optim.batch
