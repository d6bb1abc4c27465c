"""Weights from a file into a network, with one clear line when they do not fit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models.checkpoints import read
from antishortcut.models.deeplab import DeepLab, backbone_state
from antishortcut.models.feature_extractor import FeatureExtractor

__all__ = ["complain", "load_weights", "put", "read", "strip"]

WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every key
COUNTER = "n_averaged"  # beside the keys of torch.optim.swa_utils.AveragedModel, which begin with module.
# parts of a DeepLab that may start fresh; the last layers, as wide as there are classes, apart from what is before them
HEADS = ("classifier.4.", "classifier.", "aux_classifier.4.", "aux_classifier.")

State = Mapping[str, Tensor]


def load_weights(network: nn.Module, path: str | Path, *, start: bool = False) -> None:
    """Load a file of weights; the keys may be the network's or those of the bare body inside it.

    A prefix such as `model.` that only the file or only the network has is added or removed.
    start: the weights are to start from, so that a classifier for other classes may keep its own.
    A DeepLab also takes a classifier's file for its backbone, and a DeepLab's whose heads are of other classes or not
    there; what does not fit of its heads then stays as it is.
    Weights with NaN are refused, as any that do not fit, before the network is changed.
    """
    path = Path(path)
    state = strip(read(path))
    body = getattr(network, "body", network)
    # a Network holds a body, a FeatureExtractor holds somebody's module: whose keys are these?
    targets: list[nn.Module] = [network, body, getattr(body, "module", body)]
    fresh: list[str] = []  # parts of the network that keep their own weights
    if isinstance(body, DeepLab):
        target = max(targets, key=lambda each: _common(each, state))
        backbone = backbone_state(state)
        if _common(body.backbone, backbone) > _common(target, state):
            target, state = body.backbone, backbone
        own = target.state_dict()
        fresh = [head for head in HEADS if _shapes(own, head) != _shapes(state, head)]
        own = {key: value for key, value in own.items() if _head(key) not in fresh}
        state = {key: value for key, value in state.items() if _head(key) not in fresh}
        fresh = [head for head in fresh if _shapes(target.state_dict(), head)]
        advice = "; expected a DeepLab like this, or a timm or torchvision classifier with its backbone"
    else:
        target, state = _aligned(targets, state, path)
        own = target.state_dict()
        theirs, left = _without_classifier(own, state, *_classifier(network, target))
        if start and left:
            fresh = list(dict.fromkeys(key.rpartition(".")[0] for key in left))
            own, state, left = {key: value for key, value in own.items() if key not in left}, theirs, []
        advice = "; name the network they were saved from"
        if other := [len(state[key]) for key in left if key in state]:
            advice = f"; they are for {other[0]} classes: fine to start from (weights = …), not as a finished network"
    complain(path, own, state, advice)
    for key, value in state.items():  # an infinity may be meant, as in masks
        if value.is_floating_point() and bool(value.isnan().any()):
            raise UserError(f"{path} holds NaN in {_bare(key)!r}: that training diverged; use an earlier checkpoint")
    if fresh:
        names = ", ".join(dict.fromkeys(_bare(part).rstrip(".") for part in fresh))
        warnings.warn(f"{path} has no weights that fit these layers, so they start fresh: {names}", stacklevel=2)
    target.load_state_dict(state, strict=False)  # complain() was strict, old files may lack BN's counters


def put(network: nn.Module, state: State, where: str | Path) -> None:
    """Weights that were read from `where` into a network of exactly their kind."""
    complain(Path(where), network.state_dict(), state)
    network.load_state_dict(state, strict=False)  # complain() was strict


def strip(state: dict[str, Any]) -> dict[str, Any]:
    """Without what wrappers put before keys; torch.compile may have wrapped an inner module only."""
    if all(key.startswith("module.") != (key == COUNTER) for key in state):
        state = {key: value for key, value in state.items() if key != COUNTER}
    state = {key.replace("._orig_mod.", "."): value for key, value in state.items()}
    for _ in range(16):  # wrappers around each other
        prefix = next((word for word in WRAPPERS if state and all(key.startswith(word) for key in state)), None)
        if prefix is None:
            break
        state = {key.removeprefix(prefix).replace("._orig_mod.", "."): value for key, value in state.items()}
    return state


def complain(path: Path, own: State, state: State, advice: str = "") -> None:
    """Raise when keys, shapes or kinds of numbers differ, naming a few of each."""
    both = [key for key in own if key in state]
    problems = {
        "missing": [key for key in own if key not in state and not _counts(key)],
        "unexpected": [key for key in state if key not in own],
        "of another shape": [
            f"{key} {tuple(state[key].shape)} for {tuple(own[key].shape)}"
            for key in both
            if state[key].shape != own[key].shape
        ],
        "of another type": [
            f"{key} {state[key].dtype} for {own[key].dtype}".replace("torch.", "")
            for key in both
            if own[key].is_floating_point() > state[key].is_floating_point()
            or state[key].is_complex() > own[key].is_complex()
        ],
    }
    lines = [
        f"{len(keys)} {what} ({', '.join(keys[:3])}{', …' if len(keys) > 3 else ''})"
        for what, keys in problems.items()
        if keys
    ]
    if lines:
        raise UserError(f"the weights in {path} are of another network: {'; '.join(lines)}{advice}")


def _aligned(targets: list[nn.Module], state: dict[str, Tensor], path: Path) -> tuple[nn.Module, dict[str, Tensor]]:
    """Whose keys these are, and the file's under the names they have there."""
    owns = [target.state_dict() for target in targets]
    best, at = max((_matching(own, state), i) for i, own in enumerate(owns))  # of equals the innermost
    if all(key in state or _counts(key) for key in owns[at]):
        return targets[at], state
    fitting = [("", targets[at], state)]  # all that match best
    for target, own in zip(targets, owns, strict=True):
        for prefix, renamed in _renamings(own, state):
            score = _matching(own, renamed)
            if score[1] > len(own) / 2 and score >= best:
                fitting = [*(fitting if score == best else []), (prefix, target, renamed)]
                best = score
    first, target, renamed = fitting[0]
    rivals = [other for other, _, _ in fitting if not (other.startswith(first) or first.startswith(other))]
    if rivals:
        raise UserError(f"{path} holds two networks that fit, under {first!r} and {rivals[0]!r}; save one of them")
    return target, renamed


