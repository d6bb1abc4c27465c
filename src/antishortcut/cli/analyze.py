"""asd audit: which directions training left, which images excite them, how sure that is; no student needed."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antishortcut.cli import options as complete
from antishortcut.cli.options import (
    DeviceOption,
    JsonOption,
    RootOption,
    ThreadsOption,
    print_json,
    table,
    tell,
    use_threads,
)
from antishortcut.errors import UserError

if TYPE_CHECKING:
    from antishortcut.models import Network
    from antishortcut.types import DataSplits

PAGE, RESULT = "audit.html", "audit.json"
PARTS = ("pictures", "figures", PAGE, RESULT)  # what an audit writes


@dataclass(frozen=True)
class Case:
    """What is audited, opened."""

    model: str
    sets: DataSplits
    final: Network
    states: dict[str, Network]
    early: str
    files: dict[str, str]  # state → where it was read from
    student: Network | None = None
    notes: tuple[str, ...] = ()


def audit(
    final: Annotated[Path | None, typer.Option(help="Weights of the trained model: .safetensors, .pt, .pth.")] = None,
    early: Annotated[
        list[str] | None, typer.Option(help="Weights of an early state, FILE or NAME=FILE; repeated, in order.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="asd list models, or timm:NAME, torchvision:NAME, import:….", autocompletion=complete.models),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A data set (asd list datasets), or folder:PATH.", autocompletion=complete.datasets),
    ] = None,
    teacher: Annotated[
        Path | None, typer.Option(help="Instead of these four: runs/teachers/<hash>; --early then names a kept state.")
    ] = None,
    student: Annotated[Path | None, typer.Option(help="A student's weights, or its run folder.")] = None,
    student_model: Annotated[
        str | None,
        typer.Option(help="The student's model, where weights are given.", autocompletion=complete.models),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where audit.html, audit.json, pictures/ and figures/ go.")] = Path("audit"),
    data_root: RootOption = None,
    embedding: Annotated[
        str | None, typer.Option(help="Module whose output is the embedding [default: found].")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=1, help="Outputs of the model [default: the data's classes].")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=8, help="Side of the images [default: the data's].")] = None,
    set_name: Annotated[str | None, typer.Option(help="Which test set [default: the first].")] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="At most so many images of the test and of the training set.")
    ] = 5000,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Audit a model of your own: from two checkpoints and images, which directions training left, and how sure."""
    from antishortcut.cli.evaluate import device_of

    use_threads(threads)
    place = device_of(device)
    _clear(out)
    inputs = {"--final": final, "--model": model, "--data": data}
    if teacher is not None:
        _refuse(inputs | {"--embedding": embedding, "--classes": classes, "--image-size": image_size})
        case = _from_teacher(teacher, early or (), data_root)
    else:
        case = _from_files(inputs, early or (), data_root, embedding, classes, image_size)
    if student is not None or student_model is not None:
        case = _with_student(case, student, student_model, classes)
    result, page = _measure(case, out, set_name, limit, place)
    if as_json:
        print_json({"out": str(out), "page": page} | result)
        return
    _tell(result)
    tell(page or out / RESULT)


def _measure(case: Case, out: Path, set_name: str | None, limit: int, device: str) -> tuple[dict[str, Any], str | None]:
    """Findings, and where the page is; all files are there when this returns."""
    from antishortcut.analysis.audit import audit as measure
    from antishortcut.fileio import atomic_dir
    from antishortcut.run_dir import write_json

    with atomic_dir(out.resolve()) as work:  # a link may lead to another disk, to which nothing can be moved
        choice: dict[str, Any] = {"early": case.early, "student": case.student, "set_name": set_name, "limit": limit}
        result = measure(case.final, case.states, case.sets, work, **choice, device=device, quiet=False)
        result |= {"model": case.model, "files": case.files, "notes": [*case.notes, *result["notes"]]}
        paged = _page(result, work)
        write_json(work / RESULT, result)
    return result, str(out / PAGE) if paged else None


def _refuse(given: dict[str, Any]) -> None:
    extra = [flag for flag, value in given.items() if value is not None]
    if extra:
        raise UserError(f"--teacher brings its own model and data; leave out {', '.join(extra)}")


