"""A student between the two teacher states: the numbers, and the histograms behind them."""
# N images, D features, K directions

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from antishortcut.analysis import Chunks, Moments, Spread, infonce, leanings, standing
from antishortcut.analysis.directions import ROBUST, K

NEGATIVES = 4_159  # final features each sample is told apart from, as in the paper's full-set bound


def values_of(rows: Mapping[str, Tensor]) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Numbers and histograms of "student" rows (N, D) beside "final" and "early" ones of the same images."""
    stream = Chunks(rows)
    moments = Moments.of(stream)
    bases = {"shortcut": moments.shortcut(K), "robust": moments.pca("final", ROBUST)}
    where, seen = standing(stream), leanings(stream, bases, ("student", "final", "early"))
    pool = torch.arange(min(len(rows["final"]), NEGATIVES + 1))
    told = infonce(stream, rows["final"][: len(pool)], pool)
    own = seen["student"]
    numbers = {
        "cos_final": where.final.mean,
        "cos_early": where.early.mean,
        "closer_final": where.closer_to_final,
        "signed_cosine": where.displacement.mean,
        "signed_above": where.above_threshold,
        "projection": own["shortcut"].projection.mean,
        "projection_random": own["shortcut"].random,
        "projection_final": seen["final"]["shortcut"].projection.mean,
        "projection_early": seen["early"]["shortcut"].projection.mean,
        "hinge_share": own["shortcut"].fires,
        "hinge_mean": own["shortcut"].hinge,
        "robust_projection": own["robust"].projection.mean,
        "robust_random": own["robust"].random,
        "infonce_binary": told.binary,
        "infonce_full": told.full,
        "infonce_ceiling": told.ceiling,
    }
    spreads = {"cos_final": where.final, "cos_early": where.early, "signed_cosine": where.displacement}
    histograms = {name: _histogram(spread) for name, spread in spreads.items()}
    return {name: value if value == value else None for name, value in numbers.items()}, histograms


def _histogram(spread: Spread) -> dict[str, Any]:
    bins = len(spread.histogram)
    edges = torch.linspace(spread.low, spread.high, bins + 1, dtype=torch.float64)
    return {"edges": [round(edge, 6) for edge in edges.tolist()], "counts": list(spread.histogram)}
