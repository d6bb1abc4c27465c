"""The networks and images of an audit: a teacher's folder, or weights from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.api.arguments import find_run, words_of
from antishortcut.config.recipe import ModelSettings, Recipe, TeacherSettings, setting, with_settings
from antishortcut.config.schema import DataSettings
from antishortcut.errors import UserError
from antishortcut.fileio import recover_dir
from antishortcut.run_dir import RunDir

if TYPE_CHECKING:
    from antishortcut.models import Network
    from antishortcut.types import DataSplits

PAGE, RESULT = "audit.html", "audit.json"


@dataclass
class AuditInput:
    """The networks and images of an audit."""

    model: str
    sets: DataSplits
    networks: dict[str, Network]  # state → network; "final" and perhaps "student" among them
    files: dict[str, str]  # state → its file
    early: str  # the state to look at
    notes: list[str] = field(default_factory=list)


def from_teacher(path: Path, early: Sequence[str], data_root: Path | None) -> AuditInput:
    """A teacher's run folder: its model, its data, and all its states."""
    from antishortcut.teachers.trajectory import Trajectory, build_saved
    from antishortcut.training.pipeline import Session

    folder = find_run(path)
    run, _ = folder.read()
    trajectory = Trajectory(folder)
    if not run.keep or not folder.finished:
        raise UserError(f"{path} is not a finished teacher (asd teach makes one)")
    if len(early) > 1:
        raise UserError("with --teacher all its states are candidates; give --early once, for the one to look at")
    if len(trajectory.entries) == 1:
        raise UserError(f"{path} has its final state alone; an audit of files names an early one: --final, --early")
    usual = run.early if trajectory.has(run.early) or not trajectory.has("early") else "early"  # that of a given file
    requested = early[0] if early else usual
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


def settings_of(
    model: str, student: str | None, data: str, root: Path | None, given: Mapping[str, Any], words: Sequence[str]
) -> Recipe:
    """What an audit of files is computed with: data.KEY and teacher.KEY of `words`, as in a recipe, then `given`."""
    from antishortcut.data.inspect import open_finding, usual_side

    for word in words:
        if not (key := setting(word)[0]).startswith(("data.", "teacher.", "student.")):
            raise UserError(
                f"--set {key}: an audit has data.KEY, teacher.KEY of --model, student.KEY of --student-model"
            )
    pair = {"teacher": TeacherSettings(name=model), "student": ModelSettings(name=student or model)}
    recipe = with_settings(Recipe(epochs=1, data=DataSettings(name=data), **pair), [*words, *words_of(given)])
    if recipe.data.image_size is None:
        finding = open_finding(data, root, seed=recipe.data.seed, options=recipe.data.options)
        if finding.own:
            recipe = with_settings(recipe, [f"data.image_size={usual_side(finding)}"])  # as asd check and asd distill
    return recipe


def from_files(
    model: ModelSettings, final: Path, early: Sequence[str], sets: DataSplits, classes: int | None
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
    networks = {name: _load(model, path, sets, classes) for name, path in states.items()}
    return AuditInput(model.name, sets, networks, {name: str(path) for name, path in states.items()}, next(iter(paths)))


def _load(model: ModelSettings, path: Path, sets: DataSplits, classes: int | None) -> Network:
    from antishortcut.models import build, load_weights

    if not path.is_file():
        raise UserError(f"no weights at {path}")
    network = build(model.name, classes or len(sets.classes), image_size=sets.image_size, **model.build_options)
    try:
        load_weights(network, path)
    except UserError as error:
        if "of another shape" not in str(error) or classes is not None:
            raise
        hint = f"{sets.name} has {len(sets.classes)} classes: where the model has other outputs, give --classes"
        raise UserError(f"{error}; {hint}") from None
    return network


def add_student(case: AuditInput, path: Path | None, model: ModelSettings | None, classes: int | None) -> None:
    """The student from weights and a model's name, or from its run folder."""
    from antishortcut.models import load_weights
    from antishortcut.teachers.trajectory import build_saved

    if path is None:
        raise UserError("--student-model needs --student")
    if path.is_dir() == (model is not None):
        raise UserError(f"--student {path}: a file of weights needs --student-model, a run folder knows its model")
    if model is not None:
        case.networks["student"], case.files["student"] = _load(model, path, case.sets, classes), str(path)
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


def clear(out: Path) -> None:
    """Only a new or empty folder, or that of an earlier audit, may be written to."""
    folder = out.resolve()
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if (
        (folder.exists() and not folder.is_dir())
        or folder == Path.cwd()
        or (names and not {RESULT} <= names <= {"pictures", "figures", PAGE, RESULT})
    ):
        raise UserError(f"--out {out} holds other things already; name a new folder")
    recover_dir(folder)
