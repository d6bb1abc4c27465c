"""Error on corrupted copies of the test set, official ones when they are there, otherwise made here."""
# N images, C classes

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from antishortcut.data import corruptions as made
from antishortcut.data.image_io import decode
from antishortcut.data.splits import limited, set_mark
from antishortcut.errors import UserError
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Examination
from antishortcut.metrics import accuracy, corruption_error
from antishortcut.progress import ProgressBar
from antishortcut.run_dir import RunDir, write_json
from antishortcut.types import AnySet, FileSet

RELEASED = {  # folders below the data root, as the official archives unpack
    "cifar100": ("CIFAR-100-C",),
    "tiny-imagenet": ("Tiny-ImageNet-C",),
    "imagenet100": ("ImageNet-C", "imagenet-c"),
}
SEED = 0  # of the copies made here: one set of images for every run


def corruptions(bench: EvalContext) -> Iterator[Examination]:
    """The fifteen of CIFAR-C at five severities."""
    yield Corruptions(bench)


@dataclass(frozen=True)
class Corruptions:
    bench: EvalContext
    name: str = "corruptions"

    @cached_property
    def _place(self) -> Path | None:
        return self.bench.place(self.name, *RELEASED.get(self.bench.sets.name, ()))

    @cached_property
    def _originals(self) -> AnySet:
        return limited(self.bench.primary_metric[1], self.bench.limit, SEED, "the number of images to corrupt")

    @cached_property
    def _home(self) -> Path:
        """Where copies made here are kept, by what they are copies of."""
        return self.bench.runs / "shifted" / f"corruptions-{made.FROST}-{set_mark(self._originals)}"

    @cached_property
    def copies(self) -> made.Copies:
        """Opened; made first when there are none."""
        classes = self.bench.wnids
        if self._place is not None:
            return made.find_copies(self._place, classes)
        made.write_copies(
            self._originals,
            self.bench.sets.image_size,
            self._home,
            seed=SEED,
            facts={"set": self.bench.sets.name, "fingerprint": set_mark(self._originals)},
            quiet=self.bench.quiet,
            wait=True,  # for another evaluation that is making the same images
        )
        return made.find_copies(self._home, classes)

    @cached_property
    def fingerprint(self) -> str:
        cut = "" if self.bench.limit is None else f" {self.bench.limit}"
        placed = self._place is not None
        images = self.copies.fingerprint + cut if placed else f"{made.VERSION} {SEED} {self._home.name}"
        return hashlib.sha256(f"{self.bench.sets.fingerprint} {images}".encode()).hexdigest()[:16]

    def made(self, subject: EvaluatedRun) -> bool:
        return True

    def score(self, subject: EvaluatedRun) -> Mapping[str, Any]:
        copies = self.copies
        first = self._part(subject, made.CORRUPTIONS[0], 1)
        content = self.bench.content(first, copies.facts, copies.folder)
        errors: dict[str, list[float]] = {}
        total = len(made.CORRUPTIONS) * len(made.SEVERITIES)
        with ProgressBar("corruptions", total, self.bench.quiet) as watch:
            for corruption in made.CORRUPTIONS:
                errors[corruption] = []
                for severity in made.SEVERITIES:
                    images = self._part(subject, corruption, severity)
                    logits, _ = subject.outputs(_whole(images, self.bench.sets.image_size))
                    errors[corruption].append(1 - dict(accuracy(logits, images.label))["accuracy"])
                    watch.update(len(made.SEVERITIES) * (len(errors) - 1) + severity, {})
        values = dict(corruption_error(errors, made.GROUPS)) | {"clean_error": 1 - subject.clean_accuracy(content)}
        facts = {"source": copies.source, "facts": dict(copies.facts)}
        return {"count": len(images), "values": values, "errors": errors} | facts

    def _part(self, subject: EvaluatedRun, corruption: str, severity: int) -> AnySet:
        """A corruption at a severity, cut as the run's test set was, then to the images wanted."""
        data = subject.run.data
        part = limited(self.copies.part(corruption, severity), data.test_limit, data.seed)
        return limited(part, self.bench.limit, SEED)


def _whole(images: AnySet, size: int) -> AnySet:
    """Files brought to size without cutting a margin: released ones were cut before they were corrupted."""
    return decode(images, size, None) if isinstance(images, FileSet) else images


def _complete(score: Mapping[str, Any]) -> bool:
    """Whether a score read from a file has an error, a number, for every corruption at every severity."""
    errors = score.get("errors")
    return (
        isinstance(score.get("fingerprint"), str)
        and isinstance(errors, dict)
        and bool(errors)
        and all(isinstance(row, list) and len(row) == len(made.SEVERITIES) for row in errors.values())
        and all(isinstance(error, int | float) and 0 <= error <= 1 for row in errors.values() for error in row)
    )


def relate(folder: RunDir, reference: RunDir) -> None:
    """Add to a run's corruption score the error relative to a reference run's, as Hendrycks & Dietterich 2019 do.

    mCE = mean over corruptions of Σ_severities error / Σ_severities error of the reference, and the same at severity 5.
    """
    own, other = folder.score("corruptions"), reference.score("corruptions")
    if own is None or other is None:
        raise UserError(f"{(folder if own is None else reference).path} has no corruption score yet")
    for score, place in ((own, folder), (other, reference)):
        if not _complete(score):
            raise UserError(
                f"{place.path}: its corruption score is damaged; remove scores/ there and evaluate it again"
            )
    if own["fingerprint"] != other["fingerprint"] or own["errors"].keys() != other["errors"].keys():
        raise UserError(f"{folder.path} and {reference.path} were scored on different corrupted images")
    if any(sum(errors) == 0 or errors[-1] == 0 for errors in other["errors"].values()):
        raise UserError(f"{reference.path} makes no error on some corruption, so nothing can be relative to it")
    pairs = [(errors, other["errors"][corruption]) for corruption, errors in own["errors"].items()]
    own["values"] |= {
        "mce_relative": sum(sum(ours) / sum(second) for ours, second in pairs) / len(pairs),
        "mce_relative_5": sum(ours[-1] / second[-1] for ours, second in pairs) / len(pairs),
    }
    own["reference"] = {"run": str(reference.path), "hash": reference.read()[0].hash}
    write_json(folder.path / "scores" / "corruptions.json", own)
