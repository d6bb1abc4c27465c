"""A student that ends in its teacher's classifier: trunk → projector → mean → the teacher's linear layer, frozen.

The projector (1 × 1, 3 × 3, 1 × 1 convolutions, each with batch norm) takes the student's last map to the teacher's
channels. Knowledge distillation with the reused teacher classifier, Chen et al. 2022; docs/methods/simkd.md.
"""
# B batch, C classes, D teacher's embedding, H × W pixels

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models.feature_extractor import FeatureExtractor
from antishortcut.models.layers import SingleSampleNorm2d
from antishortcut.models.wrapper import Network
from antishortcut.types import Features

WIDEST = 2**12  # channels
LARGEST = 2**26  # values of a projected map


@dataclass(frozen=True)
class ClassifierSettings:
    """How a student leads to its teacher's classifier; known when its training begins, written into run.json."""

    source: int  # channels of the student's last map
    width: int  # of the projector's inner maps
    target: int  # of the teacher's last map, which its classifier reads
    side: tuple[int, int]  # height and width of the projected map
    relu: bool  # whether the projector ends in one
    bias: bool  # whether the classifier has one

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises TypeError or ValueError if these cannot be the settings of a network."""
        settings = cls(**value)
        height, width = settings.side
        numbers = (settings.source, settings.width, settings.target, height, width)
        if not all(type(number) is int and 0 < number <= WIDEST for number in numbers):
            raise ValueError(f"not whole numbers from 1 to {WIDEST}: {numbers}")
        if settings.target * height * width > LARGEST:
            raise ValueError(f"a map of more than {LARGEST:,} values: {numbers}")
        return replace(settings, side=(height, width), relu=settings.relu is True, bias=settings.bias is True)


def reuse_classifier(student: Network, classes: int, settings: ClassifierSettings) -> Network:
    """The same network with its own classifier removed, a new projector, and a classifier still without weights."""
    _remove_classifier(student)
    student.body = ReusedClassifier(student.body, classes, settings)
    return student


class ReusedClassifier(nn.Module):
    """The body of such a student. Its embedding is the projected map's mean, its last map the projected one."""

    def __init__(self, trunk: nn.Module, classes: int, settings: ClassifierSettings) -> None:
        super().__init__()
        self.settings = settings
        self.trunk = trunk
        self.projector = projector(settings.source, settings.width, settings.target, relu=settings.relu)
        self.projector.to(memory_format=torch.channels_last)
        self.head = nn.Linear(settings.target, classes, bias=settings.bias).requires_grad_(False)

    def forward(self, x: Tensor) -> Features:
        features: Features = self.trunk(x)
        maps = last_map(features)  # (B, source, H, W)
        side = self.settings.side
        if maps.shape[2:] != side:
            maps = F.adaptive_avg_pool2d(maps, side)
        last: Tensor = self.projector(maps)  # (B, D, *side)
        embedding = last.mean(dim=(2, 3))  # (B, D)
        return Features(self.head(embedding), embedding, features.stages, last=last)


def reused(network: Network) -> ClassifierSettings | None:
    """How a network leads to its teacher's classifier; None if it has its own."""
    return network.body.settings if isinstance(network.body, ReusedClassifier) else None


def projector(source: int, width: int, target: int, *, relu: bool) -> nn.Sequential:
    """From `source` channels over `width` to `target`; relu: end in one."""
    layers: list[nn.Module] = []
    for c_in, c_out, kernel in ((source, width, 1), (width, width, 3), (width, target, 1)):
        conv = nn.Conv2d(c_in, c_out, kernel, padding=kernel // 2, bias=False)
        layers += [conv, SingleSampleNorm2d(c_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*(layers if relu else layers[:-1]))


def last_map(features: Features) -> Tensor:
    """What is averaged to the embedding: a map, or the embedding itself as one of a single pixel. (B, D, H, W)"""
    return features.embedding[:, :, None, None] if features.last is None else features.last


def _remove_classifier(student: Network) -> None:
    """Layers that compute logits nobody reads would get no gradient, and count as parameters."""
    body: Any = student.body
    if isinstance(body, ReusedClassifier):
        raise UserError("the student ends in a teacher's classifier already")
    hooked = isinstance(body, FeatureExtractor)
    module, paths = (body.module, body.heads) if hooked else (body, ("head",))
    if not paths:
        raise UserError(
            "the layer that computes the student's logits is not known, so the teacher's cannot take its place; "
            "let the network return logits alone"
        )
    for path in paths:
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, nn.Identity())
    if hooked:
        body.classes = None  # its output is as wide as its embedding now