def _from_teacher(path: Path, early: Sequence[str], data_root: Path | None) -> Case:
    """A teacher's run folder: its model, its data, all states it kept; early is the one asked for, or its own."""
    from antishortcut.run_dir import RunDir
    from antishortcut.teachers.trajectory import Trajectory, build_model
    from antishortcut.training.pipeline import Session

    by_hash = Path("runs") / "teachers" / path
    folder = RunDir(by_hash if by_hash.is_dir() and not path.is_dir() else path)
    run, _ = folder.read()
    trajectory = Trajectory(folder)
    if not run.keep or not folder.finished:
        raise UserError(f"{path} is not a finished teacher (asd teach makes one)")
    if early and len(early) > 1:
        raise UserError("with --teacher all its states are candidates; give --early once, for the one to look at")
    requested = early[0] if early else run.early
    chosen = trajectory.entry(requested)
    *before, last = trajectory.entries
    if chosen is last:
        raise UserError(f"{path}: its final state cannot be the early one too; choose another with --early")
    sets = Session(Path("runs"), data_root).sets(run.data)
    if sets.fingerprint != run.fingerprint:
        raise UserError(f"{path} was trained on other data than are here now (fingerprints differ)")
    names = {entry["file"]: requested if entry is chosen else entry["labels"][0] for entry in before} | {
        last["file"]: "final"
    }
    blank = run.model.model_copy(update={"weights": None, "pretrained": False})
    networks = {}
    for entry in trajectory.entries:
        network = build_model(blank, len(sets.classes), sets.image_size)
        trajectory.fill(network, entry["labels"][0])
        networks[names[entry["file"]]] = network
    files = {name: str(folder.snapshots / file) for file, name in names.items()}
    return Case(run.model.name, sets, networks.pop("final"), networks, requested, files)


def _from_files(
    given: dict[str, Any],
    early: Sequence[str],
    data_root: Path | None,
    embedding: str | None,
    classes: int | None,
    image_size: int | None,
) -> Case:
    """Weights from files, all of one model."""
    from antishortcut.data import open_sets

    missing = [flag for flag, value in {**given, "--early": early or None}.items() if value is None]
    if missing:
        raise UserError(
            f"an audit needs --final, --early, --model and --data, or --teacher; missing: {', '.join(missing)}"
        )
    final, model = given["--final"], given["--model"]
    places = _named(early)
    for path in (final, *places.values()):
        if not path.is_file():
            raise UserError(f"no weights at {path}")
    sets = open_sets(given["--data"], data_root, image_size=image_size)
    networks = {
        name: _network(model, path, sets, embedding, classes) for name, path in {**places, "final": final}.items()
    }
    files = {name: str(path) for name, path in {**places, "final": final}.items()}
    return Case(model, sets, networks.pop("final"), networks, next(iter(places)), files)


def _named(texts: Sequence[str]) -> dict[str, Path]:
    """NAME=FILE or FILE, which is then called by its name without ending."""
    result: dict[str, Path] = {}
    for text in texts:
        name, mark, file = text.partition("=")
        if not mark or Path(text).is_file():
            name, file = Path(text).stem, text
        if not name or name in ("final", "student"):
            raise UserError(f"--early {text}: call the state something else than {name!r}: --early NAME=FILE")
        if name in result:
            raise UserError(f"two early states are called {name!r}; tell them apart: --early NAME=FILE")
        result[name] = Path(file)
    return result


def _network(
    model: str, path: Path, sets: DataSplits, embedding: str | None = None, classes: int | None = None
) -> Network:
    from antishortcut.models import build, load_weights

    network = build(model, classes or len(sets.classes), image_size=sets.image_size, embedding=embedding)
    try:
        load_weights(network, path)
    except UserError as error:
        if "of another shape" not in str(error) or classes is not None:
            raise
        raise UserError(
            f"{error}; {sets.name} has {len(sets.classes)} classes: where the model has other outputs, give --classes"
        ) from None
    return network


def _with_student(case: Case, path: Path | None, model: str | None, classes: int | None) -> Case:
    """The student from weights and a model's name, or from its run folder, which knows its model."""
    from antishortcut.run_dir import RunDir

    if path is None:
        raise UserError("--student-model needs --student")
    if not path.is_dir():
        if model is None:
            raise UserError(f"--student {path} needs --student-model; only a run folder knows its model")
        files = {**case.files, "student": str(path)}
        return replace(case, student=_network(model, path, case.sets, classes=classes), files=files)
    if model is not None:
        raise UserError(f"--student {path} is a folder and knows its model; leave out --student-model")
    folder = RunDir(path)
    run, _ = folder.read()
    if not folder.finished or run.keep:
        raise UserError(f"{path} is not a finished student (asd distill makes one)")
    other = run.fingerprint != case.sets.fingerprint
    notes = ("The student was trained on other images than these (fingerprints differ).",) if other else ()
    network = _of_run(run.model, folder.weights(), case.sets)
    return replace(case, student=network, notes=notes, files={**case.files, "student": str(folder.student)})


def _of_run(settings: Any, path: Path, sets: DataSplits) -> Network:
    from antishortcut.models import load_weights
    from antishortcut.teachers.trajectory import build_model

    blank = settings.model_copy(update={"weights": None, "pretrained": False})
    network = build_model(blank, len(sets.classes), sets.image_size)
    load_weights(network, path)
    return network


def _clear(out: Path) -> None:
    """Only an empty or new folder, or that of an earlier audit, may be written to."""
    from antishortcut.fileio import recover_dir

    place = out.resolve()
    recover_dir(place)
    names = {path.name for path in place.iterdir()} if place.is_dir() else set()
    earlier = RESULT in names and names <= set(PARTS)
    if (place.exists() and not place.is_dir()) or place == Path.cwd() or (names and not earlier):
        raise UserError(f"--out {out} holds other things already; name a new folder")


