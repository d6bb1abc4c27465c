"""Checks of arguments, shared by all losses and methods. Each error is one line: what is wrong, what it must be."""
# B batch, C classes, D features

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from antishortcut.errors import UserError
from antishortcut.models.reused_classifier import WIDEST
from antishortcut.types import UNLABELLED, Sizes

ABOVE_0 = (lambda value: 0 < value < math.inf, "above 0, and finite")
NOT_NEGATIVE = (lambda value: value >= 0, "0 or more")
SHARE = (lambda value: 0 <= value < 1, "at least 0 and below 1")
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {  # NaN is in none of them
    "temperature": ABOVE_0,
    "kd_temperature": ABOVE_0,
    "tc_temperature": ABOVE_0,
    "factor": ABOVE_0,
    "variance": (lambda value: 0.001 <= value < math.inf, "0.001 or more, and finite"),
    "strength": NOT_NEGATIVE,
    "margin": NOT_NEGATIVE,
    "warmup": NOT_NEGATIVE,
    "step_size": NOT_NEGATIVE,
    "adjustment": NOT_NEGATIVE,
    "init": NOT_NEGATIVE,
    "rate": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "epoch": NOT_NEGATIVE,
    "momentum": SHARE,
    "mask_ratio": SHARE,
    "alpha": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "floor": (lambda value: value < 0, "below 0"),
}
MINIMUM = {"queue": 0, "examples": 0, "refits": 0, "groups": 2}  # of whole numbers; 1 for all others


def check_settings(**settings: Any) -> None:
    """Validate settings by name: those in RANGES are numbers, all others whole numbers."""
    for name, value in settings.items():
        if name in RANGES:
            fits, what = RANGES[name]
            if not hasattr(value, "__float__"):
                raise TypeError(f"{name} is of type {type(value).__name__}; it must be a number")
            if not fits(value):
                raise UserError(f"{name} is {value}; it must be {what}")
            continue
        least = MINIMUM.get(name, 1)  # numpy's integers are whole numbers, True is not
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
            raise UserError(f"{name} is {value!r}; it must be a whole number, {least} or more")


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UserError(f"unknown {name} {value!r}; it must be {' or '.join(map(repr, known))}")


def check_tensors(widths: Mapping[str, int] | None = None, index: Tensor | None = None, **tensors: Tensor) -> None:
    """Validate types, shapes, dtypes and devices without synchronising. All tensors must match the first one.

    widths: of features (B, D), by name, with equal B. Without it: logits (B, C), or maps of them, of one shape.
    index: numbers of the samples (B,).
    """
    first, like = next(iter(tensors.items()))
    for name, rows in tensors.items():
        what = "logits (rows, classes)" if widths is None else f"features (rows, {widths[name]})"
        if not isinstance(rows, Tensor):
            raise TypeError(f"{name} is of type {type(rows).__name__}; it must be a tensor of {what}")
        if rows.ndim < 2 or (widths is not None and rows.shape[1:] != (widths[name],)):
            pool = ": pool maps to one vector a row first" if widths is not None and rows.ndim > 2 else ""
            raise ValueError(f"{name} has shape {tuple(rows.shape)}; it must be {what}{pool}")
        if rows.shape != like.shape and (widths is None or len(rows) != len(like)):
            raise ValueError(f"{name} has shape {tuple(rows.shape)}, {first} {tuple(like.shape)}; they must match")
    if index is not None:
        what = "it must be a tensor of whole numbers, one a row"
        if not isinstance(index, Tensor):
            raise TypeError(f"index is of type {type(index).__name__}; {what}")
        if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
            raise TypeError(f"index is of {index.dtype}; {what}")
        if index.shape != like.shape[:1]:
            raise ValueError(f"index has shape {tuple(index.shape)}, {first} {len(like)} rows; {what}")
        tensors["index"] = index
    for name, rows in tensors.items():
        if rows.device != like.device:
            raise ValueError(f"{name} is on {rows.device}, {first} on {like.device}; they must be on one device")


