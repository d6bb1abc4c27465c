"""The run that is evaluated, where evaluations find their images, and the evaluation of the data's own test sets."""
# N images, C classes, D features

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from antishortcut.analysis.directions import strip
from antishortcut.analysis.features import features, predict
from antishortcut.data.readers import tiny_wnids
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.shifts import Shift, open_class_folders
from antishortcut.data.splits import limited, take
from antishortcut.errors import UserError
from antishortcut.evaluation import FOLDER, check_folder_name, evaluate
from antishortcut.fileio import atomic_write
from antishortcut.methods import build_method
from antishortcut.metrics import accuracy
from antishortcut.models import Network, feature_shapes
from antishortcut.models.weights import load_checked, read_weights
from antishortcut.run_dir import RunDir
from antishortcut.tasks import build_task, method_sizes
from antishortcut.teachers.trajectory import Teachers, Trajectory, build_saved, find_trajectory
from antishortcut.types import (
    AnySet,
    Batch,
    DataSplits,
    Features,
    FileSet,
    ImageSet,
    Projects,
    ScoredByTeacher,
    Task,
    lacks_labels,
)

OF_TEACHERS = ("clean", "stylized", "imagenet-r", "imagenet-a", "cue-conflict", FOLDER)  # one pass over their images
MISTAKES = "artifacts/mistakes-{}.png"  # by test set: the images of `mistakes` side by side


@dataclass(frozen=True)
class EvalContext:
    """The data a run was trained on, and where other images are."""

    sets: DataSplits
    runs: Path  # the folder of run folders; generated copies are written below it
    root: Path = field(default_factory=lambda: Path(os.environ.get("ANTISHORTCUT_DATA") or "data"))
    at: Mapping[str, Path] = field(default_factory=dict)  # folders of images from --at, by evaluation
    quiet: bool = True
    limit: int | None = None  # images of a corruption at a severity
    folders: Mapping[str, Shift] = field(default_factory=dict)  # any folders of class folders; see `with_folders`

    @property
    def first_test(self) -> tuple[str, AnySet]:
        """Name and images of the first test set."""
        return next(iter(self.sets.tests.items()))

    @property
    def unlabelled(self) -> bool:
        """Whether the test images have no labels."""
        return lacks_labels(self.first_test[1])

    @property
    def wnids(self) -> tuple[str, ...]:
        """The classes as released sets name their folders: TinyImageNet's classes are words here."""
        return tiny_wnids(self.root) if self.sets.name == "tiny-imagenet" else self.sets.classes

    def with_folders(self, paths: Mapping[str, Path]) -> Self:
        """With these folders of class folders opened, {name: path}, which the evaluation `folder` scores."""
        for name in paths:
            check_folder_name(name)
            if name in self.sets.tests:
                raise UserError(f"{name} is a test set of {self.sets.name}; give the folder {paths[name]} another name")
        if paths:
            wants_labels("a folder of class folders", self.sets.train, of="image")
        classes, wnids = self.sets.classes, self.wnids if paths else ()
        opened = {name: open_class_folders(name, path, classes, wnids) for name, path in paths.items()}
        return replace(self, folders=opened)

    def folder(self, evaluation: str, *usual: str) -> Path | None:
        """The folder from --at, or the first usual one that exists below the data root."""
        if evaluation in self.at:
            path = self.at[evaluation]
            if not path.is_dir():
                raise UserError(f"--at {evaluation}={path}: no such folder")
            return path
        return next((self.root / name for name in usual if (self.root / name).is_dir()), None)

    def fingerprint(self, images: str) -> str:
        """Scores depend on the images and on the data the student was trained on."""
        return hashlib.sha256(f"{self.sets.fingerprint} {images}".encode()).hexdigest()[:16]

    def originals(self, copies: AnySet, facts: Mapping[str, Any], folder: Path) -> AnySet:
        """The images of the first test set that these are copies of; an error if they are copies of other images.

        Folder data sets are compared by kind only, since paths differ between machines; files may be in another order.
        """
        name, images = self.first_test
        other = str(facts.get("set", self.sets.name))
        if other.partition(":")[0] != self.sets.name.partition(":")[0]:
            raise UserError(f"{folder} holds copies of {other}, not of {self.sets.name}")
        if isinstance(copies, ImageSet) and copies.image.shape[2] != self.sets.image_size:
            side, own = copies.image.shape[2], self.sets.image_size
            raise UserError(f"{folder} holds images of {side} pixels; this student was trained on {own}")
        images = limited(images, len(copies), 0) if len(copies) < len(images) else images
        labels = [images.label, copies.label]
        if isinstance(copies, FileSet):
            labels = [label.sort().values for label in labels]
        if not torch.equal(*labels):
            raise UserError(f"{folder} holds copies of other images than {self.sets.name}'s {name} set: labels differ")
        return images


