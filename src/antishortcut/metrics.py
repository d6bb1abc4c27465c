"""Metrics as pure functions: a network's outputs in, (name, value) pairs out."""
# N images, B batch, C classes, K categories, G groups, H × W pixels

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_confusion_matrix

from antishortcut.types import VOID


def near_chance(accuracy: float, chance: float) -> bool:
    """Whether a trained network is hardly better than guessing: it was read or shown images in a wrong way."""
    return accuracy < min(2 * chance, chance + 0.1)


def accuracy(logits: Tensor, label: Tensor) -> Iterator[tuple[str, float]]:
    """Top-1 accuracy of logits (N, C), in [0, 1]."""
    value = multiclass_accuracy(logits, label, num_classes=logits.shape[1], average="micro")
    yield "accuracy", float(value)


def hits(logits: Tensor, label: Tensor) -> Tensor:
    """Correct predictions and samples, for logits (B, C). (2,)"""
    right = (logits.argmax(dim=1) == label).sum()
    return torch.stack([right, torch.full_like(right, len(label))])


def accuracy_of(tally: Tensor) -> Iterator[tuple[str, float]]:
    """Top-1 accuracy from a sum of `hits`."""
    right, count = tally.tolist()
    yield "accuracy", right / count


def confusion(logits: Tensor, label: Tensor) -> Tensor:
    """Pixels by true class (rows) and predicted class, for logits (B, C, H, W); void ones are left out. (C, C)"""
    return multiclass_confusion_matrix(logits, label, num_classes=logits.shape[1], ignore_index=VOID)


def class_answers(logits: Tensor, label: Tensor, classes: Sequence[str], most: int = 10) -> dict[str, Any]:
    """What logits (N, C) take every class for. Classes of the same name get their number.

    `confusion`: {class: {answer: images}} without zeros. `class_accuracy`: None for a class without images.
    `mistakes`: the wrong images (their numbers) that the network is surest of.
    """
    width, guess, label = logits.shape[1], logits.argmax(dim=1), label.long()  # (N,)
    names = [name if classes.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(classes)]
    tally = (label * width + guess).bincount(minlength=width**2).view(width, width)  # (C, C)
    confidence = logits.double().softmax(dim=1).amax(dim=1)  # (N,)
    wrong = (guess != label).nonzero().flatten()
    surest = wrong[confidence[wrong].sort(descending=True, stable=True).indices[:most]]
    rows: dict[str, dict[str, int]] = {name: {} for name in names}
    for true, answer in tally.nonzero().tolist():
        rows[names[true]][names[answer]] = int(tally[true, answer])
    return {
        "class_accuracy": {name: row.get(name, 0) / sum(row.values()) if row else None for name, row in rows.items()},
        "confusion": rows,
        "mistakes": [
            {"image": at, "class": names[label[at]], "answer": names[guess[at]], "confidence": float(confidence[at])}
            for at in surest.tolist()
        ],
    }


def segmentation(tally: Tensor) -> Iterator[tuple[str, float]]:
    """Pixel accuracy and mean IoU from a sum of `confusion` (C, C). Absent classes do not count."""
    iou, present = _iou(tally)
    yield "accuracy", float(tally.double().diagonal().sum() / tally.double().sum().clamp(min=1))
    yield "miou", float(iou[present].mean()) if present.any() else 0.0


def class_iou(tally: Tensor, classes: Sequence[str]) -> dict[str, float | None]:
    """Intersection over union of every class by name; None for an absent one."""
    iou, present = _iou(tally)
    return {name: float(iou[at]) if present[at] else None for at, name in enumerate(classes)}


