"""Weights from a file into a network, with a readable complaint when they do not fit."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models.checkpoints import read
from antishortcut.models.segmentation import DeepLab, backbone_state
from antishortcut.models.taps import Tapped

__all__ = ["complain", "load_weights", "put", "read", "strip"]

WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every key
COUNTER = "n_averaged"  # beside the keys of torch.optim.swa_utils.AveragedModel, which begin with module.
PART = re.compile(r"-\d+-of-\d+\.")  # in the name of one file of several
MANY = 16  # of those around each other
# parts of a DeepLab that may start fresh; the last layers, as wide as there are classes, apart from what is before them
HEADS = ("classifier.4.", "classifier.", "aux_classifier.4.", "aux_classifier.")


def load_weights(network: nn.Module, path: str | Path, *, start: bool = False) -> None:
    """Load a file of weights; the keys may be the network's or those of the bare body inside it.

    A word before every key that the network does not have, or that only the network has, is no matter.
    start: the weights are to start from, not finished, so that a classifier for other classes may stay as it is.
    A DeepLab also takes a classifier's file for its backbone, and a DeepLab's whose heads are of other classes or not
    there; what does not fit of its heads then stays as it is.
    Weights with NaN are refused, as any that do not fit, before the network is changed.
    """
    path = Path(path)
    state = strip(read(path))
    body = getattr(network, "body", network)
    # a Network holds a body, a tapped body holds the foreign module: whose keys are these?
    targets: list[nn.Module] = [network, body, getattr(body, "module", body)]
    target = max(targets, key=lambda t: overlap(t, state))
    also, fresh = "", set[str]()
    if isinstance(body, DeepLab):
        backbone = backbone_state(state)
        if overlap(body.backbone, backbone) > overlap(target, state):
            target, state = body.backbone, backbone
        fresh, state = without_unfit_heads(target.state_dict(), state)
        also = "; wanted: all of a DeepLab like this, or a timm or torchvision classifier with its backbone"
    else:
        target, state = aligned(targets, state, path)
    own = target.state_dict()
    if start:
        state, left = fitting(own, state, class_layers(network, target))
        own = {key: value for key, value in own.items() if key not in left}
    also = also or advice(path, own, state, class_layers(network, target))
    complain(path, {key: own[key] for key in own if _head(key) not in fresh}, state, also)
    refuse_broken(path, state)
    if fresh:
        names = ", ".join(head.rstrip(".") for head in HEADS if head in fresh)
        warnings.warn(f"nothing in {path} fits these parts, which start fresh: {names}", stacklevel=2)
    if start and left:
        bare = (key.removeprefix("body.").removeprefix("module.") for key in left)
        names = ", ".join(dict.fromkeys(key.rpartition(".")[0] for key in bare))
        warnings.warn(f"{path} has no weights for these classes, so these layers start fresh: {names}", stacklevel=2)
    target.load_state_dict(state, strict=False)  # complain() was strict, old files may lack BN's counters


def aligned(targets: list[nn.Module], state: dict[str, Tensor], path: Path) -> tuple[nn.Module, dict[str, Tensor]]:
    """Whose keys these are, and the file's under the names they have there."""
    owns = [target.state_dict() for target in targets]
    plain = [matching(own, state) for own in owns]
    at = max(range(len(plain)), key=lambda place: (plain[place], place))  # of equals the innermost: a person knows it
    if all(key in state or counts(key) for key in owns[at]):
        return targets[at], state
    best, found = plain[at], [("", targets[at], state)]
    for target, own in zip(targets, owns, strict=True):
        for word, renamed in renamings(own, state):
            score = matching(own, renamed)
            if score[1] > len(own) / 2 and score >= best:
                found = [*(found if score == best else []), (word, target, renamed)]
                best = score
    word, target, renamed = found[0]
    others = [other for other, _, _ in found if not (other.startswith(word) or word.startswith(other))]
    if others and word.startswith("-"):
        words = f"{word[1:]!r} and {others[0][1:]!r}"
        raise UserError(f"{path} holds more than one network that would fit, under {words}; save one of them alone")
    return target, renamed