class EvaluatedRun:
    """A finished run that is evaluated; of a teacher, any of its saved states."""

    def __init__(self, folder: RunDir, context: EvalContext, state: str = "final", device: str = "cpu") -> None:
        if not folder.finished:
            raise UserError(f"{folder.path} is not finished; run its command again to resume it")
        self.folder, self.context, self.state, self.device = folder, context, state, device
        self.score = ""  # that is being computed
        self.run, _ = folder.read()
        if self.run.fingerprint not in (context.sets.fingerprint, context.sets.labelled):
            raise UserError(f"{folder.path} was trained on other data than these (fingerprints differ)")

    @property
    def suffix(self) -> str:
        """Scores of an earlier state of a teacher are named <set>@<state>."""
        return "" if self.state == "final" else f"@{self.state}"

    @property
    def title(self) -> str:
        """For a line of progress."""
        return self.run.title if self.state == "final" else f"{self.run.title} at {self.state}"

    @cached_property
    def network(self) -> Network:
        """Loaded for the first score, so a repeated evaluation reads no weights."""
        sets = self.context.sets
        network = build_saved(self.folder, len(sets.classes), sets.image_size)
        student = self.state == "final" and not self.run.keep
        weights = read_weights(self.folder.weights()) if student else Trajectory(self.folder).weights(self.state)
        load_checked(network, weights, self.folder.path)
        return network.eval()

    def teachers(self, what: str) -> Teachers:
        """The final and early state of the student's teacher, whatever it learned from; an error for a teacher."""
        if self.run.teacher is None:
            raise UserError(f"{self.folder.path} is a teacher; {what} compares a student with its teacher")
        sets, run = self.context.sets, self.run.model_copy(update={"roles": {}})
        return Teachers(run, self.context.runs, len(sets.classes), sets.image_size)

    def trained_method(self) -> nn.Module | None:
        """The run's method with its trained weights, in evaluation mode; None if it has none."""
        run, sets, path = self.run, self.context.sets, self.folder.weights(self.folder.method)
        if not path.exists():
            return None
        teachers = Teachers(run, self.context.runs, len(sets.classes), sets.image_size)
        shapes = {role: teachers.shapes[role] for role in run.roles}
        task, student = build_task(sets, **run.task.model_dump()), feature_shapes(self.network, sets.image_size)
        sizes = method_sizes(task, sets, student, shapes)
        method = build_method(run.method, sizes, run.options)
        load_checked(method, read_weights(path), path)
        return method.eval()

    def predict(self, networks: Mapping[str, Network], images: AnySet) -> Iterator[tuple[dict[str, Features], Batch]]:
        """Outputs of several networks for a set, batch by batch in its order."""
        sets, quiet, batch = self.context.sets, self.context.quiet, build_task(self.context.sets).eval_batch_size
        title = f"{self.score or 'scoring'}, {self.title}"
        return predict(networks, images, sets.image_size, device=self.device, batch=batch, title=title, quiet=quiet)

    def outputs(self, images: AnySet, network: Network | None = None) -> tuple[Tensor, Tensor]:
        """Logits (N, C) and embeddings (N, D) of a set with one label per image; of another network if given."""
        wants_labels("this evaluation, unlike clean and scenes,", self.context.sets.train, of="image")
        outputs = [outputs[""] for outputs, _ in self.predict({"": network or self.network}, images)]
        return torch.cat([each.logits for each in outputs]), torch.cat([each.embedding for each in outputs])

    def features(self, networks: Mapping[str, Network], images: AnySet, title: str = "") -> dict[str, Tensor]:
        """Embeddings of a set in several networks: {role: (N, D)}; with a progress bar if it has a title."""
        quiet = self.context.quiet or not title
        return features(networks, images, self.context.sets.image_size, self.device, title, quiet)

    def clean_accuracy(self, images: AnySet) -> float:
        """On originals of copies; from the score of the first test set where they are all of it."""
        name, test = self.context.first_test
        score = self.folder.score(name + self.suffix) if images is test else None
        sets = self.context.sets
        if score is not None and is_current(score, sets.fingerprint, sets.hashed):
            return float(score["values"]["accuracy"])
        return dict(accuracy(self.outputs(images)[0], images.label))["accuracy"]


