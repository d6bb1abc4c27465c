"""Error on corrupted copies of the test set: the official ones if they exist, otherwise generated here."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from antishortcut.data.corruptions import FROST, Copies, find_copies, write_copies
from antishortcut.data.corruptions.constants import CORRUPTIONS, GROUPS, SEVERITIES, VERSION
from antishortcut.data.image_io import decode
from antishortcut.data.splits import limited, set_mark
from antishortcut.errors import UserError
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score
from antishortcut.metrics import accuracy, corruption_error
from antishortcut.progress import ProgressBar
from antishortcut.run_dir import RunDir, write_json
from antishortcut.types import AnySet, FileSet

RELEASED = {  # folders below the data root, as the official archives unpack
    "cifar100": ("CIFAR-100-C",),
    "tiny-imagenet": ("Tiny-ImageNet-C",),
    "imagenet100": ("ImageNet-C", "imagenet-c"),
}
SEED = 0  # of generated copies: the same images for every run


def corruptions(context: EvalContext) -> Iterator[Score]:
    """The fifteen corruptions of CIFAR-C at five severities."""
    folder = context.folder("corruptions", *RELEASED.get(context.sets.name, ()))
    if folder is not None:
        copies = find_copies(folder, context.wnids)
        limit = "" if context.limit is None else f" {context.limit}"
        mark = context.fingerprint(copies.fingerprint + limit)
        yield Score("corruptions", mark, partial(_score, lambda: copies), hashed=copies.hashed)
        return
    originals = limited(context.first_test[1], context.limit, SEED, "the number of images to corrupt")
    generated = context.runs / "shifted" / f"corruptions-{FROST}-{set_mark(originals)}"
    images = f"{VERSION} {SEED} {generated.name}"
    yield Score("corruptions", context.fingerprint(images), partial(_score, partial(_generate, context, generated)))


def _generate(context: EvalContext, folder: Path) -> Copies:
    originals = limited(context.first_test[1], context.limit, SEED)
    facts = {"set": context.sets.name, "fingerprint": set_mark(originals)}
    # another process may be writing them: wait
    write_copies(originals, context.sets.image_size, folder, seed=SEED, facts=facts, quiet=context.quiet, wait=True)
    return find_copies(folder, context.wnids)


def _score(open_copies: Callable[[], Copies], evaluated: EvaluatedRun) -> Mapping[str, Any]:
    copies, context, data = open_copies(), evaluated.context, evaluated.run.data

    def images_of(corruption: str, severity: int) -> AnySet:
        """Limited as the run's test set, then as the context says."""
        images = limited(copies.part(corruption, severity), data.test_limit, data.seed)
        return limited(images, context.limit, SEED)

    originals = context.originals(images_of(CORRUPTIONS[0], 1), copies.facts, copies.folder)
    errors: dict[str, list[float]] = {corruption: [] for corruption in CORRUPTIONS}
    with ProgressBar("corruptions", len(CORRUPTIONS) * len(SEVERITIES), context.quiet) as bar:
        for number, corruption in enumerate(CORRUPTIONS):
            for severity in SEVERITIES:
                images = images_of(corruption, severity)
                if isinstance(images, FileSet):  # released files were cropped before they were corrupted: only resize
                    images = decode(images, context.sets.image_size, None)
                logits, _ = evaluated.outputs(images)
                errors[corruption].append(1 - dict(accuracy(logits, images.label))["accuracy"])
                bar.update(len(SEVERITIES) * number + severity, {})
    values = dict(corruption_error(errors, GROUPS)) | {"clean_error": 1 - evaluated.clean_accuracy(originals)}
    facts = {"source": copies.source, "facts": dict(copies.facts)}
    return {"count": len(images), "values": values, "errors": errors} | facts


def relate(folder: RunDir, reference: RunDir) -> None:
    """Add to a run's corruption score the error relative to a reference run's, as Hendrycks & Dietterich 2019 do.

    mCE = mean over corruptions of Σ_severities error / Σ_severities error of the reference, and the same at severity 5.
    """
    (own, errors), (other, base) = _errors(folder), _errors(reference)
    if own.get("fingerprint") != other.get("fingerprint"):
        raise UserError(f"{folder.path} and {reference.path} were scored on different corrupted images")
    if any(sum(each) == 0 or each[-1] == 0 for each in base.values()):
        raise UserError(f"{reference.path} makes no error on some corruption, so no error can be relative to it")
    own["values"] |= {
        "mce_relative": sum(sum(errors[name]) / sum(base[name]) for name in base) / len(base),
        "mce_relative_5": sum(errors[name][-1] / base[name][-1] for name in base) / len(base),
    }
    own["reference"] = {"run": str(reference.path), "hash": reference.read()[0].hash}
    write_json(folder.path / "scores" / "corruptions.json", own)


def _errors(folder: RunDir) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The corruption score and its errors of every corruption, by severity."""
    score = folder.score("corruptions")
    if score is None:
        raise UserError(f"{folder.path} has no corruption score yet")
    return score, score["errors"]
