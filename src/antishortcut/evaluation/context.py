"""What is examined, and where evaluations find their images."""
# N images, C classes, D features

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from antishortcut.analysis.features import features, predict
from antishortcut.config.recipe import Run
from antishortcut.data import order
from antishortcut.data.readers import tiny_wnids
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import limited, take
from antishortcut.errors import UserError
from antishortcut.metrics import accuracy
from antishortcut.models import Network
from antishortcut.models.weights import load_checked, read_weights
from antishortcut.run_dir import RunDir
from antishortcut.tasks import build_task
from antishortcut.teachers.trajectory import Trajectory, build_model
from antishortcut.types import AnySet, Batch, DataSplits, Features, FileSet, ImageSet


@dataclass(frozen=True)
class EvalContext:
    """The images a run was trained for, and where others lie."""

    sets: DataSplits
    runs: Path  # where run folders lie; generated copies are kept below it
    root: Path = field(default_factory=lambda: Path(os.environ.get("ANTISHORTCUT_DATA") or "data"))
    at: Mapping[str, Path] = field(default_factory=dict)  # places given by hand, by evaluation
    quiet: bool = True
    limit: int | None = None  # images of a corruption at a severity

    @property
    def primary_metric(self) -> tuple[str, AnySet]:
        """Name and images of the first test set."""
        return next(iter(self.sets.tests.items()))

    @property
    def wnids(self) -> tuple[str, ...]:
        """The classes as folders of released sets are named: TinyImageNet's are known to us by words."""
        return tiny_wnids(self.root) if self.sets.name == "tiny-imagenet" else self.sets.classes

    def place(self, evaluation: str, *usual: str) -> Path | None:
        """The folder given by hand, or the first usual one below the data root that is there."""
        if evaluation in self.at:
            inputs = self.at[evaluation]
            if not inputs.is_dir():
                raise UserError(f"--at {evaluation}={inputs}: no such folder")
            return inputs
        return next((self.root / name for name in usual if (self.root / name).is_dir()), None)

    def content(self, copies: AnySet, facts: Mapping[str, Any], place: Path) -> AnySet:
        """The headline images that these are copies of, or a refusal: copies of others would be scored as if of these.

        Folders are known by kind alone, for their paths differ by machine; files may be listed in another order.
        """
        name, images = self.primary_metric
        other = str(facts.get("set", self.sets.name))
        if other.partition(":")[0] != self.sets.name.partition(":")[0]:
            raise UserError(f"{place} holds copies of {other}, not of {self.sets.name}")
        if isinstance(copies, ImageSet) and copies.image.shape[2] != self.sets.image_size:
            side, own = copies.image.shape[2], self.sets.image_size
            raise UserError(f"{place} holds images of {side} pixels; this student was trained on {own}")
        images = limited(images, len(copies), 0) if len(copies) < len(images) else images
        ours, reference = images.label, copies.label
        if isinstance(copies, FileSet):
            ours, reference = ours.sort().values, reference.sort().values
        if not torch.equal(ours, reference):
            raise UserError(f"{place} holds copies of other images than {self.sets.name}'s {name} set: labels differ")
        return images


