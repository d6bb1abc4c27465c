"""asd audit, targets: what checkpoints of a teacher reveal before any student is trained."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from antishortcut.cli import options
from antishortcut.cli.options import DeviceOption, JsonOption, RootOption, ThreadsOption, print_json, table, tell
from antishortcut.errors import UserError
from antishortcut.fileio import atomic_dir, recover_dir
from antishortcut.progress import console
from antishortcut.run_dir import RunDir, write_json

if TYPE_CHECKING:
    from antishortcut.models import Network
    from antishortcut.types import DataSplits

PAGE, RESULT = "audit.html", "audit.json"

# Columns of the tables: key → heading
ENERGY = {
    "state": "state", "accuracy": "accuracy", "shortcut": "displaced", "abandoned": "abandoned",
    "robust": "principal directions",
}  # fmt: skip
CANDIDATE = {
    "state": "state", "early": "early", "final": "final", "lost": "lost", "explained": "movement explained",
    "degrees": "degrees between halves",
}  # fmt: skip
TARGET = {
    "state": "T_early", "strength": "λ", "agreement": "agree", "moved": "moved", "entropy": "entropy",
    "early_accuracy": "early", "final_accuracy": "final", "target_accuracy": "target", "hard_accuracy": "hard",
}  # fmt: skip


@dataclass
class AuditInput:
    """The networks and images of an audit."""

    model: str
    sets: DataSplits
    networks: dict[str, Network]  # state → network; "final" and perhaps "student" among them
    files: dict[str, str]  # state → its file
    early: str  # the state to look at
    notes: list[str] = field(default_factory=list)


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

    try:
        from antishortcut.report.audit_page import write_page
    except ModuleNotFoundError as error:
        raise UserError(f"an audit needs {error.name}: pip install 'antishortcut[report]'") from None

    device = options.use_hardware(device, threads)
    _clear(out)
    if teacher is not None:
        if any(value is not None for value in (final, model, data, embedding, classes, image_size)):
            raise UserError("--teacher brings its own model and data; leave out what describes them")
        case = _from_teacher(teacher, early or (), data_root)
    elif final is None or not early or model is None or data is None:
        raise UserError("an audit needs --final, --early, --model and --data, or --teacher")
    else:
        case = _from_files(model, final, early, open_sets(data, data_root, image_size=image_size), embedding, classes)
    if student is not None or student_model is not None:
        _add_student(case, student, student_model, classes)
    last, learner = case.networks.pop("final"), case.networks.pop("student", None)
    with atomic_dir(out.resolve()) as work:  # a link may lead to another disk
        choice: dict[str, Any] = {"early": case.early, "student": learner, "set_name": set_name, "limit": limit}
        result = measure(last, case.networks, case.sets, work, **choice, device=device, quiet=False)
        result |= {"model": case.model, "files": case.files, "notes": [*case.notes, *result["notes"]]}
        write_page(result, work)
        write_json(work / RESULT, result)
    if as_json:
        print_json({"out": str(out), "page": str(out / PAGE)} | result)
    else:
        _show_audit(result)
        tell(out / PAGE)


def _from_teacher(path: Path, early: Sequence[str], data_root: Path | None) -> AuditInput:
    """A teacher's run folder: its model, its data, and all its states."""
    from antishortcut.teachers.trajectory import Trajectory, build_saved
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
    case = AuditInput(run.model.name, sets, {}, {}, requested)
    for entry in trajectory.entries:
        name = "final" if entry is last else requested if entry is chosen else entry["labels"][0]
        case.networks[name] = build_saved(folder, len(sets.classes), sets.image_size)
        trajectory.fill(case.networks[name], entry["labels"][0])
        case.files[name] = str(folder.snapshots / entry["file"])
    return case


def _from_files(
    model: str, final: Path, early: Sequence[str], sets: DataSplits, embedding: str | None, classes: int | None
) -> AuditInput:
    """Weights from files, all of one model: FILE or NAME=FILE."""
    paths: dict[str, Path] = {}
    for text in early:
        name, mark, file = text.partition("=")
        if not mark or Path(text).is_file():
            name, file = Path(text).stem, text
        if name in ("", "final", "student", *paths):
            raise UserError(f"--early {text}: {name!r} cannot name this state, or names another; write NAME=FILE")
        paths[name] = Path(file)
    states = {**paths, "final": final}
    networks = {name: _load(model, path, sets, embedding, classes) for name, path in states.items()}
    return AuditInput(model, sets, networks, {name: str(path) for name, path in states.items()}, next(iter(paths)))


