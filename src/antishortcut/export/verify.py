"""Compare an exported network with the original."""
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

TOLERANCE = 1e-4  # of the largest value: float32 sums in another order differ by some 1e-6
Exported = Callable[[Tensor], Sequence[Tensor]]  # a batch of raw images → outputs


class Outputs(nn.Module):
    """Raw images (B, 3, H, W) in [0, 1] → logits, or logits and embedding."""

    def __init__(self, network: Network, embedding: bool = False) -> None:
        super().__init__()
        self.network = network
        self.embedding = embedding

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = self.network(image)
        return (features.logits, features.embedding) if self.embedding else features.logits


@dataclass(frozen=True)
class Check:
    images: str  # their source
    batches: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]  # height and width, each once
    largest: float  # difference, relative to the largest value
    allowed: float


def check(opened: Opened, embedding: bool, exported: Exported, any_size: bool) -> Check:
    """Compare the exported network with the original, or raise. `any_size`: it takes images of any size."""
    original, largest = Outputs(opened.network, embedding), 0.0
    batches = opened.tried(any_size)
    for image in batches:
        count = f"{len(image)} of {opened.source}"
        with torch.no_grad():
            expected = as_tuple(original(image))
            if not all(bool(torch.isfinite(output).all()) for output in expected):
                raise UserError(f"{opened.folder.path} gives numbers that are not finite on {opened.source}")
            with reworded(f"what was exported does not run on {count}", "nothing was written"):
                actual = tuple(exported(image))
        result = max(difference(*pair) for pair in zip(expected, actual, strict=True))
        if not result <= TOLERANCE:
            raise UserError(
                f"what was exported differs from the original by {result:.2g} of its largest value on {count}, "
                f"where {TOLERANCE:g} is allowed; nothing was written"
            )
        largest = max(largest, result)
    sizes = dict.fromkeys((int(image.shape[2]), int(image.shape[3])) for image in batches)
    return Check(opened.source, tuple(map(len, batches)), tuple(sizes), largest, TOLERANCE)


def difference(expected: Tensor, actual: Tensor) -> float:
    """The largest difference relative to the largest value; infinite if shape or dtype differ or it is not a number."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype or bool(actual.isnan().any()):
        return float("inf")
    scale = expected.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    return float((actual - expected).abs().max() / scale)


def as_tuple(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (output,) if isinstance(output, Tensor) else output


@contextmanager
def reworded(what: str, then: str) -> Iterator[None]:
    """Turn whatever another library raises into one line with its reason."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{what} ({lines[0] if lines else type(error).__name__}); {then}") from error