def _iou(tally: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union (C,), and which classes are labelled or predicted anywhere (C,)."""
    counts = tally.double()
    right = counts.diagonal()
    union = counts.sum(dim=0) + counts.sum(dim=1) - right
    return right / union, union > 0


def split_accuracy(logits: Tensor, label: Tensor, hard: Tensor) -> Iterator[tuple[str, float]]:
    """Top-1 accuracy of logits (N, C) on the hard images (N,) bool and on the easy ones, and the mean of the two.

    A side without images has no accuracy, and then there is no mean.
    """
    right = (logits.argmax(dim=1) == label).double()  # (N,)
    yield "hard_share", float(hard.double().mean())
    if hard.any():
        yield "hard_accuracy", float(right[hard].mean())
    if not hard.all():
        yield "easy_accuracy", float(right[~hard].mean())
    if hard.any() and not hard.all():
        yield "balanced_accuracy", float((right[hard].mean() + right[~hard].mean()) / 2)


def shape_bias(logits: Tensor, label: Tensor, cues: Mapping[str, Tensor]) -> Iterator[tuple[str, float]]:
    """Shape bias in the sense of Geirhos et al. 2019, where the texture of every image is known and another class's.

    Of the images decided by shape or by texture, the share decided by shape: n_shape / (n_shape + n_texture).
    """
    if "texture" not in cues:
        return
    guess, texture = logits.argmax(dim=1), cues["texture"]
    conflict = texture != label
    if not conflict.any():
        return
    by_shape, by_texture = (int(((guess == of) & conflict).sum()) for of in (label, texture))
    yield from taken_for(by_shape, by_texture, int(conflict.sum()))


def taken_for(shape: int, texture: int, count: int) -> Iterator[tuple[str, float]]:
    """Of so many images or pixels in conflict, the shares taken for their shape's class and their texture's."""
    yield "by_shape", shape / count
    yield "by_texture", texture / count
    if shape + texture > 0:
        yield "shape_bias", shape / (shape + texture)


def overlap_accuracy(logits: Tensor, label: Tensor, allowed: Tensor) -> Iterator[tuple[str, float]]:
    """Top-1 accuracy among all classes, and among the allowed ones (C,) alone, to which the labels belong."""
    yield from accuracy(logits, label)
    classes = allowed.nonzero().flatten()
    guess = classes[logits[:, classes].argmax(dim=1)]  # (N,)
    yield "accuracy_overlap", float((guess == label).double().mean())


def cue_conflict(logits: Tensor, matrix: Tensor, shape: Tensor, texture: Tensor) -> Iterator[tuple[str, float]]:
    """Shape bias over categories of classes, Geirhos et al. 2019: argmax_k Σ_c matrix[k, c] softmax(logits)[c].

    matrix (K, C) averages the probabilities of a category's classes; shape and texture (N,) index its rows.
    Shares are of the images in conflict; `decided` is by shape or by texture, `neither` the rest.
    """
    conflict = shape != texture  # (N,)
    if not conflict.any():
        return
    probability = logits[conflict].double().softmax(dim=1)  # (N, C)
    guess = (probability @ matrix.double().T).argmax(dim=1)  # (N,)
    by_shape = float((guess == shape[conflict]).double().mean())
    by_texture = float((guess == texture[conflict]).double().mean())
    yield "by_shape", by_shape
    yield "by_texture", by_texture
    yield "decided", by_shape + by_texture
    yield "neither", float(((guess != shape[conflict]) & (guess != texture[conflict])).double().mean())
    if by_shape + by_texture > 0:
        yield "shape_bias", by_shape / (by_shape + by_texture)


def group_accuracy(
    logits: Tensor, label: Tensor, group: Tensor, names: Sequence[str], train_share: Mapping[str, float] | None = None
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Accuracy of the worst group and the mean over groups; beside it, accuracy and size of every group by name.

    group (N,) indexes `names`; groups without images do not count. `adjusted` weighs the groups by their share
    of the training set (Sagawa et al. 2020), divided by the share of the groups that occur here.
    """
    right = (logits.argmax(dim=1) == label).double()  # (N,)
    count = group.bincount(minlength=len(names))  # (G,)
    hits = group.bincount(weights=right, minlength=len(names))  # (G,)
    groups = {
        name: {"accuracy": float(hits[at] / count[at]), "count": int(count[at])}
        for at, name in enumerate(names)
        if count[at] > 0
    }
    if not groups:
        return {}, {}
    worst = min(groups.values(), key=lambda each: each["accuracy"])
    values = {
        "worst_group": worst["accuracy"],
        "mean_group": sum(each["accuracy"] for each in groups.values()) / len(groups),
        "worst_group_size": worst["count"],
    }
    shares = {name: (train_share or {}).get(name, 0.0) for name in groups}
    if sum(shares.values()) > 0:
        weighted = sum(share * groups[name]["accuracy"] for name, share in shares.items())
        values["adjusted"] = weighted / sum(shares.values())
    return values, groups


def corruption_error(
    errors: Mapping[str, Sequence[float]], groups: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, float]]:
    """Plain mean error over corruptions, each given as errors at severities 1 to 5: at severity 5, and over all.

    mce, mce_all, and the same for each group of corruptions: texture, texture_all, …
    """
    for name, members in (("mce", tuple(errors)), *groups.items()):
        worst = [errors[member][-1] for member in members]
        every = [error for member in members for error in errors[member]]
        yield name, sum(worst) / len(worst)
        yield f"{name}_all", sum(every) / len(every)
