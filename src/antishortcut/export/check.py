"""Does what was written give what the original gives?"""
# B batch

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.export.opened import Opened
from antishortcut.models import Network

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
    sizes: tuple[tuple[int, int], ...]  # height and width, each once
    largest: float  # difference, as a share of the largest value
    allowed: float


def check(opened: Opened, embedding: bool, again: Again, free: bool) -> Check:
    """Compare what was written with the original, or refuse it. `free`: it takes images of any size."""
    original, largest = Alone(opened.network, embedding), 0.0
    tried = opened.tried(free)
    for image in tried:
        size = len(image)
        with torch.no_grad():
            wanted = as_tuple(original(image))
            if not all(bool(torch.isfinite(each).all()) for each in wanted):
                raise UserError(f"{opened.folder.path} gives numbers that are not finite on {opened.source}")
            with saying(f"what was exported does not run on {size} of {opened.source}", "nothing was written"):
                given = tuple(again(image))
        for ours, theirs in zip(wanted, given, strict=True):
            found = difference(ours, theirs)
            if not found <= ALLOWED:
                raise UserError(
                    f"what was exported differs from the original by {found:.2g} of its largest value on {size} of "
                    f"{opened.source}, where {ALLOWED:g} is allowed; nothing was written"
                )
            largest = max(largest, found)
    sizes = dict.fromkeys((int(image.shape[2]), int(image.shape[3])) for image in tried)
    return Check(opened.source, tuple(len(image) for image in tried), tuple(sizes), largest, ALLOWED)


def difference(wanted: Tensor, given: Tensor) -> float:
    """The largest difference, as a share of the largest value; infinite where shape or type differ."""
    if wanted.shape != given.shape or wanted.dtype != given.dtype:
        return float("inf")
    scale = wanted.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float((given - wanted).abs().max() / scale)


def as_tuple(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (output,) if isinstance(output, Tensor) else output


@contextmanager
def saying(what: str, then: str) -> Iterator[None]:
    """What others' code raises, which may be anything, is said in a line with its reason."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{what} ({lines[0] if lines else type(error).__name__}); {then}") from error
