"""How sure the network is of its answers."""

from collections.abc import Iterator
from typing import Any

from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score


def confidence(context: EvalContext) -> Iterator[Score]:
    """Mean probability of the predicted class on the first test set."""
    yield Score("confidence", f"{context.sets.fingerprint}-v1", _confidence)  # -v2 when the code changes


def _confidence(evaluated: EvaluatedRun) -> dict[str, Any]:
    _, images = evaluated.context.first_test
    logits, _ = evaluated.outputs(images)  # (N, C), and embeddings (N, D), in the order of images.label
    probability = logits.softmax(dim=1).amax(dim=1)  # (N,)
    return {"count": len(images), "values": {"confidence": float(probability.mean())}}
