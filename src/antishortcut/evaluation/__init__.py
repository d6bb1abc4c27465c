"""A trained network over sets: one forward pass each, results in scores/<set>.json. What is scored is not repeated.

The table of evaluations needs no torch: commands and reports read names, help and metrics from it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from antishortcut.errors import UserError, suggest
from antishortcut.fileio import remove_leftovers
from antishortcut.run_dir import RunDir, write_json

if TYPE_CHECKING:
    from antishortcut.evaluation.context import EvalContext as EvalContext
    from antishortcut.evaluation.context import EvaluatedRun as EvaluatedRun
    from antishortcut.evaluation.context import Examination

Metric = tuple[str, bool | None]  # its label, and whether higher is better: None where neither is


@dataclass(frozen=True)
class Evaluation:
    """What `asd evaluate --on NAME` measures. A new one is a line in EVALUATIONS, its file, its test and its docs."""

    name: str
    help: str
    run: Callable[[EvalContext], Iterable[Examination]]
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # by the key in scores/<set>.json
    needs_folder: bool = False  # of images, from --at or below the data root


def _later(function: str, *arguments: str) -> Callable[[EvalContext], Iterable[Examination]]:
    """A function of this package, "module.name", imported when it is called."""

    def run(bench: EvalContext) -> Iterable[Examination]:
        module, name = function.split(".")
        result = getattr(import_module(f"antishortcut.evaluation.{module}"), name)
        examinations: Iterable[Examination] = partial(result, *arguments)(bench)
        return examinations

    return run


_ACCURACY: dict[str, Metric] = {"accuracy": ("accuracy", True)}
_CUES: dict[str, Metric] = {
    "by_shape": ("by shape", None),
    "by_texture": ("by texture", None),
    "shape_bias": ("shape bias", True),
}
_RENDITIONS: dict[str, Metric] = {**_ACCURACY, "accuracy_overlap": ("accuracy overlap", True)}
_KINDS = ("texture", "noise", "blur", "weather")  # of corruptions

EVALUATIONS: dict[str, Evaluation] = {
    evaluation.name: evaluation
    for evaluation in (
        Evaluation(
            "clean",
            "every test set of the data, scored as its task says: accuracy, or mean IoU",
            _later("context.clean"),
            {**_ACCURACY, "miou": ("mIoU", True), **_CUES},
        ),
        Evaluation(
            "corruptions",
            "error on the test images under 15 corruptions at 5 severities, official copies or made here",
            _later("corruption_scores.corruptions"),
            {
                "mce": ("mCE", False),
                "mce_all": ("mCE, all severities", False),
                "mce_relative": ("relative mCE", False),
                "mce_relative_5": ("relative mCE, severity 5", False),
                "clean_error": ("clean error", False),
                **{kind: (kind, False) for kind in _KINDS},
                **{f"{kind}_all": (f"{kind} all", False) for kind in _KINDS},
            },
        ),
        Evaluation(
            "stylized",
            "copies made by asd stylize: accuracy, and how often the class of the style is said",
            _later("shift_scores.stylized"),
            {
                **_ACCURACY,
                "clean_accuracy": ("clean accuracy", True),
                "gap": ("gap", False),
                "by_style": ("by style", None),
            },
            needs_folder=True,
        ),
        Evaluation(
            "cue-conflict",
            "images with the shape of one class and the texture of another: how often which is said",
            _later("shift_scores.conflict"),
            {**_CUES, "decided": ("decided", None), "neither": ("neither", None)},
            needs_folder=True,
        ),
        Evaluation(
            "imagenet-r",
            "paintings, toys and cartoons of ImageNet's classes, those that the student has",
            _later("shift_scores.renditions", "imagenet-r"),
            _RENDITIONS,
            needs_folder=True,
        ),
        Evaluation(
            "imagenet-a",
            "photographs that ImageNet's networks got wrong, of the classes that the student has",
            _later("shift_scores.renditions", "imagenet-a"),
            _RENDITIONS,
            needs_folder=True,
        ),
        Evaluation(
            "groups",
            "accuracy of the worst group, where every image has a second fact besides its class",
            _later("shift_scores.groups"),
            {
                "worst_group": ("worst group", True),
                "mean_group": ("mean group", True),
                "adjusted": ("adjusted", True),
            },
        ),
        Evaluation(
            "attack",
            "accuracy under a small adversarial change, which no method here aims at",
            _later("shift_scores.attack"),
            {name: (name, True) for name in ("clean", "1/255", "2/255", "4/255", "8/255")},
        ),
        Evaluation(
            "hard",
            "accuracy on the images that the early teacher gets wrong, and on the others",
            _later("shift_scores.hard"),
            {
                "hard_accuracy": ("hard accuracy", True),
                "easy_accuracy": ("easy accuracy", True),
                "balanced_accuracy": ("balanced accuracy", True),
                "hard_share": ("hard share", None),
            },
        ),
        Evaluation(
            "mechanism",
            "where the student's features stand between early and final teacher, and how sure that is",
            _later("mechanism.mechanism"),
            {
                "cos_final": ("cosine to T_final", None),
                "cos_early": ("cosine to T_early", None),
                "closer_final": ("closer to T_final", None),
                "signed_cosine": ("signed cosine", None),
                "signed_above": ("above −0.1", None),
                "projection": ("on shortcut directions", None),
                "robust_projection": ("on robust directions", None),
                "projection_final": ("T_final on shortcut directions", None),
                "projection_early": ("T_early on shortcut directions", None),
                "hinge_share": ("share above the hinge", None),
                "hinge_mean": ("mean above the hinge", None),
                "infonce_binary": ("InfoNCE, binary", None),
                "infonce_full": ("InfoNCE, full", None),
                "infonce_ceiling": ("its ceiling", None),
                "head_share": ("head’s share of shortcut directions", None),
                "shift_largest": ("largest logit shift", None),
                "shift_bound": ("its bound", None),
            },
        ),
        Evaluation(
            "scenes",
            "segmentation to look at: images, truth, predictions; agreement of student and teacher",
            _later("segmentation_scores.scenes"),
            {"agreement": ("agreement with the teacher", None)},
        ),
        Evaluation(
            "cost",
            "parameters, size on disk and milliseconds an image, beside the teacher's",
            _later("latency.cost"),
            {
                "ms": ("ms an image", False),
                "parameters": ("parameters", False),
                "bytes": ("bytes", False),
                "times_faster": ("times faster", True),
            },
        ),
    )
}


def evaluate(
    folder: RunDir, bench: EvalContext, on: Iterable[str], state: str = "final", device: str = "cpu"
) -> dict[str, dict[str, Any]]:
    """Run the named evaluations of a finished run and keep their scores; what is scored already is not repeated.

    Scores of an earlier state of a teacher are kept as <set>@<state>. If some evaluations fail, the others are done
    first.
    """
    from antishortcut.evaluation.context import EvaluatedRun

    for name in on:
        if name not in EVALUATIONS:
            raise UserError(f"unknown evaluation {name!r}{suggest(name, EVALUATIONS)}")
    subject, errors = EvaluatedRun(folder, bench, state, device), list[str]()
    remove_leftovers(folder.path)  # what a killed evaluation left half-written
    for name in on:
        try:
            for examination in EVALUATIONS[name].run(bench):
                _examine(subject, examination)
        except UserError as error:
            errors.append(str(error))
    if errors:
        raise UserError("; ".join(dict.fromkeys(errors)))
    return folder.scores()


def _examine(subject: EvaluatedRun, examination: Examination) -> None:
    folder, title = subject.folder, examination.name + subject.mark
    score = folder.score(title)
    if score is not None and score.get("fingerprint") == examination.fingerprint and examination.made(subject):
        return
    _writable(folder)
    facts = {"set": examination.name, "state": subject.state, "fingerprint": examination.fingerprint}
    write_json(folder.path / "scores" / f"{title}.json", facts | dict(examination.score(subject)))


def _writable(folder: RunDir) -> None:
    """Fail before anything is computed if the folder cannot be written to."""
    place = folder.path / "scores"
    try:
        with tempfile.TemporaryFile(dir=place if place.is_dir() else folder.path):
            pass
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UserError(f"cannot write to {place} ({why}); make it writable, or evaluate a copy of the run") from None


def __getattr__(name: str) -> Any:
    """EvalContext and EvaluatedRun need torch, so they are imported when they are used."""
    if name in ("EvalContext", "EvaluatedRun"):
        return getattr(import_module("antishortcut.evaluation.context"), name)
    raise AttributeError(name)
