"""A stylizer of our own: the first stages of a trained VGG, and a decoder that learns to turn their maps into images.

content loss   ‖f(g(t)) − t‖², t = adain(f(c), f(s)), at the deepest stage
style loss     means and deviations of g(t)'s maps against those of s, at every stage
pixel loss     ‖g(f(c)) − c‖² on a quarter of each batch, which keeps its own statistics, for sharpness
"""
# B batch, k images of it that are only reconstructed, S side of the images

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.console import Watch
from antishortcut.data import Loader
from antishortcut.errors import UserError
from antishortcut.folder import Folder
from antishortcut.stylize.adain import adain, style_loss
from antishortcut.stylize.nets import DEEP, depth_for, encoder_from, own_decoder, widths_of
from antishortcut.stylize.weights import FACTS, VERSION, keep, name_of, packed
from antishortcut.types import AnySet, Batch, Sets

LOGGED = 20  # points of the curve that facts.json keeps


@dataclass(frozen=True)
class Training:
    """How the decoder is trained."""

    steps: int = 2000
    batch: int = 16
    depth: int | None = None  # stages of the encoder; None: by the size of the images
    rate: float = 1e-3  # of Adam; falls to zero along a cosine
    style: float = 10.0  # weight of the style loss beside the content loss
    pixel: float = 10.0  # weight of the pixel loss
    seed: int = 0

    def __post_init__(self) -> None:
        if self.depth is not None and not 1 <= self.depth <= DEEP:
            raise UserError(f"an encoder has 1 to {DEEP} stages, not {self.depth}")
        if self.steps < 1 or self.batch < 4 or self.rate <= 0:
            raise UserError("a decoder needs at least one step, batches of at least 4 images and a positive rate")


def settings_of(network: nn.Module, sets: Sets, training: Training) -> dict[str, Any]:
    """Everything that decides a stylizer; its hash names the folder."""
    depth = training.depth or depth_for(sets.image_size)
    digest = hashlib.sha256(packed(encoder_from(network, depth))).hexdigest()
    encoder = {"encoder": name_of(network), "encoder_sha256": digest, "depth": depth, "side": sets.image_size}
    return {"version": VERSION, "data": sets.fingerprint} | asdict(training) | encoder


def folder_of(runs: Path, settings: dict[str, Any]) -> Path:
    """<runs>/stylizers/<hash>."""
    return runs / "stylizers" / hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def train_stylizer(
    network: nn.Module,
    sets: Sets,
    runs: Path,
    training: Training | None = None,
    *,
    device: str = "cpu",
    quiet: bool = False,
) -> Path:
    """The folder of the stylizer of these settings, trained unless it is there. `network`: a trained vgg8 or vgg13."""
    training = training or Training()
    settings = settings_of(network, sets, training)
    folder = folder_of(runs, settings)
    with Folder(folder).locked():
        if (folder / FACTS).exists():
            return folder
        encoder = encoder_from(network, settings["depth"]).to(device)
        decoder, curve = train_decoder(encoder, sets.train, sets.image_size, training, quiet=quiet)
        keep(folder, encoder, decoder, {"set": sets.name.partition(":")[0], "settings": settings, "losses": curve})
    return folder


def train_decoder(
    encoder: nn.Module, images: AnySet, side: int, training: Training, *, quiet: bool = False
) -> tuple[nn.Sequential, list[dict[str, float]]]:
    """The decoder and the curve of its losses. The encoder stays as it is."""
    device = next(encoder.parameters()).device
    with torch.random.fork_rng(devices=[]):  # first weights depend on the seed alone
        torch.manual_seed(training.seed)
        decoder = own_decoder(widths_of(len(encoder.stages)))  # type: ignore[arg-type]
    decoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(decoder.parameters(), training.rate)
    curve: list[dict[str, float]] = []
    seen: list[Tensor] = []  # the three losses of every step since the last point of the curve
    with Watch("decoder", training.steps, quiet) as watch:
        watch.begin(0)
        for step, batch in enumerate(_batches(images, side, training)):
            for group in optimizer.param_groups:
                group["lr"] = training.rate * (1 + math.cos(math.pi * step / training.steps)) / 2
            losses = decoder_losses(encoder, decoder, batch.image.to(device))
            content, style, pixel = losses
            optimizer.zero_grad()
            torch.autograd.backward(content + training.style * style + training.pixel * pixel)
            optimizer.step()
            seen.append(torch.stack(losses).detach())
            if len(seen) == max(training.steps // LOGGED, 1) or step + 1 == training.steps:
                curve.append({"step": step + 1} | _means(seen))
                seen.clear()
            watch.update(step + 1, {key: value for key, value in curve[-1].items() if key != "step"} if curve else {})
    return decoder.eval(), curve


def decoder_losses(encoder: nn.Module, decoder: nn.Module, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Content, style and pixel loss of a batch (B, 3, S, S); every image takes the style of the one before it.

    The first quarter keeps its own statistics, adain(f(c), f(c)) = f(c), so that its pixels can be compared.
    """
    kept = max(len(image) // 4, 1)  # k
    with torch.no_grad():
        maps: Sequence[Tensor] = encoder(image)
        styles = [torch.cat([own[:kept], own.roll(1, 0)[kept:]]) for own in maps]  # each (B, C_i, …)
        code = torch.cat([maps[-1][:kept], adain(maps[-1], styles[-1])[kept:]])  # (B, C, …)
    made = decoder(code)[..., : image.shape[-2], : image.shape[-1]]  # (B, 3, S, S)
    again: Sequence[Tensor] = encoder(made)
    return F.mse_loss(again[-1], code), style_loss(again, styles), F.mse_loss(made[:kept], image[:kept])


def _batches(images: AnySet, side: int, training: Training) -> Iterator[Batch]:
    """As many batches as there are steps, epoch after epoch."""
    size = min(training.batch, len(images))
    loader = Loader(images, batch=size, seed=training.seed, image_size=side, augment="none")
    for step in range(-(-training.steps // len(loader))):
        left = training.steps - step * len(loader)
        for _, batch in zip(range(left), loader.epoch(step), strict=False):
            yield batch


def _means(seen: list[Tensor]) -> dict[str, float]:
    values: list[float] = torch.stack(seen).mean(dim=0).tolist()
    if not all(map(math.isfinite, values)):
        raise UserError("the decoder's training diverged; was the encoder trained? (--encoder, --epochs)")
    return dict(zip(("content", "style", "pixel"), values, strict=True))