def _renamings(own: State, state: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The file's keys without a prefix of theirs, which is named, or with one of ours."""
    for prefix in _prefixes(state):
        yield prefix, {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    for prefix in _prefixes(own):
        yield "", {prefix + key: value for key, value in state.items()}


def _prefixes(state: State) -> list[str]:
    """What keys begin with, up to three words."""
    words = [key.split(".")[:-1] for key in state]
    return list(dict.fromkeys(".".join(w[:n]) + "." for w in words for n in range(1, min(len(w), 3) + 1)))


def _matching(own: State, state: State) -> tuple[int, int]:
    """How many keys are the same, in name and shape, and in name."""
    both = own.keys() & state.keys()
    return sum(own[key].shape == state[key].shape for key in both), len(both)


def _classifier(network: nn.Module, target: nn.Module) -> tuple[tuple[str, ...], int]:
    """Prefixes of the classifier's keys in the target, and how many classes it has."""
    body = getattr(network, "body", network)
    heads = [f"module.{path}" for path in body.heads] if isinstance(body, FeatureExtractor) else ["head"]
    modules = dict(target.named_modules())
    names = [*(f"body.{head}" for head in heads), *heads, *(head.removeprefix("module.") for head in heads)]
    layers = [name for name in names if name in modules]
    weight = next((getattr(modules[layer], "weight", None) for layer in layers), None)
    return tuple(f"{layer}." for layer in layers), len(weight) if isinstance(weight, Tensor) else 0


def _without_classifier(
    own: State, state: dict[str, Tensor], heads: tuple[str, ...], classes: int
) -> tuple[dict[str, Tensor], list[str]]:
    """The file without a classifier for other classes, and which keys of ours it then does not fill.

    These are layers as wide as there are classes that differ in that width alone, and the classifier itself where the
    file has none; all else must be there. Keys that fit nowhere then belong to the file's own classifier.
    """
    left = [
        key
        for key, value in own.items()
        if (key not in state and heads and key.startswith(heads))
        or (
            key in state
            and value.ndim == state[key].ndim > 0
            and value.shape[1:] == state[key].shape[1:]
            and len(value) == classes != len(state[key])
        )
    ]
    if not left or any(key not in state and key not in left and not _counts(key) for key in own):
        return state, []
    return {key: value for key, value in state.items() if key in own and key not in left}, left


def _counts(key: str) -> bool:
    return key.endswith("num_batches_tracked")


def _bare(key: str) -> str:
    return key.removeprefix("body.").removeprefix("module.")


def _common(module: nn.Module, state: State) -> int:
    return len(module.state_dict().keys() & state.keys())


def _head(key: str) -> str | None:
    return next((head for head in HEADS if key.removeprefix("body.").startswith(head)), None)


def _shapes(state: State, head: str) -> dict[str, torch.Size]:
    return {key: state[key].shape for key in state if _head(key) == head and not _counts(key)}
