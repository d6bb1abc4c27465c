"""A teacher that was trained elsewhere: files of weights, or the states that Snapshots kept, as a teacher's folder.

From then on it is a teacher like any other: its states have names and checksums, and know how well they do here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor

from antishortcut.config.recipe import Run, TeacherSettings
from antishortcut.data import Loader, to_device
from antishortcut.data.splits import limited
from antishortcut.errors import UserError, first_line
from antishortcut.fileio import expanded, sha256
from antishortcut.models import Network, load_weights
from antishortcut.run_dir import RunDir, read_json
from antishortcut.tasks import build_task
from antishortcut.teachers.snapshots import check_entries
from antishortcut.teachers.trajectory import Trajectory, build_model
from antishortcut.types import DataSplits

IMAGES = 2_000  # that say how good a state is


class ImportedState(NamedTuple):
    labels: list[str]
    step: int  # of training; of files, which do not tell, their place
    file: Path
    share: float | None = None  # of training that was done
    sha256: str | None = None  # of the file when it was written


def imported_states(teacher: TeacherSettings) -> list[ImportedState]:
    """The states a teacher was given with, in the order they were reached; the last is final."""
    assert teacher.final is not None
    path = expanded(teacher.final)
    if os.path.isdir(path):  # of a name that is no name, False as well
        if teacher.early_file:
            raise UserError(f"{path} is a folder of states: name one of them as early, not {teacher.early}")
        saved = list(_kept(path))
        if not saved or not {"final", "100%"} & set(saved[-1].labels):
            there = ", ".join(saved[-1].labels) if saved else "none"
            raise UserError(f"{path} has no final state (the last one: {there}); Snapshots.finish keeps where it ended")
        return saved
    early = [ImportedState(["early"], 1, expanded(teacher.early))] if teacher.early_file else []
    return [*early, ImportedState(["final"], 2, path)]


def _kept(folder: Path) -> Iterator[ImportedState]:
    """As Snapshots and `asd teach` lay them out."""
    manifest = folder / "manifest.json"
    tree = read_json(manifest)
    try:
        for entry in sorted(check_entries(tree["states"]), key=lambda entry: int(entry["step"])):
            share = float(entry["fraction"])
            if not 0 <= share <= 1 or (entry["step"] == 0 and {"final", "100%"} & set(entry["labels"])):
                raise ValueError("a share of training that is none, or an end before the first step")
            yield ImportedState(
                entry["labels"], entry["step"], folder / "snapshots" / entry["file"], share, entry["sha256"]
            )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        message = first_line(error) if type(error) is ValueError else repr(error)
        raise UserError(f"{manifest}: not a list of states as antishortcut.Snapshots writes it ({message})") from None


def check_files_fit(teacher: TeacherSettings, sets: DataSplits) -> None:
    """Refuse files of another network, or of other classes, before anything is planned around them."""
    model = teacher.model_copy(update={"pretrained": False, "weights": None})
    network, states = build_model(model, len(sets.classes), sets.image_size), imported_states(teacher)
    load_weights(network, states[0].file)
    first = {key: value.clone() for key, value in network.state_dict().items()}
    load_weights(network, states[-1].file)
    if len(states) > 1 and all(torch.equal(value, first[key]) for key, value in network.state_dict().items()):
        raise UserError(_alike(states))


def import_teacher(
    run: Run, teacher: TeacherSettings, folder: RunDir, sets: DataSplits, fabric: Fabric
) -> Iterator[str]:
    """Check every state, score it, and keep it in the teacher's folder; says a line about each."""
    network = build_model(run.model.model_copy(update={"weights": None}), len(sets.classes), sets.image_size)
    trajectory, primary_metric = Trajectory(folder), build_task(sets).primary_metric
    states, results = imported_states(teacher), list[float]()
    for state in states:
        if state.sha256 not in (None, _digest(state.file)):
            raise UserError(f"{state.file} is missing or damaged: it is not the file that was kept; restore it")
        load_weights(network, state.file)
        scores = _scores(network, sets, fabric)
        total = None if state.share is None else states[-1].step
        trajectory.keep(state.labels, state.step, None, total, scores, network)
        results.append(scores[primary_metric])
        yield f"{state.file} is {' = '.join(state.labels)}: {primary_metric} {scores[primary_metric]:.3f} here"
    if len(states) > 1 and len({entry["sha256"] for entry in trajectory.entries}) == 1:
        raise UserError(_alike(states))
    last = dict(scores) | {"epoch": None}
    if results[0] > results[-1]:
        yield f"The early state has the better {primary_metric}: are {states[0].file} and {states[-1].file} exchanged?"
    if primary_metric == "accuracy" and _guesses(scores[primary_metric], len(sets.classes)):
        yield (
            "That is hardly better than guessing: are its classes in the order of yours, "
            f"{', '.join(sets.classes[:3])}{', …' if len(sets.classes) > 3 else ''}?"
        )
    result: dict[str, Any] = {"set": _judged(sets)[0], "primary_metric": primary_metric, "last": last, "best": last}
    size = sum(parameter.numel() for parameter in network.parameters())
    folder.finish(result | {"steps": states[-1].step, "parameters": size, "seconds": 0.0})


def _alike(states: list[ImportedState]) -> str:
    return f"{states[0].file} and {states[-1].file} hold the same weights: nothing to push away from"


def _guesses(accuracy: float, classes: int) -> bool:
    """Whether it is hardly better than chance: less than twice as good, or by less than a tenth."""
    return classes > 1 and accuracy < min(2 / classes, 1 / classes + 0.1)


def _digest(file: Path) -> str:
    if not os.path.isfile(file):
        return ""
    try:
        return sha256(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None


def _judged(sets: DataSplits) -> tuple[str, Any]:
    return ("val", sets.val) if sets.val is not None else next(iter(sets.tests.items()))


@torch.no_grad()
def _scores(network: Network, sets: DataSplits, fabric: Fabric) -> dict[str, float]:
    task, images = build_task(sets), limited(_judged(sets)[1], IMAGES, 0)
    loader = Loader(
        images,
        batch=task.eval_batch_size,
        seed=0,
        image_size=sets.image_size,
        augment="none",
        shuffle=False,
        workers="auto",
    )
    network.to(fabric.device).eval()
    counts: list[Tensor] = [
        task.counts(network(batch.image), batch.label) for batch in to_device(loader.epoch(0), fabric.device)
    ]
    network.cpu()
    return task.scores(torch.stack(counts).sum(dim=0).cpu()) | {"images": len(images)}
