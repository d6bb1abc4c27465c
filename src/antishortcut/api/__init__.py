"""The functions behind the commands: distill, evaluate, predict, audit, export. `from antishortcut import distill`.

Their arguments have the names of the commands' options. Bad input raises a UserError of one line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.api import audit_input, objects, planning
from antishortcut.api.arguments import (
    EXECUTION,
    class_folders,
    find_run,
    image_folders,
    measured,
    named_paths,
    open_session,
    use_hardware,
    words_of,
)
from antishortcut.api.audit_input import PAGE as PAGE
from antishortcut.api.prediction import predict
from antishortcut.api.scoring import eval_context, numbers, own_sets, score_also, score_run
from antishortcut.api.student import Audit, Student
from antishortcut.config.recipe import ModelSettings, load_recipe, recipe_from
from antishortcut.errors import UserError, suggest
from antishortcut.fileio import atomic_dir
from antishortcut.progress import first_process, one_line_warnings
from antishortcut.run_dir import write_json

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    from antishortcut.deployment import Export

    Images = Dataset[Any] | DataLoader[Any]
    Data = Images | tuple[Images, Images] | Mapping[str, Images]

__all__ = ["Audit", "Student", "audit", "distill", "evaluate", "export", "plan", "predict"]

Words = Mapping[str, Any] | Sequence[str]  # {"optim.lr": 0.1}, or ["optim.lr=0.1"] as on the command line


@one_line_warnings()
def distill(
    recipe: str | Path | None = None,
    *,
    data: str | Path | Data | None = None,
    unlabelled: bool = False,
    teacher: str | nn.Module | None = None,
    student: str | nn.Module | None = None,
    final: str | Path | nn.Module | None = None,
    early: str | Path | nn.Module | None = None,
    epochs: int | None = None,
    pretrained: bool | None = None,
    method: str | None = None,
    seed: int = 1,
    set: Words = (),
    suite: str | None = None,
    name: str | None = None,
    via: Sequence[str] = (),
    generations: int = 1,
    budget: float | None = None,
    frontier: bool = False,
    also: Mapping[str, str | Path] | Sequence[str] = (),
    runs: str | Path = "runs",
    data_root: str | Path | None = None,
    download: bool = False,
    quiet: bool = False,
    **execution: Any,
) -> Student:
    """Distil a student, and train its teacher first if needed. A finished run is returned as it is.

    Name a recipe, or data, teacher and student, which may be objects: a Dataset, a DataLoader, (train, test) of them;
    modules. A teacher that is a module is trained already; a student that is one starts from the weights it has.
    unlabelled: the images of `data` have no labels.
    also: folders of class folders that it is scored on at the end, {"sketch": "photos/sketch"}.
    All other arguments are options of `asd distill`; without a `method` it is the recommended one; `execution` are
    device, threads, precision, workers …
    """
    from antishortcut.training.pipeline import distill as distill_recipe

    words, planned, runs = words_of(set), recipe is None, Path(runs)
    own = class_folders(named_paths(also), "--also")
    execution["micro_batches"] = execution.get("micro_batches") or ("auto" if planned else "1")
    session = open_session(runs, _path(data_root), download, **_known(execution))
    session.quiet = quiet
    name = planning.folder_name(name)
    pair: dict[str, Any] = {"data": data, "teacher": teacher, "student": student}
    pair |= {"final": final, "early": early, "epochs": epochs, "pretrained": pretrained}
    if recipe is None:
        request = planning.pair_request(**objects.named(pair, session, words, unlabelled), unlabelled=unlabelled)
        suite = planning.folder_name(suite or request.name)
        recipe, _, method = planning.plan(request, session, suite, _lasting(words), method, write=True, own=own)
    elif unlabelled or any(value is not None for key, value in pair.items() if key != "epochs"):
        raise UserError(planning.EITHER)
    elif epochs is not None:
        words = [*words, *planning.student_length(load_recipe(str(recipe), _lasting(words)), epochs)]
    if method is None:
        method = planning.recommended(load_recipe(str(recipe), _lasting(words)), session)
    settings = load_recipe(str(recipe), _overrides(words, method))
    if own and not planned:  # else it was checked with the plan
        eval_context(session, settings.data, runs, own)
    suite = planning.folder_name(suite or planning.suite_of(Path(recipe), runs))
    if planned:
        planning.estimate(settings, session, suite, method, seed)
    chain: dict[str, Any] = {"via": via, "generations": generations}
    names: dict[str, Any] = {"method": method, "seed": seed, "suite": suite, "name": name}
    path = Path(recipe) if planned else None
    settings = planning.dialled(settings, session, budget, frontier, bool(via) or generations > 1, path, **names)
    run = distill_recipe(settings, session, **names, **chain)
    if planned or planning.is_planned(Path(recipe), runs):
        planning.score_student(run, session, execution.get("device", "auto"))
    result = Student(run.folder(runs), session=session)
    if own and first_process():
        result.also = score_also(run, session, own, use_hardware(execution.get("device", "auto"), 0))
    return result


def plan(
    recipe: str | Path | None = None,
    *,
    method: str | None = None,
    set: Words = (),
    suite: str | None = None,
    runs: str | Path = "runs",
    data_root: str | Path | None = None,
    download: bool = False,
    **pair: Any,
) -> str:
    """The recipe that `distill` would make of data, teacher, student …, and how long it takes; nothing is written."""
    if recipe is not None:
        raise UserError(planning.EITHER)
    session = open_session(Path(runs), _path(data_root), download)
    request = planning.pair_request(**pair)
    suite = planning.folder_name(suite or request.name)
    path, text, chosen = planning.plan(request, session, suite, _lasting(words_of(set)), method, write=False)
    planning.estimate(recipe_from(text, path, _overrides(words_of(set), chosen)), session, suite, chosen, 1)
    return text


@one_line_warnings()
def evaluate(
    run: str | Path | Student,
    on: str | Sequence[str] = "clean",
    *,
    at: Mapping[str, str | Path] | Sequence[str] = (),
    runs: str | Path | None = None,
    data_root: str | Path | None = None,
    device: str = "auto",
    threads: int = 0,
) -> dict[str, dict[str, Any]]:
    """Score a finished run; scores are written to its folder. Returns all its scores: {set: {score: number}}.

    on: what to measure (asd list evaluations), "sketch=PATH" being any folder of class folders.
    at: folders of images, {"imagenet-r": "path"}.
    """
    student = run if isinstance(run, Student) else Student(run, data_root=data_root)
    names, own = measured([on] if isinstance(on, str) else on)
    device, folders = use_hardware(device, threads), image_folders(named_paths(at))
    return numbers(score_run(student.path, _path(runs), student.session, names, folders, device, own))


@one_line_warnings()
def export(
    run: str | Path | Student,
    to: str = "onnx",
    *,
    out: str | Path | None = None,
    embedding: bool = False,
    int8: bool = False,
    also: Mapping[str, str | Path] | Sequence[str] = (),
    push: str | None = None,
    state: str = "final",
    force: bool = True,
    runs: str | Path | None = None,
    data_root: str | Path | None = None,
    threads: int = 0,
) -> Export:
    """Write the student alone, with its preprocessing and a model card, checked against the original.

    Returns its folder as `.place` and export.json as `.record`. force: replace an earlier export. int8: of onnx, also
    a quantised copy, compared with the float one on the test sets and on `also`, folders of class folders. push:
    OWNER/NAME on the Hugging Face Hub, of a hub-folder.
    """
    from antishortcut.data.datasets import held
    from antishortcut.deployment import check_push, destination, upload
    from antishortcut.deployment import export as write

    use_hardware("cpu", threads)
    source = find_run(run.path if isinstance(run, Student) else Path(run), Path(runs or "runs"))
    session = run.session if isinstance(run, Student) else open_session(Path("runs"), _path(data_root), False)
    settings, _ = source.read()
    destination(source, to, state, _path(out), force, int8)  # before its data are opened
    own = class_folders(named_paths(also), "--also")
    if own and not int8:
        raise UserError("--also names folders for --int8 to be compared on; asd evaluate --on scores a student on them")
    if push is not None:
        check_push(push, to)
    choice: dict[str, Any] = {"state": state, "out": _path(out), "embedding": embedding, "force": force, "int8": int8}
    if own:
        context = eval_context(session, settings.data, Path(runs or "runs"), own)
        size = context.sets.image_size
        choice["more"] = {name: held(shift.images, size, None) for name, shift in context.folders.items()}
    result = write(source, to, own_sets(settings, session), **choice, runs=_path(runs))
    return result if push is None else replace(result, url=upload(result.place, push))


@one_line_warnings()
def audit(
    *,
    final: str | Path | nn.Module | None = None,
    early: str | Path | nn.Module | Sequence[str | Path | nn.Module] | None = None,
    model: str | nn.Module | None = None,
    data: str | Path | Data | None = None,
    teacher: str | Path | None = None,
    student: str | Path | Student | None = None,
    student_model: str | None = None,
    out: str | Path = "audit",
    runs: str | Path = "runs",
    data_root: str | Path | None = None,
    embedding: str | None = None,
    classes: int | None = None,
    image_size: int | None = None,
    mean: str | Sequence[float] | None = None,
    std: str | Sequence[float] | None = None,
    set: Words = (),
    set_name: str | None = None,
    limit: int = 5000,
    device: str = "auto",
    threads: int = 0,
) -> Audit:
    """Audit a model: from two checkpoints and images, which directions training abandoned, and how sure.

    final and early may be modules, data a Dataset or DataLoader; they are then written below runs. mean, std: what the
    model's images are normalised by. set: data.KEY, teacher.KEY (of the model) and student.KEY, as in a recipe.
    """
    from antishortcut.analysis.audit import audit as measure
    from antishortcut.training.auto_recipe import data_name

    try:
        from antishortcut.report.audit_page import write_page
    except ModuleNotFoundError as error:
        raise UserError(f"an audit needs {error.name}: pip install 'antishortcut[report]'") from None

    device, out, root = use_hardware(device, threads), Path(out), _path(data_root)
    given = list(early) if isinstance(early, list | tuple) else [] if early is None else [early]
    audit_input.clear(out)
    session, words = open_session(Path(runs), root, False), words_of(set)
    last, states, network, images = objects.audited(final, given, model, data, session)
    learner: ModelSettings | None = None if student_model is None else ModelSettings(name=student_model)
    if teacher is not None:
        described = (last, network, images, embedding, classes, image_size, mean, std, words or None)
        if any(value is not None for value in described):
            raise UserError("--teacher brings its own model and data; leave out what describes them")
        case = audit_input.from_teacher(Path(teacher), states, root)
    elif last is None or not states or network is None or images is None:
        raise UserError("an audit needs --final, --early, --model and --data, or --teacher")
    else:
        built = {"embedding": embedding, "mean": _colour(mean), "std": _colour(std)}
        own = {"data.image_size": image_size} | {f"teacher.{key}": value for key, value in built.items()}
        settings = audit_input.settings_of(network, student_model, data_name(str(images)), root, own, words)
        learner = None if student_model is None else settings.student
        case = audit_input.from_files(settings.teacher, Path(last), states, session.sets(settings.data), classes)
    if student is not None or student_model is not None:
        path = student.path if isinstance(student, Student) else _path(student)
        audit_input.add_student(case, path, learner, classes)
    trained, pupil = case.networks.pop("final"), case.networks.pop("student", None)
    with atomic_dir(out.resolve()) as work:  # a link may lead to another disk
        choice: dict[str, Any] = {"early": case.early, "student": pupil, "set_name": set_name, "limit": limit}
        result = measure(trained, case.networks, case.sets, work, **choice, device=device, quiet=False)
        result |= {"model": case.model, "files": case.files, "notes": [*case.notes, *result["notes"]]}
        write_page(result, work)
        write_json(work / audit_input.RESULT, result)
    return Audit(out / PAGE, result)


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _colour(values: str | Sequence[float] | None) -> list[str] | list[float] | None:
    """One number a channel: 0.5,0.5,0.5 of the command, or a sequence."""
    return values.split(",") if isinstance(values, str) else None if values is None else list(values)


def _overrides(words: Sequence[str], method: str) -> list[str]:
    """key=value, with the names of the method's own settings in full."""
    return [f"methods.{method}.{text[7:]}" if text.startswith("method.") else text for text in words]


def _lasting(words: Sequence[str]) -> list[str]:
    """Those that belong into the recipe, which other methods read too."""
    return [text for text in words if not text.startswith(("method.", "methods."))]


def _known(execution: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in execution:
        if name not in EXECUTION:
            raise UserError(f"distill takes no {name!r}{suggest(name, [*signature(distill).parameters, *EXECUTION])}")
    return execution
