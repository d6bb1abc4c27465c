"""Shifted images: stylised and corrupted copies, renditions, cue conflict, worst groups, images hard for T_early."""
# N images, C classes

import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from antishortcut.data.corruptions import FROST, Copies, find_copies, write_copies
from antishortcut.data.corruptions.constants import CORRUPTIONS, GROUPS, SEVERITIES, VERSION
from antishortcut.data.datasets import held
from antishortcut.data.groups import groups_of, shares
from antishortcut.data.image_io import decode
from antishortcut.data.shifts import Shift, Stimuli, open_renditions, open_stimuli
from antishortcut.data.splits import limited, set_mark
from antishortcut.errors import UserError
from antishortcut.evaluation import EVALUATIONS, FOLDER, folder_score
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score
from antishortcut.evaluation.stylize import Stylized, open_stylized
from antishortcut.metrics import accuracy, corruption_error, group_accuracy, overlap_accuracy, split_accuracy
from antishortcut.metrics import cue_conflict as cue_conflict_scores
from antishortcut.progress import ProgressBar
from antishortcut.run_dir import RunDir, write_json
from antishortcut.types import AnySet, FileSet


def stylized(context: EvalContext) -> Iterator[Score]:
    """Copies made by asd stylize: accuracy, the loss against clean images, how often the style's class is predicted."""
    command = f"asd stylize {shlex.quote(context.sets.name)} FOLDER --stylizer DIR"
    folder = _folder("stylized", context, f"make stylised copies: {command}")
    copies = open_stylized(folder, len(context.sets.classes))
    originals = context.originals(copies.images, copies.facts, folder)
    yield Score("stylized", context.fingerprint(copies.fingerprint), partial(_stylized, copies, originals))


def _stylized(copies: Stylized, originals: AnySet, evaluated: EvaluatedRun) -> Mapping[str, Any]:
    logits, _ = evaluated.outputs(copies.images)
    values = dict(accuracy(logits, copies.images.label))
    values["clean_accuracy"] = evaluated.clean_accuracy(originals)
    values["gap"] = values["clean_accuracy"] - values["accuracy"]
    if copies.style_label is not None:
        values["by_style"] = float((logits.argmax(dim=1) == copies.style_label).float().mean())
    values["chance"] = 1 / logits.shape[1]
    return {"count": len(copies.images), "values": values, "source": "generated", "facts": dict(copies.facts)}


def renditions(name: str, context: EvalContext) -> Iterator[Score]:
    """ImageNet-R or ImageNet-A: over all classes, as in the paper, and over those that the set has."""
    shift = open_renditions(name, _folder(name, context, f"unpack {name} there"), context.wnids)
    yield _overlap_score(name, shift, context)


imagenet_r, imagenet_a = (partial(renditions, name) for name in ("imagenet-r", "imagenet-a"))


def class_folders(context: EvalContext) -> Iterator[Score]:
    """Any folders of class folders, scored like ImageNet-R: each is a score of its own."""
    if not context.folders:
        raise UserError(f"{FOLDER} wants NAME=PATH in its place, such as --on sketch=photos/sketch")
    for name, shift in context.folders.items():
        yield _overlap_score(folder_score(name), shift, context)


def _overlap_score(name: str, shift: Shift, context: EvalContext) -> Score:
    return Score(name, context.fingerprint(shift.fingerprint), partial(_overlap, shift), hashed=shift.hashed)


def _overlap(shift: Shift, evaluated: EvaluatedRun) -> Mapping[str, Any]:
    """Accuracy among all classes of the student, and among those that the images have."""
    logits, _ = evaluated.outputs(_resized(shift.images, evaluated))
    values = dict(overlap_accuracy(logits, shift.images.label, shift.allowed))
    values |= {"chance": 1 / len(shift.allowed), "chance_overlap": 1 / len(shift.overlap)}
    return {"count": len(shift.images), "values": values, "source": shift.source, "facts": dict(shift.facts)}


def cue_conflict(context: EvalContext) -> Iterator[Score]:
    """Stimuli of Geirhos et al. 2019: the shape of one class, the texture of another."""
    folder = _folder("cue-conflict", context, "put stimuli like cat7-elephant2.png there")
    mapping = folder / "mapping.toml"
    stimuli = open_stimuli(folder, context.wnids, mapping if mapping.exists() else None)
    mark = context.fingerprint(stimuli.fingerprint)
    yield Score("cue-conflict", mark, partial(_cue_conflict, stimuli), hashed=stimuli.hashed)


def _cue_conflict(stimuli: Stimuli, evaluated: EvaluatedRun) -> Mapping[str, Any]:
    logits, _ = evaluated.outputs(_resized(stimuli.images, evaluated))
    values = dict(cue_conflict_scores(logits, stimuli.matrix, stimuli.images.label, stimuli.texture))
    return {"count": len(stimuli.images), "values": values, "source": "given", "facts": dict(stimuli.facts)}


def _folder(name: str, context: EvalContext, advice: str) -> Path:
    """The folder of an evaluation's images; an error with advice if there is none."""
    usual = EVALUATIONS[name].folder_of(context.sets.name)
    folder = context.folder(name, usual)
    if folder is None:
        raise UserError(f"no folder {context.root / usual}; {advice}, or add --at {name}=FOLDER")
    return folder


def _resized(images: AnySet, evaluated: EvaluatedRun) -> AnySet:
    """Resized as the student's own test images: small ones whole, large ones cropped."""
    return held(images, evaluated.context.sets.image_size, None)


def groups(context: EvalContext) -> Iterator[Score]:
    """The worst group of the first test set, where images have a second attribute besides their class."""
    if not context.first_test[1].cues:
        raise UserError(f"{context.sets.name} has no groups; cues has, and groups:PATH with a metadata.csv")
    yield Score("groups", context.sets.fingerprint, _groups)


def _groups(evaluated: EvaluatedRun) -> Mapping[str, Any]:
    sets, (name, images) = evaluated.context.sets, evaluated.context.first_test
    logits, _ = evaluated.outputs(images)
    group, names = groups_of(images, sets.classes)
    values, detail = group_accuracy(logits, images.label, group, names, shares(sets.train, sets.classes))
    return {"count": len(images), "of": name, "values": values, "groups": detail}


def hard(context: EvalContext) -> Iterator[Score]:
    """Accuracy where T_early is wrong and where it is right: on the validation split, or else the first test set."""
    name, images = ("val", context.sets.val) if context.sets.val is not None else context.first_test
    yield Score("hard", f"{context.sets.fingerprint}-{name}", partial(_hard, name, images))


def _hard(name: str, images: AnySet, evaluated: EvaluatedRun) -> Mapping[str, Any]:
    teacher = evaluated.teachers("hard").network("early")
    logits, _ = evaluated.outputs(images)
    early, _ = evaluated.outputs(images, teacher)
    values = dict(split_accuracy(logits, images.label, early.argmax(dim=1) != images.label))
    return {"count": len(images), "values": values, "of": name}


# --- Error on corrupted copies of the test set: the official ones if they exist, otherwise generated here ---


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
