"""Small pure scorers: outputs of a network on a set in, (name, value) out."""
# N images, C classes

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy


def accuracy(logits: Tensor, label: Tensor) -> Iterator[tuple[str, float]]:
    """Top-1 accuracy of logits (N, C), in [0, 1]."""
    value = multiclass_accuracy(logits, label, num_classes=logits.shape[1], average="micro")
    yield "accuracy", float(value)


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
    by_shape = float((guess == label)[conflict].float().mean())
    by_texture = float((guess == texture)[conflict].float().mean())
    yield "by_shape", by_shape
    yield "by_texture", by_texture
    if by_shape + by_texture > 0:
        yield "shape_bias", by_shape / (by_shape + by_texture)
