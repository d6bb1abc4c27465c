"""asd audit, targets: what checkpoints of a teacher reveal before any student is trained."""

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
from typer import Option

from antishortcut.cli import options
from antishortcut.cli.options import DeviceOption, JsonOption, RootOption, ThreadsOption, print_json, table, tell
from antishortcut.errors import UserError

if TYPE_CHECKING:
    from antishortcut.models import Network
    from antishortcut.types import DataSplits

PAGE, RESULT = "audit.html", "audit.json"
WRITTEN = ("pictures", "figures", PAGE, RESULT)
CANDIDATE = ("early", "final", "lost", "explained")


@dataclass(frozen=True)
class AuditInput:
    """The networks and images of an audit."""

    model: str
    sets: DataSplits
    final: Network
    states: dict[str, Network]
    early: str
    files: dict[str, str]  # state → its file
    student: Network | None = None
    notes: tuple[str, ...] = ()


def audit(
    final: Annotated[Path | None, Option(help="Weights of the trained model: .safetensors, .pt, .pth.")] = None,
    early: Annotated[list[str] | None, Option(help="Early weights, FILE or NAME=FILE; repeated, in order.")] = None,
    model: options.ModelOption = None,
    data: options.DatasetOption = None,
    teacher: Annotated[Path | None, Option(help="Instead: runs/teachers/<hash>; --early is one of its states.")] = None,
    student: Annotated[Path | None, Option(help="A student's weights, or its run folder.")] = None,
    student_model: options.ModelOption = None,
    out: Annotated[Path, Option(help="Folder for audit.html, audit.json, pictures/ and figures/.")] = Path("audit"),
    data_root: RootOption = None,
    embedding: Annotated[str | None, Option(help="Module whose output is the embedding [default: found].")] = None,
    classes: Annotated[int | None, Option(min=1, help="Outputs of the model [default: the data's classes].")] = None,
    image_size: Annotated[int | None, Option(min=8, help="Side of the images [default: the data's].")] = None,
    set_name: options.TestSetOption = None,
    limit: Annotated[int, Option(min=1, help="At most so many images of the test and of the training set.")] = 5000,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Audit your own model: from two checkpoints and images, which directions training abandoned, and how sure."""
    from antishortcut.analysis.audit import audit as measure
    from antishortcut.data import open_sets
    from antishortcut.fileio import atomic_dir
    from antishortcut.run_dir import write_json

    options.use_threads(threads)
    device = options.find_device(device)
    _clear(out)
    flags: dict[str, Any] = {"--final": final, "--model": model, "--data": data}
    if teacher is not None:
        flags |= {"--embedding": embedding, "--classes": classes, "--image-size": image_size}
        if extra := [flag for flag, value in flags.items() if value is not None]:
            raise UserError(f"--teacher brings its own model and data; leave out {', '.join(extra)}")
        case = _from_teacher(teacher, early or (), data_root)
    else:
        if missing := [flag for flag, value in {**flags, "--early": early or None}.items() if value is None]:
            raise UserError(
                f"an audit needs --final, --early, --model and --data, or --teacher; missing: {', '.join(missing)}"
            )
        sets = open_sets(str(data), data_root, image_size=image_size)
        case = _from_files(str(model), Path(str(final)), early or (), sets, embedding, classes)
    if student is not None or student_model is not None:
        case = _with_student(case, student, student_model, classes)
    with atomic_dir(out.resolve()) as work:  # a link may lead to another disk
        choice: dict[str, Any] = {"early": case.early, "student": case.student, "set_name": set_name, "limit": limit}
        result = measure(case.final, case.states, case.sets, work, **choice, device=device, quiet=False)
        result |= {"model": case.model, "files": case.files, "notes": [*case.notes, *result["notes"]]}
        page = str(out / PAGE) if _write_page(result, work) else None
        write_json(work / RESULT, result)
    if as_json:
        print_json({"out": str(out), "page": page} | result)
    else:
        _show_audit(result)
        tell(page or out / RESULT)


def _from_teacher(path: Path, early: Sequence[str], data_root: Path | None) -> AuditInput:
    """A teacher's run folder: its model, its data, and all its states."""
    from antishortcut.teachers.trajectory import Trajectory, build_model
    from antishortcut.training.pipeline import Session

    folder = options.find_run(path)
    run, _ = folder.read()
    trajectory = Trajectory(folder)
    if not run.keep or not folder.finished:
        raise UserError(f"{path} is not a finished teacher (asd teach makes one)")
    if len(early) > 1:
        raise UserError("with --teacher all its states are candidates; give --early once, for the one to look at")
    requested = early[0] if early else run.early
    chosen, last = trajectory.entry(requested), trajectory.entries[-1]
    if chosen is last:
        raise UserError(f"{path}: its final state cannot be the early one too; choose another with --early")
    sets = Session(Path("runs"), data_root).sets(run.data)
    if sets.fingerprint != run.fingerprint:
        raise UserError(f"{path} was trained on other data than are here now (fingerprints differ)")
    networks, files = {}, {}
    for entry in trajectory.entries:
        name = "final" if entry is last else requested if entry is chosen else entry["labels"][0]
        networks[name] = build_model(_blank(run.model), len(sets.classes), sets.image_size)
        trajectory.fill(networks[name], entry["labels"][0])
        files[name] = str(folder.snapshots / entry["file"])
    return AuditInput(run.model.name, sets, networks.pop("final"), networks, requested, files)


def _blank(settings: Any) -> Any:
    return settings.model_copy(update={"weights": None, "pretrained": False})


def _from_files(
    model: str, final: Path, early: Sequence[str], sets: DataSplits, embedding: str | None, classes: int | None
) -> AuditInput:
    """Weights from files, all of one model: FILE or NAME=FILE."""
    paths: dict[str, Path] = {}
    for text in early:
        name, mark, file = text.partition("=")
        if not mark or Path(text).is_file():
            name, file = Path(text).stem, text
        if not name or name in ("final", "student"):
            raise UserError(f"--early {text}: call the state something else than {name!r}: --early NAME=FILE")
        if name in paths:
            raise UserError(f"two early states are called {name!r}; tell them apart: --early NAME=FILE")
        paths[name] = Path(file)
    networks = {name: _load(model, path, sets, embedding, classes) for name, path in {**paths, "final": final}.items()}
    files = {name: str(path) for name, path in {**paths, "final": final}.items()}
    return AuditInput(model, sets, networks.pop("final"), networks, next(iter(paths)), files)


def _load(
    model: str, path: Path, sets: DataSplits, embedding: str | None = None, classes: int | None = None
) -> Network:
    from antishortcut.models import build, load_weights

    if not path.is_file():
        raise UserError(f"no weights at {path}")
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


def _with_student(case: AuditInput, path: Path | None, model: str | None, classes: int | None) -> AuditInput:
    """The student from weights and a model's name, or from its run folder."""
    from antishortcut.models import load_weights
    from antishortcut.run_dir import RunDir
    from antishortcut.teachers.trajectory import build_model

    if path is None:
        raise UserError("--student-model needs --student")
    if not path.is_dir():
        if model is None:
            raise UserError(f"--student {path} needs --student-model; only a run folder knows its model")
        network = _load(model, path, case.sets, classes=classes)
        return replace(case, student=network, files={**case.files, "student": str(path)})
    if model is not None:
        raise UserError(f"--student {path} is a folder and knows its model; leave out --student-model")
    folder = RunDir(path)
    run, _ = folder.read()
    if not folder.finished or run.keep:
        raise UserError(f"{path} is not a finished student (asd distill makes one)")
    same = run.fingerprint == case.sets.fingerprint
    notes = () if same else ("The student was trained on other images than these (fingerprints differ).",)
    network = build_model(_blank(run.model), len(case.sets.classes), case.sets.image_size)
    load_weights(network, folder.weights())
    return replace(case, student=network, notes=notes, files={**case.files, "student": str(folder.student)})


def _clear(out: Path) -> None:
    """Only a new or empty folder, or that of an earlier audit, may be written to."""
    from antishortcut.fileio import recover_dir

    folder = out.resolve()
    recover_dir(folder)
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    earlier = RESULT in names and names <= set(WRITTEN)
    if (folder.exists() and not folder.is_dir()) or folder == Path.cwd() or (names and not earlier):
        raise UserError(f"--out {out} holds other things already; name a new folder")


def _write_page(result: dict[str, Any], work: Path) -> bool:
    """Write the page, if the report's libraries are installed."""
    from antishortcut.report import EXTRA

    try:
        from antishortcut.report.audit_page import write_page
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        tell(f"no page: it needs {error.name}; pip install 'antishortcut[report]'", file=sys.stderr)
        return False
    write_page(result, work)
    return True


def _show_audit(result: dict[str, Any]) -> None:
    for note in result["notes"]:
        tell(f"Note: {note}", file=sys.stderr)
    keys = ("state", "accuracy", "shortcut", "abandoned", "robust")
    table(
        f"{result['model']} on {result['data']}: {result['count']:,} images of {result['set']}, share of energy in",
        ("state", "accuracy", "displaced", "abandoned", "principal directions"),
        [tuple(row[key] for key in keys) for row in result["energy"]],
    )
    keys = ("number", "energy_early", "energy_final", "kept", "fate")
    table(
        f"T_early = {result['early']}: energy of each direction, and the classes at its ends",
        ("kind", "no.", "T_early", "T_final", "left", "so", "one end", "other end"),
        [
            (kind, *(row[key] for key in keys), ", ".join(row["classes_high"]), ", ".join(row["classes_low"]))
            for kind, rows in result["directions"].items()
            for row in rows
        ],
    )
    table(
        "candidates for T_early: displaced directions of one half of the images, energy on the other half",
        ("state", "early", "final", "lost", "movement explained", "degrees between halves"),
        [
            (row["state"], *(row["displaced"][key] for key in CANDIDATE), row["displaced"]["agreement"]["mean"])
            for row in result["candidates"]
        ],
    )
    width = max(40, min(120, shutil.get_terminal_size().columns))
    for line in result["findings"]:
        beside = f" ({line['beside']})" if line["beside"] else ""
        tell(f"{line['name']}: {line['value']}{beside}")
        tell(textwrap.fill(line["means"], width, initial_indent="    ", subsequent_indent="    "))


# --- asd targets ---

COLUMNS = {
    "state": "T_early", "strength": "λ", "agreement": "agree", "moved": "moved", "entropy": "entropy",
    "early_accuracy": "early", "final_accuracy": "final", "target_accuracy": "target", "hard_accuracy": "hard",
}  # fmt: skip
LEGEND = (
    "agree: share of images where T_early and T_final predict the same class; moved: share whose target has another "
    "top class than T_final's; entropy of the targets at τ = 4, in nats; then accuracies: of T_early, T_final and the "
    "targets, and of the targets on the images that T_early gets wrong."
)


def targets(
    teacher: Annotated[Path, typer.Argument(help="A teacher's folder, runs/teachers/<hash>.")],
    states: Annotated[str, Option(help="Early states, comma-separated [default: all it kept].")] = "",
    strengths: Annotated[str, Option(help="Values of λ, comma-separated.")] = "0,0.25,0.5,1,2",
    data_root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose λ and T_early of contrast targets without any test image, before a student is trained."""
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
    folder, screen = RunDir(teacher), console()
    sets = Session(Path("runs"), data_root).sets(folder.read()[0].data)
    names = options.split_names(states)
    result = measure(folder, sets, names, values, lambda text: screen.print(text, markup=False))
    if as_json:
        print_json(result)
        return
    rows = [tuple(row[key] for key in COLUMNS) for row in result["rows"]]
    table(f"contrast targets on {result['count']:,} {result['set']} images", list(COLUMNS.values()), rows)
    print(LEGEND)
    largest = ", ".join(
        f"{name} {'none' if value is None else f'{value:g}'}" for name, value in result["largest"].items()
    )
    tell(f"Largest λ whose targets lose at most {LOST:.0%} of T_final's accuracy, by T_early: {largest}")