def check_early(early: Tensor | None, required: bool, final: Tensor) -> Tensor:
    """The early state's features; the final state's where no loss needs them."""
    if early is None and required:
        raise ValueError("early is None, but temporal contrast or suppression needs it")
    return final if early is None or not required else early


def check_rows(student: Tensor) -> None:
    if len(student) == 0:
        raise ValueError("student, final and early have 0 rows; they must have at least 1, to take a mean over")


def check_widths(sizes: Sizes, roles: Sequence[str]) -> None:
    """Features that are compared, of the final and the early state, must have the same width."""
    final, early = (sizes.teachers[role].embedding for role in (roles[0], roles[-1]))
    if early != final:
        raise ValueError(
            f"the final state's features are {final} wide, the early state's {early}; it compares them, "
            "so teacher.early must be a state of a network of the same width"
        )


def weak_reference(sizes: Sizes) -> bool:
    """Whether there is no early state whose embedding could be compared: it is another network's, or not asked for."""
    early = sizes.teachers.get("early")
    return early is None or early.weak


def check_labels(sizes: Sizes) -> Tensor:
    """The training labels; segmentation has none."""
    if sizes.labels is None:
        raise ValueError("needs one label for every image, not for every pixel")
    return sizes.labels


def check_every_label(sizes: Sizes) -> None:
    """The method goes by the class of every image, so images without a label are refused."""
    if sizes.labels is not None and bool((sizes.labels == UNLABELLED).any()):
        raise ValueError("goes by the class of every image, and some images have no label; use kd, contrast or asd")


def check_groups(sizes: Sizes) -> Tensor:
    """The group of every training image."""
    check_labels(sizes)
    if sizes.groups is None:
        raise ValueError(
            "needs groups: images with an attribute besides their class, as in cues, groups:PATH or shortcut:SET"
        )
    return sizes.groups


def check_classifier(sizes: Sizes) -> None:
    """The teacher's classifier must be one linear layer of its embedding, which a student can end in."""
    teacher = sizes.teachers["final"]
    if sizes.student.maps or teacher.maps:
        raise ValueError("needs networks with one embedding for every image, not for every pixel")
    if not teacher.head:
        raise ValueError(
            "ends the student in the teacher's classifier, so the teacher's logits must be one linear layer of its "
            "embedding, and they are not; take a method that needs none, like kd"
        )
    widest = max(sizes.student.embedding, teacher.embedding)
    if widest > WIDEST:
        raise ValueError(f"an embedding is {widest:,} wide; its projector takes at most {WIDEST:,}")


def check_stages(sizes: Sizes, **stage: int) -> None:
    """Student and teacher must have feature maps, and the named stage."""
    student, teacher = len(sizes.student.stages), len(sizes.teachers["final"].stages)
    fewest = min(student, teacher)
    counts = f"the student has {student} stages of feature maps, the teacher {teacher}"
    if not fewest:
        network = "teacher" if student else "student"
        advice = f"name modules that give maps ({network}.stages = …), or take a method that needs none, like asd"
        raise ValueError(f"needs feature maps of both networks: {counts}; {advice}")
    for name, value in stage.items():
        if not -fewest <= value < fewest:
            raise ValueError(f"{name} = {value} is not a stage of both networks: {counts}")


def check_preact(sizes: Sizes) -> None:
    """Student and teacher must have feature maps, each but the stem's behind a ReLU that can be read, or signed."""
    check_stages(sizes)
    for name, shape in (("student", sizes.student), ("teacher", sizes.teachers["final"])):
        if not all(shape.preact[1:] or shape.preact):
            at = len(shape.preact) - 1 - shape.preact[::-1].index(False)
            raise ValueError(
                f"needs the maps before the last ReLU of each stage: stage {at} of the {name} is never negative, and "
                f"no nn.ReLU ends it; name modules that end in one ({name}.stages = …), or take another method, like at"
            )
