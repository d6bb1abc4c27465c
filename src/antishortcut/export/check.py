"""Does what was written give what the original gives?"""
# B batch

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.export.opened import LARGEST, Opened
from antishortcut.models import Network

BATCHES = (1, LARGEST)  # that were not those it was traced with
ALLOWED = 1e-4  # of the largest value: float32 sums in another order differ by some 1e-6
Again = Callable[[Tensor], Sequence[Tensor]]  # what was written: a batch of raw images → its outputs


class Alone(nn.Module):
    """Raw images (B, 3, H, W) in [0, 1] → logits alone, or logits and embedding."""

    def __init__(self, network: Network, embedding: bool = False) -> None:
        super().__init__()
        self.network = network
        self.embedding = embedding

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        seen = self.network(image)
        return (seen.logits, seen.embedding) if self.embedding else seen.logits


@dataclass(frozen=True)
class Check:
    images: str  # where they are from
    batches: tuple[int, ...]
    largest: float  # difference, as a share of the largest value
    allowed: float


def check(opened: Opened, embedding: bool, again: Again) -> Check:
    """Compare what was written with the original, or refuse it."""
    original, largest = Alone(opened.network, embedding), 0.0
    for size in BATCHES:
        image = opened.batch(size)
        with torch.no_grad():
            wanted = as_tuple(original(image))
            given = again(image)
        for ours, theirs in zip(wanted, given, strict=True):
            if not bool(torch.isfinite(ours).all()):
                raise UserError(f"{opened.folder.path} gives numbers that are not finite on {opened.source}")
            found = difference(ours, theirs)
            if not found <= ALLOWED:
                raise UserError(
                    f"what was exported differs from the original by {found:.2g} of its largest value on {size} of "
                    f"{opened.source}, where {ALLOWED:g} is allowed; nothing was written"
                )
            largest = max(largest, found)
    return Check(opened.source, BATCHES, largest, ALLOWED)


def difference(wanted: Tensor, given: Tensor) -> float:
    """The largest difference, as a share of the largest value; infinite where the shapes differ."""
    if wanted.shape != given.shape:
        return float("inf")
    scale = wanted.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float((given - wanted).abs().max() / scale)


def as_tuple(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (output,) if isinstance(output, Tensor) else output
