"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019): every image is mixed with another one, and so are the labels.

The mix is a function of (seed, step). Row i is mixed with row B − 1 − i of the whole batch over all processes, before
it is split into micro-batches, so neither their number nor that of processes matters. Teachers see the mixed images.
"""
# B batch, b rows of it here, H × W pixels

import math
from dataclasses import dataclass, replace

import torch
from scipy.special import betaincinv

from antishortcut.config.schema import OptimSettings
from antishortcut.data import uniform
from antishortcut.distributed import all_gather_int, gather, own_slice
from antishortcut.errors import UserError
from antishortcut.types import Batch, Method, NoMixup, Task

STREAM = 8  # our stream of random numbers in `data.rng`; part of every recorded result
SWITCH, SHARE, ROW, COLUMN = range(4)


@dataclass(frozen=True)
class Mix:
    """How the images of one step are mixed."""

    share: float  # of the image's own pixels, and of its own label
    box: tuple[int, int, int, int] | None = None  # CutMix: top, bottom, left and right of what is another image's


def draw_mix(optim: OptimSettings, seed: int, step: int, size: tuple[int, int]) -> Mix:
    """The mixing of a step: its kind, when both are on, by the toss of a coin; its share by a Beta(α, α)."""
    switch, share, row, column = (float(uniform(seed, step, draw, STREAM)) for draw in (SWITCH, SHARE, ROW, COLUMN))
    cut = optim.cutmix > 0 and (optim.mixup == 0 or switch < 0.5)
    alpha = optim.cutmix if cut else optim.mixup
    own = float(betaincinv(alpha, alpha, share))
    if not cut:
        return Mix(own)
    side = math.sqrt(1 - own)  # of the box, as a share of the image's
    top, bottom = _span(row, side, size[0])
    left, right = _span(column, side, size[1])
    return Mix(1 - (bottom - top) * (right - left) / (size[0] * size[1]), (top, bottom, left, right))  # what was cut


def _span(centre: float, share: float, length: int) -> tuple[int, int]:
    """Where a box of this share of a side begins and ends; what hangs over the edge is cut off."""
    half, middle = int(length * share) // 2, int(centre * length)
    return max(middle - half, 0), min(middle + half, length)


@torch.no_grad()
def mix_batch(batch: Batch, optim: OptimSettings, seed: int, step: int) -> Batch:
    """A step's rows (b, …), each mixed with its partner, which may lie in another process."""
    if not optim.mixes:
        return batch
    height, width = batch.image.shape[2:]
    mix = draw_mix(optim, seed, step, (height, width))
    # row B − 1 − i of all processes' rows for every row i of this one's
    partner, other = (gather(rows).flip(0)[own_slice(len(rows))] for rows in (batch.image, batch.label))
    if mix.box is None:
        image = mix.share * batch.image + (1 - mix.share) * partner  # (b, 3, H, W)
    else:
        top, bottom, left, right = mix.box
        image = batch.image.clone()
        image[:, :, top:bottom, left:right] = partner[:, :, top:bottom, left:right]
    share = torch.full((len(batch.label),), mix.share, device=image.device)  # (b,)
    return replace(batch, image=image, mixed_label=other, mix_ratio=share)


def check_mixup(optim: OptimSettings, task: Task, method: Method, name: str) -> None:
    """Refuse to mix where it has no meaning."""
    if not optim.mixes:
        return
    which = " and ".join(key for key in ("mixup", "cutmix") if getattr(optim, key) > 0)
    if task.dense:
        raise UserError(f"optim.{which}: images with a class for every pixel are not mixed; set it to 0")
    if isinstance(method, NoMixup):
        raise UserError(f"optim.{which}: {name} cannot learn from mixed images, since {method.no_mixup}; set it to 0")


def split_microbatches(batch: Batch, count: int) -> list[Batch]:
    """Split a batch into at most `count` micro-batches, equally many in every process."""
    fewest = min(all_gather_int(len(batch.label)))
    here = batch.index if batch.index_cpu is None else batch.index_cpu
    tensors = {"index_cpu": here} | {name: value for name, value in vars(batch).items() if value is not None}
    pieces = {name: tensor.tensor_split(min(count, fewest)) for name, tensor in tensors.items()}
    return [Batch(**dict(zip(pieces, micro, strict=True))) for micro in zip(*pieces.values(), strict=True)]
