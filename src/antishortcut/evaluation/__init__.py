"""A trained network → scores/<set>.json, one file per evaluation. What is already scored is not repeated.

The table of evaluations needs no torch: commands and reports read names, help and metrics from it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.errors import UserError, suggest
from antishortcut.fileio import refuse_links, remove_leftovers
from antishortcut.run_dir import RunDir, write_json

if TYPE_CHECKING:
    from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score

Metric = tuple[str, bool | None]  # its label, and whether higher is better: None where neither is


@dataclass(frozen=True)
class Evaluation:
    """What `asd evaluate --on NAME` measures. docs/extend.md shows how to add one."""

    help: str
    function: str  # "module.function" below antishortcut.evaluation
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # by the key in scores/<set>.json
    labels: bool = True  # whether it needs the labels of the test images
    folder: str = ""  # of images that it needs, below the data root; {data} is the name of the data set

    def run(self, context: EvalContext) -> Iterable[Score]:
        """Open the images; each Score is one file of scores. The function needs torch, so it is imported here."""
        module, _, name = self.function.rpartition(".")
        scores: Iterable[Score] = getattr(import_module(f"{__name__}.{module}"), name)(context)
        return scores

    def folder_of(self, data: str) -> str:
        """Below the data root, the folder of its images for a data set."""
        return self.folder.format(data=data.partition(":")[0])


def _metrics(higher_is_better: bool | None, *keys: str, **labels: str) -> dict[str, Metric]:
    """Metrics of one direction: keys whose label is the key in words, then keys with a label of their own."""
    words = {key: key.replace("_", " ") for key in keys}
    return {key: (label, higher_is_better) for key, label in {**words, **labels}.items()}


_CUES = {**_metrics(None, "by_shape", "by_texture"), **_metrics(True, "shape_bias")}
_KINDS = ("texture", "noise", "blur", "weather")  # of corruptions
FOLDER = "folder"  # the evaluation of any folder of class folders

EVALUATIONS = {
    "clean": Evaluation(
        "every test set of the data, scored as its task defines: accuracy, mean IoU, or without labels agreement",
        "context.clean",
        {
            **_metrics(True, "accuracy", miou="mIoU", cosine="cosine to the teacher"),
            **_metrics(None, agreement="agreement with the teacher"),
            **_metrics(False, kl="KL to the teacher"),
            **_CUES,
        },
        labels=False,
    ),
    "corruptions": Evaluation(
        "error on the test images under 15 corruptions at 5 severities, official copies or generated",
        "shift_scores.corruptions",
        {
            **_metrics(False, mce="error at severity 5 (mCE)", mce_all="error over all severities"),
            **_metrics(False, mce_relative="relative mCE", mce_relative_5="relative mCE, severity 5"),
            **_metrics(False, "clean_error", *_KINDS, *(f"{kind}_all" for kind in _KINDS)),
        },
    ),
    "stylized": Evaluation(
        "copies made by asd stylize: accuracy, and how often the class of the style is predicted",
        "shift_scores.stylized",
        {**_metrics(True, "accuracy", "clean_accuracy"), **_metrics(False, "gap"), **_metrics(None, "by_style")},
        folder="{data}-stylized",
    ),
    "cue-conflict": Evaluation(
        "images with the shape of one class and the texture of another: how often each is predicted",
        "shift_scores.cue_conflict",
        {**_CUES, **_metrics(None, "decided", "neither")},
        folder="cue-conflict",
    ),
    "imagenet-r": Evaluation(
        "paintings, toys and cartoons of those ImageNet classes that the student has",
        "shift_scores.imagenet_r",
        _metrics(True, "accuracy", "accuracy_overlap"),
        folder="imagenet-r",
    ),
    "imagenet-a": Evaluation(
        "photographs that ImageNet networks get wrong, of the classes that the student has",
        "shift_scores.imagenet_a",
        _metrics(True, "accuracy", "accuracy_overlap"),
        folder="imagenet-a",
    ),
    FOLDER: Evaluation(
        "any folder of class folders, matched by name, under a name of yours: --on sketch=photos/sketch",
        "shift_scores.class_folders",
        _metrics(True, "accuracy", "accuracy_overlap"),
    ),
    "groups": Evaluation(
        "accuracy of the worst group, where images have a second attribute besides their class",
        "shift_scores.groups",
        _metrics(True, "worst_group", "mean_group", "adjusted"),
    ),
    "attack": Evaluation(
        "accuracy under a small adversarial change, which no method here is designed for",
        "adversarial.attack",
        _metrics(True, "clean", "1/255", "2/255", "4/255", "8/255"),
    ),
    "hard": Evaluation(
        "accuracy on the images that the early teacher gets wrong, and on the rest",
        "shift_scores.hard",
        {**_metrics(True, "hard_accuracy", "easy_accuracy", "balanced_accuracy"), **_metrics(None, "hard_share")},
    ),
    "probes": Evaluation(
        "the test images without colour, shape, texture, centre or surround: what its answers depend on",
        "probes.probes",
        {
            f"{key}{state}": (f"{key.replace('_', ' ')}{word}", None)
            for state, word in (("", ""), ("_early", ", T_early"), ("_final", ", T_final"))
            for key in ("needs_colour", "texture_share", "surround_share")
        },
    ),
    "maps": Evaluation(
        "where it looks: Grad-CAM and integrated gradients on a dozen test images, beside its teacher's",
        "maps.maps",
        {
            "glyph_area": ("area of the glyph", None),
            **{
                f"glyph_share_{kind}{state}": (f"on the glyph, {name}{word}", None)
                for state, word in (("", ""), ("_early", ", T_early"), ("_final", ", T_final"))
                for kind, name in (("cam", "Grad-CAM"), ("ig", "integrated gradients"))
            },
        },
    ),
    "mechanism": Evaluation(
        "where the student's features lie between the early and the final teacher",
        "mechanism.mechanism",
        _metrics(
            None,
            cos_final="cosine to T_final",
            cos_early="cosine to T_early",
            closer_final="closer to T_final",
            signed_cosine="signed cosine",
            signed_above="above −0.1",
            projection="on shortcut directions",
            robust_projection="on robust directions",
            projection_final="T_final on shortcut directions",
            projection_early="T_early on shortcut directions",
            hinge_share="share above the hinge",
            hinge_mean="mean above the hinge",
            infonce_binary="InfoNCE, binary",
            infonce_full="InfoNCE, full",
            infonce_ceiling="its ceiling",
            head_share="head’s share of shortcut directions",
            shift_largest="largest logit shift",
            shift_bound="its bound",
        ),
    ),
    "embedding": Evaluation(
        "what a frozen embedding shows: accuracy of 20 nearest neighbours and of a linear probe on a labelled folder",
        "embedding_scores.embedding",
        _metrics(
            True,
            knn="nearest neighbours",
            linear="linear probe",
            teacher_knn="teacher’s nearest neighbours",
            teacher_linear="teacher’s linear probe",
        ),
        labels=False,
    ),
    "scenes": Evaluation(
        "segmentation examples: images, labels, predictions; agreement of student and teacher",
        "segmentation_scores.scenes",
        _metrics(None, agreement="agreement with the teacher"),
    ),
    "cost": Evaluation(
        "parameters, size on disk and milliseconds per image, compared with the teacher",
        "latency.cost",
        {**_metrics(False, "parameters", "bytes", ms="ms an image"), **_metrics(True, "times_faster")},
        labels=False,
    ),
}


def folder_score(name: str) -> str:
    """The score of a folder that the user gave a name; the evaluation's word comes first."""
    return f"{FOLDER} {name}"