def _load(model: str, path: Path, sets: DataSplits, embedding: str | None, classes: int | None) -> Network:
    from antishortcut.models import build, load_weights

    if not path.is_file():
        raise UserError(f"no weights at {path}")
    network = build(model, classes or len(sets.classes), image_size=sets.image_size, embedding=embedding)
    try:
        load_weights(network, path)
    except UserError as error:
        if "of another shape" not in str(error) or classes is not None:
            raise
        hint = f"{sets.name} has {len(sets.classes)} classes: where the model has other outputs, give --classes"
        raise UserError(f"{error}; {hint}") from None
    return network


def _add_student(case: AuditInput, path: Path | None, model: str | None, classes: int | None) -> None:
    """The student from weights and a model's name, or from its run folder."""
    from antishortcut.models import load_weights
    from antishortcut.teachers.trajectory import build_saved

    if path is None:
        raise UserError("--student-model needs --student")
    if path.is_dir() == (model is not None):
        raise UserError(f"--student {path}: a file of weights needs --student-model, a run folder knows its model")
    if model is not None:
        case.networks["student"], case.files["student"] = _load(model, path, case.sets, None, classes), str(path)
        return
    folder = RunDir(path)
    run, _ = folder.read()
    if not folder.finished or run.keep:
        raise UserError(f"{path} is not a finished student (asd distill makes one)")
    if run.fingerprint != case.sets.fingerprint:
        case.notes.append("The student was trained on other images than these (fingerprints differ).")
    network = build_saved(folder, len(case.sets.classes), case.sets.image_size)
    load_weights(network, folder.weights())
    case.networks["student"], case.files["student"] = network, str(folder.student)


def _clear(out: Path) -> None:
    """Only a new or empty folder, or that of an earlier audit, may be written to."""
    folder = out.resolve()
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if (
        folder.is_file()
        or folder == Path.cwd()
        or (names and not {RESULT} <= names <= {"pictures", "figures", PAGE, RESULT})
    ):
        raise UserError(f"--out {out} holds other things already; name a new folder")
    recover_dir(folder)


def _show_audit(result: dict[str, Any]) -> None:
    for note in result["notes"]:
        tell(f"Note: {note}", file=sys.stderr)
    images = f"{result['count']:,} images of {result['set']}"
    table(f"{result['model']} on {result['data']}: {images}, share of energy in", ENERGY, result["energy"])
    candidates = [row["displaced"] | {"state": row["state"]} for row in result["candidates"]]
    title = "candidates for T_early: displaced directions of one half of the images, energy on the other half"
    table(title, CANDIDATE, [row | {"degrees": row["agreement"]["mean"]} for row in candidates])
    width = max(40, min(120, shutil.get_terminal_size().columns))
    for line in result["findings"]:
        beside = f" ({line['beside']})" if line["beside"] else ""
        tell(f"{line['name']}: {line['value']}{beside}")
        tell(textwrap.fill(line["means"], width, initial_indent="    ", subsequent_indent="    "))


# --- asd targets ---

LEGEND = (
    "agree: share of images where T_early and T_final predict the same class; moved: share whose target has another "
    "top class than T_final's; entropy of the targets at τ = 4, in nats; then accuracies: of T_early, T_final and the "
    "targets, and of the targets on the images that T_early gets wrong."
)


def targets(
    teacher: Annotated[Path, Argument(help="A teacher's folder, runs/teachers/<hash>.")],
    states: Annotated[str, Option(help="Early states, comma-separated [default: all it kept].")] = "",
    strengths: Annotated[str, Option(help="Values of λ, comma-separated.")] = "0,0.25,0.5,1,2",
    data_root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose λ and T_early of contrast targets without any test image, before a student is trained."""
    from antishortcut.analysis.contrast_targets import measure
    from antishortcut.teachers.target_signs import LOST
    from antishortcut.training.pipeline import Session

    try:
        values = [float(word) for word in options.split_names(strengths)]
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
    table(f"contrast targets on {result['count']:,} {result['set']} images", TARGET, result["rows"])
    print(LEGEND)
    largest = ", ".join(f"{name} {'none' if x is None else f'{x:g}'}" for name, x in result["largest"].items())
    tell(f"Largest λ whose targets lose at most {LOST:.0%} of T_final's accuracy, by T_early: {largest}")
