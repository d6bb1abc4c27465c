"""Weights from a file into a network, with one clear line when they do not fit."""

import argparse
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError, first_line
from antishortcut.models.deeplab import DeepLab, backbone_state
from antishortcut.models.feature_extractor import FeatureExtractor
from antishortcut.models.layers import NoClassifier
from antishortcut.models.reused_classifier import ReusedClassifier

WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every key
COUNTER = "n_averaged"  # beside the keys of torch.optim.swa_utils.AveragedModel, which begin with module.
# parts of a DeepLab that may start fresh; the last layers, as wide as there are classes, apart from what is before them
REUSED = {"trunk", "projector", "head"}  # of a ReusedClassifier
HEADS = ("classifier.4.", "classifier.", "aux_classifier.4.", "aux_classifier.")

State = Mapping[str, Tensor]


def load_weights(network: nn.Module, path: str | Path, *, start: bool = False) -> None:
    """Load a file of weights; the keys may be the network's or those of the bare body inside it.

    A prefix such as `model.` that only the file or only the network has is added or removed.
    start: initial weights, so a classifier for other classes keeps its own.
    A DeepLab also takes a classifier's file for its backbone, and a DeepLab's with other heads or none; heads that do
    not fit stay as they are. Weights that do not fit, or contain NaN, are refused before the network is changed.
    """
    path = Path(path)
    state = strip(read_weights(path))
    body = getattr(network, "body", network)
    target: nn.Module = getattr(body, "module", body)
    fresh: list[str] = []  # layers of the network that keep their own weights
    if isinstance(body, DeepLab):
        advice = "; expected a DeepLab like this, or a timm or torchvision classifier with its backbone"
        state = {key.removeprefix("body."): value for key, value in state.items()}
        options = ((body, state), (body.backbone, backbone_state(state)))
        target, state = max(options, key=lambda option: len(option[0].state_dict().keys() & option[1].keys()))
        own = target.state_dict()
        unfit = [head for head in HEADS if _head_shapes(own, head) != _head_shapes(state, head)]
        fresh = [head for head in unfit if _head_shapes(own, head)]
        own, state = ({key: x for key, x in each.items() if _head(key) not in unfit} for each in (own, state))
    else:
        advice = "; name the network they were saved from"
        own = target.state_dict()
        words = {key.removeprefix("body.").partition(".")[0] for key in state}
        if words >= REUSED and not isinstance(body, ReusedClassifier):
            advice = "; they are of a student that ends in its teacher's classifier: to learn from it, use --via"
        state = _aligned(own, state, path)
        if _is_headless(body):
            state = {key: value for key, value in state.items() if key in own}  # without the file's classifier
        rest, left = _without_classifier(own, state, body.heads if isinstance(body, FeatureExtractor) else ("head",))
        if left and start:
            fresh = list(dict.fromkeys(key.rpartition(".")[0] for key in left))
            own, state = {key: value for key, value in own.items() if key not in left}, rest
        elif classes := [len(state[key]) for key in left if key in state]:
            advice = f"; they are for {classes[0]} classes: fine to start from (weights = …), not as a finished network"
    complain(path, own, state, advice)
    for key, value in state.items():  # an infinity may be intended, as in masks
        if value.is_floating_point() and bool(value.isnan().any()):
            raise UserError(f"{path} holds NaN in {key!r}: that training diverged; use an earlier checkpoint")
    if fresh:
        names = ", ".join(layer.rstrip(".") for layer in fresh)
        warnings.warn(f"{path} has no weights that fit these layers, so they start fresh: {names}", stacklevel=2)
    target.load_state_dict(state, strict=False)  # complain() was strict, old files may lack BN's counters


def count_classes(network: nn.Module, path: Path) -> int:
    """How many classes the classifier in a file has; 0 if it has none. The network may be for any number of classes."""
    body = getattr(network, "body", network)
    own = getattr(body, "module", body).state_dict()
    state = _aligned(own, strip(read_weights(path)), path)
    heads = body.heads if isinstance(body, FeatureExtractor) else ("head",)
    _, left = _without_classifier(own, state, heads)
    counts = {len(state[key]) for key in left if key in state} or {len(own[f"{heads[0]}.weight"])}
    if len(counts) > 1:
        raise UserError(f"{path} does not tell how many classes it is for; add --set data.options.classes=NUMBER")
    return 0 if left and not any(key in state for key in left) else counts.pop()


def _is_headless(body: nn.Module) -> bool:
    extracted = isinstance(body, FeatureExtractor) and body.classes == 0
    return extracted or isinstance(getattr(body, "head", None), NoClassifier)


