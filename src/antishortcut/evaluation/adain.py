"""Style transfer by adaptive instance normalisation (Huang & Belongie 2017): AdaIN, encoders, decoders, weights."""
# B batch, C channels, H × W of a map; content and style maps may differ in size; S side of the images

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.fileio import sha256
from antishortcut.models import Network, build
from antishortcut.models.vgg import CONVS, VGG, WIDTHS
from antishortcut.models.weights import complain, load_weights, read_weights, strip
from antishortcut.run_dir import read_json

EPS = 1e-5  # added to the variance, as in the reference
ENCODER, DECODER, FACTS = "encoder.safetensors", "decoder.safetensors", "facts.json"
VERSION = 1  # of the folder and of the training; raise it when either changes
STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # VGG-19: width and convolutions of every stage
USED = 31  # of the 53 layers in the reference's file: up to relu4_1
UP = 0  # in a decoder's plan: nearest upsampling to twice the side; other numbers are widths
REFERENCE_PLAN = (256, UP, 256, 256, 256, 128, UP, 128, 64, UP, 64, 3)


def statistics(maps: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every channel of every image. (B, C, H, W) → two (B, C, 1, 1).

    The variance is unbiased, as in the reference; this matters for small maps.
    """
    mean = maps.mean(dim=(2, 3), keepdim=True)  # (B, C, 1, 1)
    return mean, (maps.var(dim=(2, 3), keepdim=True) + eps).sqrt()


def adain(content: Tensor, style: Tensor, eps: float = EPS) -> Tensor:
    """σ(style) · (content − μ(content)) / σ(content) + μ(style), channel by channel. (B, C, H, W) like content."""
    content_mean, content_std = statistics(content, eps)
    style_mean, style_std = statistics(style, eps)
    return style_std * ((content - content_mean) / content_std) + style_mean  # (B, C, H, W)


def blend(content: Tensor, style: Tensor, alpha: float, eps: float = EPS) -> Tensor:
    """(1 − α) · content + α · adain(content, style), the decoder's input. (B, C, H, W)."""
    return (1 - alpha) * content + alpha * adain(content, style, eps)


def reference_vgg() -> nn.Sequential:
    """VGG-19 as in `vgg_normalised.pth` of naoto0804/pytorch-AdaIN: first a 1 × 1 convolution of the colours."""
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
    plan = [step for width in reversed(widths[:-1]) for step in (width, UP)]
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
    """Images (B, 3, S, S) in [0, 1] → the map of relu4_1."""

    def __init__(self, vgg: nn.Sequential) -> None:
        super().__init__()
        self.layers = vgg[:USED]

    def forward(self, image: Tensor) -> tuple[Tensor]:
        return (self.layers(image),)  # (B, 512, S/8, S/8)


class OwnEncoder(nn.Module):
    """The first stages of our VGG: images (B, 3, S, S) in [0, 1] → the map after the ReLU of each stage."""

    mean: Tensor
    std: Tensor

    def __init__(self, stages: Sequence[nn.Module], mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.register_buffer("mean", mean)  # saved with the weights
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

    Their convolutions pad by reflection, not with zeros, which would give every image a frame.
    """
    if not isinstance(network, Network) or not isinstance(network.body, VGG):
        raise UserError("the encoder must be a vgg8 or vgg13")
    encoder = OwnEncoder(deepcopy(list(network.body.stages)[:depth]), network.mean, network.std)
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            module.padding_mode = "reflect"
    return encoder.requires_grad_(False).eval()


@dataclass(frozen=True)
class Stylizer:
    """An encoder and its decoder, and facts about their weights."""

    encoder: nn.Module  # images → maps, shallow to deep; the last one is the code
    decoder: nn.Module  # code → images
    facts: Mapping[str, Any] = field(default_factory=dict)
    magnify: int = 1  # images are enlarged before and averaged down after, for networks trained on large ones

    @torch.no_grad()
    def __call__(self, content: Tensor, style: Tensor, alpha: float = 1.0) -> Tensor:
        """Images (B, 3, S, S) in [0, 1], the content's shapes in the style's textures. On the decoder's device."""
        side = content.shape[-1]
        content, style = content.to(self.device), style.to(self.device)
        if self.magnify > 1:
            content, style = (F.interpolate(x, scale_factor=self.magnify, mode="bilinear") for x in (content, style))
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


def reference(vgg: Path, decoder: Path, magnify: int = 1) -> Stylizer:
    """The stylizer of naoto0804/pytorch-AdaIN from its `vgg_normalised.pth` and `decoder.pth` (or safetensors)."""
    if magnify < 1:
        raise UserError(f"--magnify must be at least 1, not {magnify}")
    states = [strip(read_weights(path)) for path in (vgg, decoder)]  # first: building the networks takes a second
    nets = (reference_vgg(), reference_decoder())
    for path, net, state in zip((vgg, decoder), nets, states, strict=True):
        complain(path, net.state_dict(), state)
        net.load_state_dict(state)
    digests = {"encoder": sha256(vgg), "decoder": sha256(decoder)}
    facts = {"weights": "reference", "digests": digests, "magnify": magnify}
    return Stylizer(_frozen(ReferenceEncoder(nets[0])), _frozen(nets[1]), facts, magnify)


def load(folder: Path) -> Stylizer:
    """A stylizer trained by scripts/train_stylizer.py; a damaged file is an error."""
    path = folder / FACTS
    if not path.exists():
        raise UserError(f"{folder} is no stylizer: it has no {FACTS}; scripts/train_stylizer.py makes one")
    facts = read_json(path)
    if (facts.get("kind"), facts.get("version")) != ("stylizer", VERSION):
        raise UserError(f"{path} is not of a stylizer of this version; train it again")
    used, digests = {key: facts["settings"][key] for key in ("encoder", "depth", "steps")}, facts["digests"]
    if used["encoder"] not in CONVS:  # a name may stand for code to import
        raise UserError(f"{path}: the encoder must be a vgg8 or vgg13, not {used['encoder']}")
    for name, file in (("encoder", ENCODER), ("decoder", DECODER)):
        if not (folder / file).is_file() or sha256(folder / file) != digests[name]:
            raise UserError(f"{folder / file} is missing or damaged; remove {folder} and train it again")
    encoder = encoder_from(build(used["encoder"], 1), used["depth"])
    decoder = own_decoder(WIDTHS[: used["depth"]])
    load_weights(encoder, folder / ENCODER)
    load_weights(decoder, folder / DECODER)
    return Stylizer(_frozen(encoder), _frozen(decoder), {"weights": "own", "digests": digests} | used)


def _frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False).eval().to(memory_format=torch.channels_last)