class EvaluatedRun:
    """A finished run, opened to be examined; of a teacher, any state it kept."""

    def __init__(self, folder: RunDir, bench: EvalContext, state: str = "final", device: str = "cpu") -> None:
        if not folder.finished:
            raise UserError(f"{folder.path} is not finished; run its command again to go on with it")
        self.folder, self.bench, self.state, self.device = folder, bench, state, device
        self.run, _ = folder.read()
        if self.run.fingerprint != bench.sets.fingerprint:
            raise UserError(f"{folder.path} was trained on other data than are here now (fingerprints differ)")

    @property
    def mark(self) -> str:
        """Behind the name of a score: scores of an earlier state of a teacher are kept as <set>@<state>."""
        return "" if self.state == "final" else f"@{self.state}"

    @cached_property
    def network(self) -> Network:
        """Loaded when the first score is wanted: a repeated evaluation touches no weights."""
        return _network(self.run, self.folder, self.bench.sets, self.state).eval()

    def stream(self, images: AnySet, network: Network | None = None) -> Iterator[tuple[Features, Batch]]:
        """What the network says of a set, batch by batch in its order; another network than its own when given."""
        for outputs, batch in self.predict({"": network or self.network}, images):
            yield outputs[""], batch

    def predict(self, networks: Mapping[str, Network], images: AnySet) -> Iterator[tuple[dict[str, Features], Batch]]:
        """Outputs of several networks for a set, batch by batch in its order."""
        sets = self.bench.sets
        return predict(networks, images, sets.image_size, device=self.device, batch=build_task(sets).eval_batch_size)

    def outputs(self, images: AnySet, network: Network | None = None) -> tuple[Tensor, Tensor]:
        """Logits (N, C) and embeddings (N, D) of a set of whole images, in its order."""
        wants_labels("this evaluation, unlike clean and scenes,", self.bench.sets.train, of="image")
        outputs = [outputs for outputs, _ in self.stream(images, network)]
        return torch.cat([s.logits for s in outputs]), torch.cat([s.embedding for s in outputs])

    def features(self, networks: Mapping[str, Network], images: AnySet, title: str = "") -> dict[str, Tensor]:
        """Embeddings of a set in several networks: {role: (N, D)}; with a progress bar when it has a title."""
        quiet = self.bench.quiet or not title
        return features(networks, images, self.bench.sets.image_size, self.device, title, quiet)

    def clean_accuracy(self, of: AnySet | None = None) -> float:
        """On the headline test set, as scored before or now; or on the part of it that copies were made of."""
        name, images = self.bench.primary_metric
        if of is not None and of is not images:
            return dict(accuracy(self.outputs(of)[0], of.label))["accuracy"]
        known = self.folder.score(name + self.mark)
        if known is not None and known.get("fingerprint") == self.bench.sets.fingerprint:
            value = known["values"].get("accuracy")
            if isinstance(value, int | float) and 0 <= value <= 1:  # else its file is damaged
                return float(value)
        return dict(accuracy(self.outputs(images)[0], images.label))["accuracy"]


class Examination(Protocol):
    """Images opened for scoring, and how they are scored."""

    @property
    def name(self) -> str:
        """Of the score file, scores/<name>.json."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the images and of how they are scored: a score that carries it stands."""
        ...

    def made(self, subject: EvaluatedRun) -> bool:
        """Whether what belongs to the score besides its file is there."""
        ...

    def score(self, subject: EvaluatedRun) -> Mapping[str, Any]:
        """`count`, `values` (numbers by name) and what else belongs to the score."""
        ...


@dataclass(frozen=True)
class Scored:
    """An examination that is one function."""

    name: str
    fingerprint: str
    score: Callable[[EvaluatedRun], Mapping[str, Any]]
    made: Callable[[EvaluatedRun], bool] = lambda subject: True


def part(images: AnySet, count: int) -> AnySet:
    """A fixed random part of a set, the same for every run."""
    if len(images) <= count:
        return images
    return take(images, order(len(images), 0, 0)[:count].sort().values)


def _network(run: Run, folder: RunDir, sets: DataSplits, state: str) -> Network:
    blank = run.model.model_copy(update={"weights": None, "pretrained": False})
    network = build_model(blank, len(sets.classes), sets.image_size)
    weights = read_weights(folder.weights()) if state == "final" and not run.keep else Trajectory(folder).weights(state)
    load_checked(network, weights, folder.path)
    return network


# --- The data's own test sets, scored as their task says ---


def clean(bench: EvalContext) -> Iterator[Examination]:
    """Every test set of the data."""
    for name, images in bench.sets.tests.items():
        yield Scored(name, bench.sets.fingerprint, partial(_score, images))


def _score(images: AnySet, subject: EvaluatedRun) -> Mapping[str, Any]:
    sets = subject.bench.sets
    return {"count": len(images)} | build_task(sets).report(subject.stream(images), images, sets.classes)