def _page(found: dict[str, Any], work: Path) -> bool:
    """Write the page, where what it needs is installed."""
    from antishortcut.report import EXTRA

    try:
        from antishortcut.report.audit_page import write_page
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        tell(f"no page: it needs {error.name}; pip install 'antishortcut[report]'", file=sys.stderr)
        return False
    write_page(found, work)
    return True


def _tell(found: dict[str, Any]) -> None:
    """Tables and plain sentences; what must be known first goes to standard error."""
    for note in found["notes"]:
        tell(f"Note: {note}", file=sys.stderr)
    table(*_states(found))
    table(*_directions(found))
    table(*_candidates(found))
    width = max(40, min(120, shutil.get_terminal_size().columns))
    for line in found["findings"]:
        beside = f" ({line['beside']})" if line["beside"] else ""
        tell(f"{line['name']}: {line['value']}{beside}")
        tell(textwrap.fill(line["means"], width, initial_indent="    ", subsequent_indent="    "))


def _states(found: dict[str, Any]) -> tuple[str, tuple[str, ...], list[tuple[Any, ...]]]:
    title = (
        f"{found['model']} on {found['data']}: {found['count']:,} images of {found['set']}, share of their energy in"
    )
    heads = ("state", "accuracy", "displaced", "abandoned", "principal directions")
    keys = ("state", "accuracy", "shortcut", "abandoned", "robust")
    return title, heads, [tuple(row[key] for key in keys) for row in found["energy"]]


def _directions(found: dict[str, Any]) -> tuple[str, tuple[str, ...], list[tuple[Any, ...]]]:
    title = f"T_early = {found['early']}: energy of each direction, and the classes at its ends"
    heads = ("kind", "no.", "T_early", "T_final", "left", "so", "one end", "other end")
    rows = []
    for kind, directions in found["directions"].items():
        for one in directions:
            energy = (one["number"], one["energy_early"], one["energy_final"], one["kept"], one["fate"])
            rows.append((kind, *energy, ", ".join(one["classes_high"]), ", ".join(one["classes_low"])))
    return title, heads, rows


def _candidates(found: dict[str, Any]) -> tuple[str, tuple[str, ...], list[tuple[Any, ...]]]:
    title = "candidates for T_early: displaced directions of one half of the images, energy on the other half"
    heads = ("state", "early", "final", "lost", "movement caught", "degrees between halves")
    rows = []
    for row in found["candidates"]:
        one = row["displaced"]
        values = (one["early"], one["final"], one["lost"], one["explained"], one["agreement"]["mean"])
        rows.append((row["state"], *values))
    return title, heads, rows


# --- asd targets: what contrast targets would say, to choose λ and T_early by ---

COLUMNS = {
    "state": "T_early",
    "strength": "λ",
    "agreement": "agree",
    "moved": "moved",
    "entropy": "entropy",
    "early_accuracy": "early",
    "final_accuracy": "final",
    "target_accuracy": "target",
    "hard_accuracy": "hard",
}
WORDS = (
    "agree: share of images that T_early and T_final call the same; moved: share whose target is led by another class "
    "than T_final's; entropy of the targets at τ = 4, in nats; then accuracies: of T_early, T_final and the "
    "targets, and of the targets on the images that T_early gets wrong."
)


def targets(
    teacher: Annotated[Path, typer.Argument(help="A teacher's folder, runs/teachers/<hash>.")],
    states: Annotated[str, typer.Option(help="Early states, comma-separated [default: all it kept].")] = "",
    strengths: Annotated[str, typer.Option(help="Values of λ, comma-separated.")] = "0,0.25,0.5,1,2",
    data_root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Signs to choose λ and T_early of contrast targets by, without any test image and before a student is trained."""
    from antishortcut.analysis.contrast_targets import LOST, measure
    from antishortcut.progress import console
    from antishortcut.run_dir import RunDir
    from antishortcut.training.pipeline import Session

    try:
        values = [float(word) for word in strengths.split(",") if word.strip()]
    except ValueError:
        values = []
    if not values or not all(0 <= value < math.inf for value in values):
        raise UserError(f"--strengths {strengths!r}: write numbers from 0 up, like 0.25,0.5,1")
    folder = RunDir(teacher)
    run, _ = folder.read()
    required = [word.strip() for word in states.split(",") if word.strip()]
    sets = Session(Path("runs"), data_root).sets(run.data)
    screen = console()
    result = measure(folder, sets, required, values, lambda text: screen.print(text, markup=False))
    if as_json:
        print_json(result)
        return
    rows = [tuple(row[key] for key in COLUMNS) for row in result["rows"]]
    table(f"contrast targets on {result['count']:,} {result['set']} images", list(COLUMNS.values()), rows)
    print(WORDS)
    message = ", ".join(
        f"{state} {'none' if value is None else f'{value:g}'}" for state, value in result["largest"].items()
    )
    tell(f"Largest λ whose targets lose at most {LOST:.0%} of T_final's accuracy, by T_early: {message}")