def renamings(own: Mapping[str, Tensor], state: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The file's keys without a beginning that many have ("-model."), or with one that many of ours have ("+net.")."""
    for word in beginnings(state):
        yield f"-{word}", {key.removeprefix(word): value for key, value in state.items() if key.startswith(word)}
    for word in beginnings(own):
        yield f"+{word}", {word + key: value for key, value in state.items()}


def beginnings(state: Mapping[str, Any]) -> list[str]:
    """What keys begin with, up to three words."""
    found: dict[str, None] = {}
    for key in state:
        words = key.split(".")[:-1]
        for count in range(1, min(len(words), 3) + 1):
            found[".".join(words[:count]) + "."] = None
    return list(found)


def matching(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> tuple[int, int]:
    """How many keys are the same, in name and shape, and in name."""
    both = own.keys() & state.keys()
    return sum(own[key].shape == state[key].shape for key in both), len(both)


def class_layers(network: nn.Module, target: nn.Module) -> tuple[list[str], int]:
    """Beginnings of the classifier's keys in the target, and how many classes it has."""
    body = getattr(network, "body", network)
    heads = [f"module.{path}" for path in body.heads] if isinstance(body, Tapped) else ["head"]
    layers = [f"body.{head}" for head in heads if body is not network] + heads
    layers += [head.removeprefix("module.") for head in heads]
    known = dict(target.named_modules())
    found = [layer for layer in layers if layer in known]
    weight = next((getattr(known[layer], "weight", None) for layer in found), None)
    return [f"{layer}." for layer in found], len(weight) if isinstance(weight, Tensor) else 0


def fitting(
    own: Mapping[str, Tensor], state: dict[str, Tensor], heads: tuple[list[str], int]
) -> tuple[dict[str, Tensor], list[str]]:
    """The file without a classifier for other classes, and which keys of ours stay as they are for that.

    Layers as wide as there are classes that differ in that width alone, and the classifier itself where the file has
    none; all else must be there. Keys that are nowhere else wanted then belong to the file's own classifier.
    """
    begin, classes = tuple(heads[0]), heads[1]
    left = [
        key
        for key, value in own.items()
        if (key not in state and begin and key.startswith(begin))
        or (
            key in state
            and value.ndim == state[key].ndim > 0
            and value.shape[1:] == state[key].shape[1:]
            and len(value) == classes != len(state[key])
        )
    ]
    if not left or any(key not in state and key not in left and not counts(key) for key in own):
        return state, []
    return {key: value for key, value in state.items() if key in own and key not in left}, left


def advice(path: Path, own: Mapping[str, Tensor], state: dict[str, Tensor], heads: tuple[list[str], int]) -> str:
    """What to do about weights that do not fit."""
    if PART.search(path.name):
        return "; it is one of several files: name their index, which ends in .index.json"
    left = [key for key in fitting(own, state, heads)[1] if key in state]
    if left:
        known = f"they are for {len(state[left[0]])} classes, not {heads[1]}"
        return f"; {known}: a finished network knows the same ones, one to start from (weights = …) may know others"
    return "; name the network they were saved from"


def refuse_broken(path: Path, state: Mapping[str, Tensor]) -> None:
    """Weights of a failed training can neither teach nor be gone on with; an infinity may be meant, as in masks."""
    for key, value in state.items():
        if value.is_floating_point() and bool(value.isnan().any()):
            name = key.removeprefix("body.").removeprefix("module.")
            raise UserError(f"{path} holds NaN in {name!r}: that training diverged; take a state from before it did")


def counts(key: str) -> bool:
    return key.endswith("num_batches_tracked")


def without_unfit_heads(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> tuple[set[str], dict[str, Tensor]]:
    """Which parts of a DeepLab's heads the file does not fill, and the file without what does not fit in them."""

    def shapes(of: Mapping[str, Tensor], head: str) -> dict[str, torch.Size]:
        return {key: of[key].shape for key in of if _head(key) == head and not counts(key)}

    unfit = {head for head in HEADS if shapes(own, head) != shapes(state, head)}
    kept = {key: value for key, value in state.items() if _head(key) not in unfit}
    return {head for head in unfit if shapes(own, head)}, kept


def _head(key: str) -> str | None:
    return next((head for head in HEADS if key.removeprefix("body.").startswith(head)), None)


def overlap(module: nn.Module, state: Mapping[str, Tensor]) -> int:
    return len(module.state_dict().keys() & state.keys())


def put(network: nn.Module, state: Mapping[str, Tensor], where: str | Path) -> None:
    """Weights that were read from `where` into a network of exactly their kind."""
    complain(Path(where), network.state_dict(), state)
    network.load_state_dict(state, strict=False)  # complain() was strict


def strip(state: dict[str, Any]) -> dict[str, Any]:
    """Without what wrappers put before keys; torch.compile may have wrapped a part alone."""
    if all(key.startswith("module.") != (key == COUNTER) for key in state):
        state = {key: value for key, value in state.items() if key != COUNTER}
    state = {key.replace("._orig_mod.", "."): value for key, value in state.items()}
    for _ in range(MANY):
        prefix = next((word for word in WRAPPERS if state and all(key.startswith(word) for key in state)), None)
        if prefix is None:
            break
        state = {key.removeprefix(prefix).replace("._orig_mod.", "."): value for key, value in state.items()}
    return state


def complain(path: Path, own: Mapping[str, Tensor], state: Mapping[str, Tensor], also: str = "") -> None:
    """Raise when keys or shapes differ, naming a few of each; also: what to say besides."""
    missing = [key for key in own if key not in state and not counts(key)]
    unexpected = [key for key in state if key not in own]
    shapes = [
        f"{key} {tuple(state[key].shape)} for {tuple(own[key].shape)}"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    kinds = [
        f"{key} {_kind(state[key])} for {_kind(own[key])}"
        for key in own
        if key in state and _other(own[key], state[key])
    ]
    found = {"missing": missing, "unexpected": unexpected, "of another shape": shapes, "of another type": kinds}
    parts = [
        f"{len(keys)} {what} ({', '.join(keys[:3])}{', …' if len(keys) > 3 else ''})"
        for what, keys in found.items()
        if keys
    ]
    if parts:
        words = "; ".join(parts) + spelt(missing, unexpected) + also
        raise UserError(f"the weights in {path} are of another network: {words}")


def _other(own: Tensor, given: Tensor) -> bool:
    """Whether numbers would change their meaning: whole or true/false ones for floats, complex ones for any others."""
    return own.is_floating_point() > given.is_floating_point() or given.is_complex() > own.is_complex()


def _kind(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def spelt(missing: list[str], unexpected: list[str]) -> str:
    """Where the same keys seem to be there under other names: a word before them, or the nearest."""
    if not missing or not unexpected:
        return ""
    for ours, theirs, whose in ((missing, unexpected, "in the file"), (unexpected, missing, "of the network")):
        for word in beginnings(dict.fromkeys(theirs)):
            with_word = [key for key in ours if word + key in theirs]
            if len(with_word) > len(ours) / 2:
                return f"; keys {whose} have {word!r} before them"
    close = get_close_matches(missing[0], unexpected, n=1, cutoff=0.7)
    return f"; {missing[0]!r} may be {close[0]!r} in the file" if close else ""
