"""Encoders and decoders: the reference's, with its keys and shapes, and our own for small images."""
# B batch, S side of the images, C_i channels of stage i

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.evaluation.stylize.adain import blend
from antishortcut.models import Network
from antishortcut.models.vgg import VGG

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # VGG-19: width and convolutions of every stage
USED = 31  # of the 53 layers in the reference's file: up to relu4_1
TAPS = (3, 10, 17, 30)  # relu1_1, relu2_1, relu3_1, relu4_1
UP = 0  # in a decoder's plan: nearest upsampling to twice the side; other numbers are widths
REFERENCE_PLAN = (256, UP, 256, 256, 256, 128, UP, 128, 64, UP, 64, 3)


def reference_vgg() -> nn.Sequential:
    """VGG-19 as in `vgg_normalised.pth` of naoto0804/pytorch-AdaIN: a 1 × 1 convolution for the colours leads."""
    layers: list[nn.Module] = [nn.Conv2d(3, 3, 1)]
    c_in = 3
    for number, (width, convs) in enumerate(STAGES):
        if number:
            layers.append(nn.MaxPool2d(2, 2, ceil_mode=True))
        for _ in range(convs):
            layers += [*_conv(c_in, width), nn.ReLU()]
            c_in = width
    return nn.Sequential(*layers)  # 53 layers


def reference_decoder() -> nn.Sequential:
    """The mirror of relu4_1, as in `decoder.pth`."""
    return _decoder(512, REFERENCE_PLAN)


def own_decoder(widths: Sequence[int]) -> nn.Sequential:
    """The mirror of an encoder whose stages have these widths: one convolution a stage, one more at full size."""
    plan = [part for width in reversed(widths[:-1]) for part in (width, UP)]
    return _decoder(widths[-1], (*plan, widths[0], 3))


def _decoder(c_in: int, plan: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in plan:
        if width == UP:
            layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
        else:
            layers += [*_conv(c_in, width), nn.ReLU()]
            c_in = width
    return nn.Sequential(*layers[:-1])  # colours are not rectified


def _conv(c_in: int, c_out: int) -> tuple[nn.Module, nn.Module]:
    return nn.ReflectionPad2d(1), nn.Conv2d(c_in, c_out, 3)


class ReferenceEncoder(nn.Module):
    """Images (B, 3, S, S) in [0, 1] → maps of relu1_1 … relu4_1."""

    def __init__(self, vgg: nn.Sequential) -> None:
        super().__init__()
        self.layers = vgg[:USED]

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        maps: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            image = layer(image)
            if number in TAPS:
                maps.append(image)
        return tuple(maps)  # (B, 64, S, S), (B, 128, S/2, S/2), (B, 256, S/4, S/4), (B, 512, S/8, S/8)


class OwnEncoder(nn.Module):
    """The first stages of a VGG of ours: images (B, 3, S, S) in [0, 1] → the map after the ReLU of each stage."""

    mean: Tensor
    std: Tensor

    def __init__(self, stages: Sequence[nn.Module], mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.register_buffer("mean", mean)  # kept with the weights: an encoder in a file of its own needs them
        self.register_buffer("std", std)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        x = (image - self.mean) / self.std
        maps: list[Tensor] = []
        for number, stage in enumerate(self.stages):
            x = stage(F.max_pool2d(x, 2, ceil_mode=True) if number else x)  # (B, C_i, S / 2^i, S / 2^i)
            maps.append(x)
        return tuple(maps)


def encoder_from(network: nn.Module, depth: int) -> OwnEncoder:
    """The first `depth` stages of a trained vgg8 or vgg13, copied and frozen, batch norm in evaluation mode.

    Their convolutions pad by reflection, not with zeros as the classifier's: else every image gets a frame.
    """
    if not isinstance(network, Network) or not isinstance(network.body, VGG):
        raise UserError("the encoder must be a VGG of ours: vgg8 or vgg13")
    encoder = OwnEncoder(deepcopy(list(network.body.stages)[:depth]), network.mean, network.std)
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            module.padding_mode = "reflect"
    return encoder.requires_grad_(False).eval()


@dataclass(frozen=True)
class Stylizer:
    """An encoder and its decoder, and what is known of their weights."""

    encoder: nn.Module  # images → maps, shallow to deep; the last one is the code
    decoder: nn.Module  # code → images
    facts: Mapping[str, Any] = field(default_factory=dict)
    magnify: int = 1  # images are enlarged before and averaged down after, for nets that were made for large ones

    @torch.no_grad()
    def __call__(self, content: Tensor, style: Tensor, alpha: float = 1.0) -> Tensor:
        """Images (B, 3, S, S) in [0, 1], the content's shapes in the style's textures. On the decoder's device."""
        side = content.shape[-1]
        content, style = (_larger(images.to(self.device), self.magnify) for images in (content, style))
        code = blend(self.encoder(content)[-1], self.encoder(style)[-1], alpha)  # (B, C, …)
        wide = side * self.magnify
        image: Tensor = self.decoder(code)[..., :wide, :wide]  # poolings round up
        return F.avg_pool2d(image, self.magnify).clamp(0, 1).cpu()  # (B, 3, S, S)

    @property
    def device(self) -> torch.device:
        return next(self.decoder.parameters()).device

    def to(self, device: str | torch.device) -> Stylizer:
        self.encoder.to(device)
        self.decoder.to(device)
        return self


def _larger(images: Tensor, times: int) -> Tensor:
    return images if times == 1 else F.interpolate(images, scale_factor=times, mode="bilinear")
