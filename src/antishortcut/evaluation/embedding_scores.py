"""How much of the classes a frozen embedding shows: k nearest neighbours and a linear probe on labelled images."""
# N images, M training images, C classes, D embedding, K neighbours

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antishortcut.data import open_sets
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import take
from antishortcut.errors import UserError
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score
from antishortcut.models import Network
from antishortcut.types import UNLABELLED, DataSplits, lacks_labels

VERSION = 1
NEIGHBOURS, TEMPERATURE = 20, 0.07  # Wu et al. 2018, Caron et al. 2021
ROWS = 1024  # images compared with all training images at once
PENALTY, ITERATIONS = 1e-3, 200  # of the probe: half the squared length of its weights, steps of L-BFGS


def embedding(context: EvalContext) -> Iterator[Score]:
    """Of the folder of --at embedding=FOLDER, or else of those images of the data itself that have labels."""
    folder, sets = context.folder("embedding"), context.sets.classified or context.sets
    if folder is not None:
        sets = open_sets(f"folder:{folder}", context.root, image_size=sets.image_size)
    elif lacks_labels(next(iter(sets.tests.values()))):
        raise UserError(f"embedding needs labelled images, and {sets.name} has none; add --at embedding=FOLDER")
    wants_labels("embedding", sets.train, of="image")
    if len(sets.classes) < 2:
        raise UserError(f"embedding needs at least two classes; {sets.name} has {len(sets.classes)}")
    mark = f"{context.fingerprint(sets.fingerprint)}-v{VERSION}"
    yield Score("embedding", mark, partial(_embedding, sets), hashed=sets.hashed)


def _embedding(sets: DataSplits, evaluated: EvaluatedRun) -> Mapping[str, Any]:
    known = (sets.train.label != UNLABELLED).nonzero().flatten()
    sets = replace(sets, train=take(sets.train, known))
    values = _values(sets, evaluated, evaluated.network)
    if evaluated.run.teacher is not None and evaluated.run.roles:
        teacher = evaluated.teachers("embedding").network("final")
        values |= {f"teacher_{name}": value for name, value in _values(sets, evaluated, teacher).items()}
    name, images = next(iter(sets.tests.items()))
    facts = {"neighbours": NEIGHBOURS, "temperature": TEMPERATURE, "penalty": PENALTY, "trained_on": len(sets.train)}
    return {"count": len(images), "values": values, "of": name, "facts": facts}


def _values(sets: DataSplits, evaluated: EvaluatedRun, network: Network) -> dict[str, float]:
    train, test = sets.train, next(iter(sets.tests.values()))
    rows = [
        torch.cat([outputs[""].embedding.float() for outputs, _ in evaluated.predict({"": network}, images)])
        for images in (train, test)
    ]
    if not all(bool(each.isfinite().all()) for each in rows):
        raise UserError("embeddings are not finite: did the network diverge, or is its file damaged?")
    classes = len(sets.classes)
    guesses = {
        "knn": nearest_classes(rows[0], train.label, rows[1], classes),
        "linear": linear_probe(rows[0], train.label, rows[1], classes),
    }
    return {name: float((guess == test.label).double().mean()) for name, guess in guesses.items()}


def nearest_classes(train: Tensor, label: Tensor, rows: Tensor, classes: int, k: int = NEIGHBOURS) -> Tensor:
    """The class with most votes among the k nearest of `train` (M, D), each vote exp(cosine / τ). (N,)"""
    bank, k = F.normalize(train).T, min(k, len(train))
    guesses = []
    for part in torch.split(F.normalize(rows), ROWS):
        cosine, index = (part @ bank).topk(k, dim=1)  # (n, K)
        votes = torch.zeros(len(part), classes).scatter_add_(1, label[index], (cosine / TEMPERATURE).exp())
        guesses.append(votes.argmax(dim=1))
    return torch.cat(guesses)


def linear_probe(train: Tensor, label: Tensor, rows: Tensor, classes: int) -> Tensor:
    """Classes of rows (N, D) by multinomial logistic regression on `train` (M, D), standardised by its moments. (N,)

    The loss is convex and starts at zero, so the same embeddings give the same probe.
    """
    mean, std = train.double().mean(dim=0), train.double().std(dim=0, correction=0)
    std = torch.where(std > 1e-6 * std.max(), std, torch.ones_like(std))  # a constant feature stays as it is
    x, y = ((each.double() - mean) / std for each in (train, rows))
    weight, bias = (
        torch.zeros(*size, dtype=torch.float64, requires_grad=True) for size in ((classes, x.shape[1]), (classes,))
    )
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(x, weight, bias), label) + PENALTY / 2 * weight.square().sum()
        torch.autograd.backward(value)
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return F.linear(y, weight.detach(), bias.detach()).argmax(dim=1)