def evaluate_teacher(folder: RunDir, context: EvalContext, on: Iterable[str], device: str = "cpu") -> list[str]:
    """Score a student's teacher, final and early, on those of the evaluations that every table shows it on.

    Returns a line on each state that could not be scored.
    """
    run, lines = folder.read()[0], list[str]()
    names = [name for name in on if name in OF_TEACHERS]
    if not names or not run.roles or context.unlabelled:
        return lines
    for state in ("final", run.early):
        try:
            trajectory, name = find_trajectory(context.runs, run.teacher or "", state)
            evaluate(trajectory.folder, context, names, name, device)
        except UserError as error:
            if state in run.roles.values():  # one that the student did not learn from may be missing
                lines.append(f"not measured: {', '.join(names)} of the teacher: {error}")
    return lines


@dataclass(frozen=True)
class Score:
    """One file scores/<name>.json: what it depends on, and how it is computed."""

    name: str
    fingerprint: str  # of the images and of the version of the code; a score with the same one is not repeated
    compute: Callable[[EvaluatedRun], Mapping[str, Any]]  # `count`, `values` (numbers by metric) and further facts
    complete: Callable[[EvaluatedRun], bool] = lambda evaluated: True  # whether files besides the score exist
    hashed: str = ""  # how the fingerprint notices changed images, if they are not the data's own


def is_current(score: Mapping[str, Any], fingerprint: str, hashed: str) -> bool:
    """Whether a saved score is of these images; of many bytes of files, none may have been modified since."""
    return (score.get("fingerprint"), score.get("hashed", "content")) == (fingerprint, hashed)


def clean(context: EvalContext) -> Iterator[Score]:
    """Every test set of the data, scored as its task defines."""
    for name, images in context.sets.tests.items():
        yield Score(name, context.sets.fingerprint, partial(_clean, name, images))


def _clean(name: str, images: AnySet, evaluated: EvaluatedRun) -> Mapping[str, Any]:
    sets = evaluated.context.sets
    task = build_task(sets)
    if isinstance(task, ScoredByTeacher):
        return {"count": len(images), "values": _agreement(task, images, evaluated)}
    batches = ((outputs[""], batch) for outputs, batch in evaluated.predict({"": evaluated.network}, images))
    result = {"count": len(images)} | task.report(batches, images, sets.classes)
    mistakes = result.get("mistakes", [])
    if mistakes and not evaluated.suffix:
        few = take(images, torch.tensor([mistake["image"] for mistake in mistakes]))
        with atomic_write(evaluated.folder.path / MISTAKES.format(name)) as file:
            strip(few).save(file, format="PNG")
    if isinstance(images, FileSet):
        mistakes[:] = [mistake | {"image": str(images.paths[mistake["image"]])} for mistake in mistakes]
    return result


def _agreement(task: ScoredByTeacher, images: AnySet, evaluated: EvaluatedRun) -> dict[str, float]:
    """On images without labels, with the first state that the student learned from."""
    role, method = next(iter(evaluated.run.roles), "final"), evaluated.trained_method()
    teacher = evaluated.teachers("agreement").network(evaluated.run.roles.get(role, role))
    counts = []
    for outputs, _ in evaluated.predict({"student": evaluated.network, "teacher": teacher}, images):
        student = outputs["student"]
        if isinstance(method, Projects):
            with torch.no_grad():
                student = replace(student, embedding=method.project(student.embedding.float()))
        counts.append(task.agreement(student, outputs["teacher"]))
    return cast(Task, task).scores(torch.stack(counts).sum(dim=0))
