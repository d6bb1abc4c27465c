"""How much the student's features tell of the final teacher's: InfoNCE lower bounds in nats (Prop. 1, S-Sec. A.3.6)."""
# N negatives of a row, M rows of the pool, n rows at a time, D features

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from antishortcut.analysis.found import Found
from antishortcut.analysis.stream import BLOCK, Stream, blocks
from antishortcut.subspace import unit


@dataclass(frozen=True)
class Bounds(Found):
    """Lower bounds on information in nats; none can exceed its ceiling, log 2 or log(N + 1)."""

    count: int
    negatives: int  # N
    binary: float  # log 2 − E[L], the positive against the one temporal negative
    full: float  # log(N + 1) − E[L̃_TC], N final negatives (Eq. 11)
    temporal: float  # log(N + 1) − E[L_TC], the temporal negative beside them (Eq. 5–6): never above `full`
    ceiling: float  # log(N + 1)


def infonce(
    chunks: Stream, pool: Tensor | None = None, pool_index: Tensor | None = None, temperature: float = 0.07
) -> Bounds:
    """One pass over "student", "final" and "early" rows; all are normalised, and a zero student row tells nothing.

    pool (M, D): final features as negatives, e.g. of `pick`; without it only the binary bound is defined.
    pool_index (M,): the number in the stream of each of them, −1 for others. Every row then has N = M − 1 negatives:
    its own is left out, or the last one where none is its own. Without it all M are negatives of all rows.
    """
    _check(pool, pool_index, temperature)
    z_pool = torch.empty(0, 0) if pool is None else unit(pool.detach().cpu().double())  # (M, D)
    n_negatives = max(len(z_pool) - (pool_index is not None), 0)
    size = max(1, min(BLOCK, 2**21 // max(len(z_pool), 1)))
    count, binary, full, temporal = 0, 0.0, 0.0, 0.0
    for block in blocks(chunks, "student", "final", "early", size=size):
        z_s, z_f, z_e = (unit(rows) for rows in block)
        positive, early = (z_s * z_f).sum(dim=1) / temperature, (z_s * z_e).sum(dim=1) / temperature  # (n,)
        binary += float(F.softplus(early - positive).sum())
        if n_negatives > 0:
            logits = _negatives(z_s @ z_pool.T / temperature, pool_index, count)  # (n, M)
            among = torch.logaddexp(positive, torch.logsumexp(logits, dim=1))  # log of the denominator, Eq. 6
            full += float((among - positive).sum())
            temporal += float((torch.logaddexp(among, early) - positive).sum())
        count += len(z_s)
    ceiling = math.log(n_negatives + 1) if n_negatives > 0 else math.nan
    lost = (binary / count, full / count, temporal / count)  # E[L]
    return Bounds(count, n_negatives, math.log(2) - lost[0], ceiling - lost[1], ceiling - lost[2], ceiling)


def _check(pool: Tensor | None, pool_index: Tensor | None, temperature: float) -> None:
    if temperature <= 0:
        raise ValueError("temperature must be positive")
    if pool_index is None:
        return
    if pool is None or len(pool_index) != len(pool):
        raise ValueError("pool_index must number the rows of the pool")
    numbers = pool_index[pool_index >= 0].tolist()
    if len(set(numbers)) < len(numbers):
        raise ValueError("the pool holds a sample twice")


def _negatives(logits: Tensor, pool_index: Tensor | None, start: int) -> Tensor:
    """Logits (n, M) of rows `start`, `start` + 1, … with one entry of each row out: its own, else the last."""
    if pool_index is None:
        return logits
    number = torch.arange(start, start + len(logits))
    is_own = number[:, None] == pool_index.cpu()  # (n, M)
    out = torch.where(is_own.any(dim=1), is_own.int().argmax(dim=1), logits.shape[1] - 1)  # (n,)
    return logits.scatter(1, out[:, None], -math.inf)
