"""Weights from a file into a network, with a readable complaint when they do not fit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from antishortcut.errors import UserError, first_line
from antishortcut.files import stored
from antishortcut.models.segmentation import DeepLab, backbone_state

WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every key
# parts of a DeepLab that may start fresh; the last layers, as wide as there are classes, apart from what is before them
HEADS = ("classifier.4.", "classifier.", "aux_classifier.4.", "aux_classifier.")


def load_weights(network: nn.Module, path: str | Path) -> None:
    """Load a .safetensors, .pt or .pth file; the keys may be the network's or those of the bare body inside it.

    A DeepLab also takes a classifier's file for its backbone, and a DeepLab's whose heads are of other classes or not
    there; what does not fit of its heads then stays as it is.
    """
    path = Path(path)
    state = strip(read(path))
    body = getattr(network, "body", network)
    # a Network holds a body, a tapped body holds the foreign module: whose keys are these?
    targets: list[nn.Module] = [network, body, getattr(body, "module", body)]
    target = max(targets, key=lambda t: overlap(t, state))
    also, fresh = "", set[str]()
    if isinstance(body, DeepLab):
        bare = backbone_state(state)
        if overlap(body.backbone, bare) > overlap(target, state):
            target, state = body.backbone, bare
        fresh, state = without_unfit_heads(target.state_dict(), state)
        also = "; wanted: all of a DeepLab like this, or a timm or torchvision classifier with its backbone"
    own = target.state_dict()
    complain(path, {key: own[key] for key in own if _head(key) not in fresh}, state, also)
    if fresh:
        names = ", ".join(head.rstrip(".") for head in HEADS if head in fresh)
        warnings.warn(f"nothing in {path} fits these parts, which start fresh: {names}", stacklevel=2)
    target.load_state_dict(state, strict=False)  # complain() was strict, old files may lack BN's counters


def without_unfit_heads(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> tuple[set[str], dict[str, Tensor]]:
    """Which parts of a DeepLab's heads the file does not fill, and the file without what does not fit in them."""

    def shapes(of: Mapping[str, Tensor], head: str) -> dict[str, torch.Size]:
        return {key: of[key].shape for key in of if _head(key) == head and not key.endswith("num_batches_tracked")}

    unfit = {head for head in HEADS if shapes(own, head) != shapes(state, head)}
    kept = {key: value for key, value in state.items() if _head(key) not in unfit}
    return {head for head in unfit if shapes(own, head)}, kept


def _head(key: str) -> str | None:
    return next((head for head in HEADS if key.removeprefix("body.").startswith(head)), None)


def overlap(module: nn.Module, state: Mapping[str, Tensor]) -> int:
    return len(module.state_dict().keys() & state.keys())


def read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"no weights at {path}")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        stored(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is something else can make a reader raise anything
        raise UserError(f"{path} holds no plain tensors; save a state_dict: {first_line(error)}") from error
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(_plain(key, value) for key, value in content.items()):
        raise UserError(f"{path} holds no state_dict; wanted a dict of tensors, alone or under 'state_dict' or 'model'")
    return dict(content)


def put(network: nn.Module, state: Mapping[str, Tensor], where: str | Path) -> None:
    """Weights that were read from `where` into a network of exactly their kind."""
    complain(Path(where), network.state_dict(), state)
    network.load_state_dict(state, strict=False)  # complain() was strict


def _plain(key: object, value: object) -> bool:
    """A name, and a tensor whose numbers are in the file: none that is sparse, quantised or a mere shape."""
    if not isinstance(key, str) or not isinstance(value, Tensor):
        return False
    return value.layout is torch.strided and value.device.type == "cpu" and not (value.is_quantized or value.is_nested)


def strip(state: dict[str, Any]) -> dict[str, Any]:
    for prefix in WRAPPERS:
        if state and all(key.startswith(prefix) for key in state):
            return strip({key.removeprefix(prefix): value for key, value in state.items()})
    return state


def complain(path: Path, own: Mapping[str, Tensor], state: Mapping[str, Tensor], also: str = "") -> None:
    """Raise when keys or shapes differ, naming a few of each; also: what to say besides."""
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in own]
    shapes = [
        f"{key} {tuple(state[key].shape)} for {tuple(own[key].shape)}"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    parts = [
        f"{len(keys)} {what} ({', '.join(keys[:3])}{', …' if len(keys) > 3 else ''})"
        for what, keys in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if keys
    ]
    if parts:
        raise UserError(f"the weights in {path} are of another network: " + "; ".join(parts) + also)