def load_checked(network: nn.Module, state: State, where: str | Path) -> None:
    """Weights that were read from `where` into a network of exactly their kind."""
    complain(Path(where), network.state_dict(), state)
    network.load_state_dict(state, strict=False)  # complain() was strict


def strip(state: dict[str, Any]) -> dict[str, Any]:
    """Without what wrappers put before keys; torch.compile may have wrapped an inner module only."""
    if all(key.startswith("module.") != (key == COUNTER) for key in state):
        state = {key: value for key, value in state.items() if key != COUNTER}
    state = {key.replace("._orig_mod.", "."): value for key, value in state.items()}
    while prefix := next((word for word in WRAPPERS if state and all(key.startswith(word) for key in state)), None):
        state = {key.removeprefix(prefix).replace("._orig_mod.", "."): value for key, value in state.items()}
    return state


def complain(path: Path, own: State, state: State, advice: str = "") -> None:
    """Raise if keys, shapes or dtypes differ, naming a few of each."""
    both = [(key, own[key], state[key]) for key in own if key in state]
    problems = {
        "missing": [key for key in own if key not in state and not _is_counter(key)],
        "unexpected": [key for key in state if key not in own],
        "of another shape": [f"{k} {tuple(s.shape)} for {tuple(o.shape)}" for k, o, s in both if s.shape != o.shape],
        "of another type": [
            f"{k} {s.dtype} for {o.dtype}".replace("torch.", "")
            for k, o, s in both
            if o.is_floating_point() > s.is_floating_point() or s.is_complex() > o.is_complex()
        ],
    }
    lines = [
        f"{len(keys)} {what} ({', '.join(keys[:3])}{', …' if len(keys) > 3 else ''})"
        for what, keys in problems.items()
        if keys
    ]
    if lines:
        raise UserError(f"the weights in {path} are of another network: {'; '.join(lines)}{advice}")


