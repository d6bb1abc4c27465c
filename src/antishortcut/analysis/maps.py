"""Features on a plane, teacher beside student, by t-SNE (van der Maaten & Hinton 2008)."""
# N images, D features

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

SHOWN = 10  # classes, the first of the data
EACH = 50  # images of each
PERPLEXITY = 30.0


def places(label: Tensor, shown: int = SHOWN, each: int = EACH) -> Tensor:
    """Which images are drawn: the first `each` of the first `shown` classes, in order. (n,)"""
    chosen = [(label == number).nonzero().flatten()[:each] for number in range(shown)]
    return torch.cat(chosen).sort().values


def tsne(
    rows: Mapping[str, Tensor], label: Tensor, classes: Sequence[str], shown: int = SHOWN, each: int = EACH
) -> dict[str, Any] | None:
    """The same images in each network's own plane: {"label", "classes", role: [[x, y], …]}; None without scikit-learn.

    Planes are made one by one: distances mean something within a plane, not between two.
    """
    try:
        from sklearn.manifold import TSNE
    except ModuleNotFoundError:
        return None
    drawn = places(label, shown, each)
    if len(drawn) < 5:
        return None
    near = min(PERPLEXITY, (len(drawn) - 1) / 3)
    found: dict[str, Any] = {
        "method": "t-SNE",
        "label": label[drawn].tolist(),
        "classes": list(classes[:shown]),
    }
    for role, features in rows.items():
        made = TSNE(perplexity=near, init="pca", random_state=0, n_jobs=1).fit_transform(features[drawn].numpy())
        found[role] = [[round(float(x), 2), round(float(y), 2)] for x, y in made]
    return found