def check_folder_name(name: str) -> None:
    """Raise if a folder of images cannot have this name: it is part of a file's name and of a column's."""
    if not re.fullmatch(r"\w[\w.+-]{0,39}", name):
        raise UserError(f"{name!r} cannot name a folder of images; use letters and digits, then also . _ + -, up to 40")
    if name in EVALUATIONS:
        own = f"; its images are named by --at {name}=FOLDER" if EVALUATIONS[name].folder else ""
        raise UserError(f"{name} is an evaluation, so a folder needs another name{own}")


def evaluate(
    folder: RunDir, context: EvalContext, on: Iterable[str], state: str = "final", device: str = "cpu"
) -> dict[str, dict[str, Any]]:
    """Run the named evaluations of a finished run and write their scores; existing scores are not repeated.

    Scores of an earlier state of a teacher are named <set>@<state>. If some evaluations fail, the rest still run.
    """
    from antishortcut.evaluation.context import EvaluatedRun

    for name in on:
        if name not in EVALUATIONS:
            hint = f"; a folder has a name: NAME={name}" if Path(name).is_dir() else suggest(name, EVALUATIONS)
            raise UserError(f"unknown evaluation {name!r}{hint}")
        if context.unlabelled and EVALUATIONS[name].labels:
            others = ", ".join(other for other, each in EVALUATIONS.items() if not each.labels)
            raise UserError(f"{name} needs labels, and {context.sets.name} has none; without: {others}")
    evaluated, errors = EvaluatedRun(folder, context, state, device), list[str]()
    remove_leftovers(folder.path)  # of an interrupted evaluation
    for name in on:
        try:
            for score in EVALUATIONS[name].run(context):
                _write_score(evaluated, score)
        except UserError as error:
            errors.append(str(error))
    if errors:
        raise UserError("; ".join(dict.fromkeys(errors)))
    return folder.scores()


def _write_score(evaluated: EvaluatedRun, score: Score) -> None:
    from antishortcut.evaluation.context import is_current

    folder, name = evaluated.folder, score.name + evaluated.suffix
    existing, hashed = folder.score(name), score.hashed or evaluated.context.sets.hashed
    if existing is not None and is_current(existing, score.fingerprint, hashed) and score.complete(evaluated):
        return
    _check_writable(folder)
    evaluated.score = score.name
    facts = {"set": score.name, "state": evaluated.state, "fingerprint": score.fingerprint, "hashed": hashed}
    write_json(folder.path / "scores" / f"{name}.json", facts | dict(score.compute(evaluated)))


def _check_writable(folder: RunDir) -> None:
    """Fail before anything is computed if the folder cannot be written to."""
    refuse_links(folder.path)
    path = folder.path / "scores"
    try:
        with tempfile.TemporaryFile(dir=path if path.is_dir() else folder.path):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"cannot write to {path} ({reason}); make it writable, or evaluate a copy of the run") from None