def _aligned(own: State, state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The file's tensors under the network's names: a prefix that only one of the two has is removed or added."""
    if all(key in state or _is_counter(key) for key in own):
        return state
    # (removed, added) → how many keys are then the same in name and shape, and in name; one pass over all keys
    options = [(("", ""), key, key) for key in state]
    options += [((prefix, ""), key.removeprefix(prefix), key) for key in state for prefix in _prefixes(key)]
    options += [(("", prefix), key, key.removeprefix(prefix)) for key in own for prefix in _prefixes(key)]
    matching: dict[tuple[str, str], list[int]] = {}
    for option, own_key, file_key in options:
        count = matching.setdefault(option, [0, 0])
        if own_key in own and file_key in state:
            count[0] += own[own_key].shape == state[file_key].shape
            count[1] += 1
    best = max(matching.values())
    if best[1] <= len(own) / 2:
        return state
    (first, added), *ties = [option for option, count in matching.items() if count == best]
    rivals = [prefix for prefix, _ in ties if not (prefix.startswith(first) or first.startswith(prefix))]
    if rivals:
        raise UserError(f"{path} holds two networks that fit, under {first!r} and {rivals[0]!r}; save one of them")
    return {added + key.removeprefix(first): value for key, value in state.items() if key.startswith(first)}


def _prefixes(key: str) -> list[str]:
    """What a key begins with, up to three words."""
    words = key.split(".", 3)[:-1]
    return [".".join(words[:n]) + "." for n in range(1, len(words) + 1)]


def _without_classifier(
    own: State, state: dict[str, Tensor], heads: Sequence[str]
) -> tuple[dict[str, Tensor], list[str]]:
    """The file without a classifier for other classes, and which keys of ours it then does not fill.

    These are layers as wide as there are classes that differ in that width alone, and the classifier itself where the
    file has none; all else must be there. Keys that fit nowhere then belong to the file's own classifier.
    """
    prefixes = tuple(f"{head}." for head in heads)
    classes = next((len(own[f"{head}.weight"]) for head in heads if f"{head}.weight" in own), 0)
    left = [
        key
        for key, value in own.items()
        if (key not in state and key.startswith(prefixes))
        or (
            key in state
            and value.ndim == state[key].ndim > 0
            and value.shape[1:] == state[key].shape[1:]
            and len(value) == classes != len(state[key])
        )
    ]
    if any(key not in state and key not in left and not _is_counter(key) for key in own):
        return state, []
    return {key: value for key, value in state.items() if key in own and key not in left}, left


def _is_counter(key: str) -> bool:
    return key.endswith("num_batches_tracked")


def _head(key: str) -> str | None:
    return next((head for head in HEADS if key.startswith(head)), None)


def _head_shapes(state: State, head: str) -> dict[str, torch.Size]:
    return {key: state[key].shape for key in state if _head(key) == head and not _is_counter(key)}


# where training scripts put the weights; averaged ones are used only if there are no others
PLAIN = ("state_dict", "model_state_dict", "model", "net", "network", "params", "weights", "module")
AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "ema", "params_ema")
NESTED = 8  # dicts around the weights
MOST = 30_000  # tensors in a file; the largest networks have a few thousand
REMEDY = "save its state_dict alone, torch.save(model.state_dict(), FILE), or as safetensors"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a file by name, out of whatever they are packed in."""
    if not os.path.isfile(path):  # unlike Path.is_file, also of a name that is too long
        raise UserError(f"{path} is no file of weights" if os.path.exists(path) else f"no weights at {path}")
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    problem = f"{path} holds no plain tensors"
    if start[8:9] == b"{":  # safetensors: the length of a header, then the header
        from safetensors import SafetensorError, safe_open  # here: the losses need only torch
        from safetensors.torch import load_file

        try:
            with safe_open(path, "pt") as file:
                _check_number(len(file.keys()), path)
            return dict(load_file(path))
        except (SafetensorError, OSError, RuntimeError, MemoryError) as error:
            raise UserError(f"{problem}: damaged or incomplete, download it again: {first_line(error)}") from error
    if not start.startswith((b"PK\x03\x04", b"\x80")):  # what torch.save writes: an archive, or formerly a pickle
        advice = "download the file itself (Git LFS: git lfs pull)"
        raise UserError(f"{problem}: it begins with {start[:24]!r}; {advice}")
    return unpacked(loaded(path), path)


class NumpyNumber:
    """Replaces numpy's numbers, arrays and types beside the weights, whose constructors may run code."""

    def __new__(cls, *_: object) -> Self:
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Drop the value."""


SAFE: list[Any] = [
    argparse.Namespace,
    (NumpyNumber, "numpy.dtype"),
    (NumpyNumber, "numpy.ndarray"),
    *((NumpyNumber, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),  # numpy 1 and 2
    *((NumpyNumber, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
]


def loaded(path: Path) -> Any:
    """The content of a torch file, old or new, as long as it runs no code."""
    try:
        if zipfile.is_zipfile(path):  # a record for each tensor; torch.load takes their square
            with zipfile.ZipFile(path) as archive:
                _check_number(len(archive.infolist()), path)
        with path.open("rb") as file, torch.serialization.safe_globals(SAFE), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL ([\w.]+)|[Uu]nsupported (?:global|class) ([\w.]+)", str(error)[:2000])
        what = f"a {name[1] or name[2]}, which could run any code" if name else "what torch cannot read safely"
        raise UserError(f"{path} holds no plain tensors but {what}; {REMEDY}") from error
    except Exception as error:  # half a pickle may raise anything
        problem = f"{path} holds no plain tensors: damaged, incomplete or no state_dict"
        raise UserError(f"{problem}; download it again, or {REMEDY}: {first_line(error)[:200]}") from error


def unpacked(content: Any, path: Path) -> dict[str, Tensor]:
    """The weights in what a training script saved."""
    for _ in range(NESTED):
        known = content if isinstance(content, Mapping) else {}
        keys = [key for key in (*PLAIN, *AVERAGED) if isinstance(known.get(key), Mapping)]
        if not keys:
            break
        averaged = [key for key in keys if key in AVERAGED]
        if averaged and keys[0] not in AVERAGED:
            both = f"{keys[0]!r} and {averaged[0]!r}"
            warnings.warn(f"{path} holds {both}: the first is used; save the other alone to use it", stacklevel=2)
        content = content[keys[0]]
    items = content.items() if isinstance(content, Mapping) else ()
    tensors = {key: value for key, value in items if isinstance(key, str) and isinstance(value, Tensor)}
    _check_number(len(tensors), path)
    for key, value in tensors.items():
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_nested:
            raise UserError(f"{path} holds no plain tensors: {key!r} is sparse, quantised or a mere shape; {REMEDY}")
    if not tensors:
        holds = ", ".join(map(str, list(content)[:6])) if isinstance(content, Mapping) else type(content).__name__
        raise UserError(f"{path} holds no state_dict but {holds or 'nothing'}; {REMEDY}")
    return tensors


def _check_number(tensors: int, path: Path) -> None:
    if tensors > MOST:
        raise UserError(f"{path} holds {tensors:,} tensors, more than any network ({MOST:,}); {REMEDY}")
