"""Network: raw images in, Features out. It owns resizing and normalisation, so any teacher fits any student."""
# B batch, H × W pixels

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models.feature_extractor import silent
from antishortcut.models.preact import find_relus
from antishortcut.types import Features, Shape

Colour = Sequence[float]  # one number a channel

ROUNDING = 0.02  # of the largest logit, what bfloat16 may change
CIFAR_MEAN, CIFAR_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


class Network(nn.Module):
    """Raw images (B, 3, H, W), float in [0, 1] → Features of the body, which sees them resized and normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, mean: Colour = CIFAR_MEAN, std: Colour = CIFAR_STD, size: int | None = None):
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise UserError(f"mean and std want one number a channel and std > 0; got mean {mean}, std {std}")
        self.body = body
        self.size = size
        # not persistent: they belong to the settings, and checkpoints hold weights alone
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> Features:
        if not image.is_floating_point():
            raise UserError(f"images must be floats in [0, 1], got {image.dtype}: divide by 255 first")
        image = self.resized(image).contiguous(memory_format=torch.channels_last)  # faster on CPUs and tensor cores
        features: Features = self.body((image - self.mean) / self.std)
        return features

    def resized(self, image: Tensor) -> Tensor:
        """Images (B, 3, size, size) where the network takes only one size."""
        if self.size is None or image.shape[-2:] == (self.size, self.size):
            return image
        larger = min(image.shape[-2:]) > self.size
        return F.interpolate(image, (self.size, self.size), mode="bilinear", antialias=larger)

    @property
    def head(self) -> nn.Linear | None:
        """The classifier: logits = head(embedding), unless the embedding was named elsewhere."""
        head = getattr(self.body, "head", None)
        return head if isinstance(head, nn.Linear) else None


def feature_shapes(network: nn.Module, image_size: int) -> Shape:
    """Sizes of the network's features for square images, found by a silent pass."""
    weight = next(network.parameters(), torch.empty(0))
    image = torch.rand(2, 3, image_size, image_size, generator=torch.Generator().manual_seed(0)).to(weight.device)
    with silent(network):
        features, relus = find_relus(network, image)
        head = _is_linear(features, getattr(network, "head", None))
    stages = tuple((int(s.shape[1]), int(s.shape[2]), int(s.shape[3])) for s in features.stages)
    negative = (stage.is_meta or bool((stage < 0).any()) for stage in features.stages)
    preact = tuple(relu is not None or sign for relu, sign in zip(relus, negative, strict=True))
    read = features.embedding if features.last is None else features.last
    side = (1, 1) if features.last is None else (int(read.shape[2]), int(read.shape[3]))
    signed = not read.is_meta and bool((read < 0).any())
    maps = features.embedding.ndim == 4
    return Shape(int(features.embedding.shape[1]), stages, maps, side, signed, head, preact)


def _is_linear(features: Features, head: object) -> bool:
    """Whether the logits are what the head makes of the embedding, in any precision."""
    embedding, logits = features.embedding, features.logits
    if not isinstance(head, nn.Linear) or embedding.shape[1:] != (head.in_features,) or embedding.is_meta:
        return False
    return not bool((head(embedding) - logits).abs().max() > ROUNDING * logits.abs().max())  # NaN is another problem
