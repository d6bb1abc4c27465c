"""The maps before the last ReLU of each stage, for methods with the tap "preact".

Of a stage that a ReLU module returns it is that module's input. Of one that goes through a batch norm into a ReLU, as
in pre-activation networks, it is the input of that ReLU. Of any other, like a linear bottleneck's or a transformer's,
it is the stage itself.
"""
# B batch, C channels, H × W pixels

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from antishortcut.models.feature_extractor import silent
from antishortcut.types import Features

RELUS = (nn.ReLU, nn.ReLU6)
NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)


class Source(NamedTuple):
    """One call of a ReLU, whose input is a stage's pre-activation."""

    relu: nn.Module
    call: int  # −1 is its last in a pass


Sources = tuple[Source | None, ...]  # of each stage; None for the stage's own map
_known: WeakKeyDictionary[nn.Module, Sources] = WeakKeyDictionary()


def tapped_features(network: nn.Module, image: Tensor, taps: Sequence[str]) -> Features:
    """The network's features with what a method taps. `preact` is empty if a pass skipped one of its ReLUs."""
    if "preact" not in taps:
        features: Features = network(image)
        return features
    if network not in _known:
        with silent(network), torch.random.fork_rng([image.device] if image.is_cuda else []):
            _known[network] = find_relus(network, image[:2])[1]
    sources = _known[network]
    inputs: dict[nn.Module, list[Tensor]] = {source.relu: [] for source in sources if source is not None}

    def keep(relu: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs[relu] += [value.clone() if getattr(relu, "inplace", False) else value for value in args]

    with hooks(relu.register_forward_pre_hook(keep) for relu in inputs):
        features = network(image)
    if len(features.stages) != len(sources) or any(-s.call > len(inputs[s.relu]) for s in sources if s is not None):
        return features
    pairs = zip(features.stages, sources, strict=True)
    preact = (stage if source is None else inputs[source.relu][source.call] for stage, source in pairs)
    return replace(features, preact=tuple(preact))


def find_relus(network: nn.Module, image: Tensor) -> tuple[Features, Sources]:
    """The network's features, and where the pre-activation of each stage is."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []  # inputs and outputs are kept so that their ids stay unique

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        calls.extend((module, value, output) for value in args)

    modules = [module for module in network.modules() if isinstance(module, RELUS + NORMS)]
    with hooks(module.register_forward_hook(hook) for module in modules):
        features: Features = network(image)
    normed, before, after = dict[int, int](), dict[int, Source](), dict[int, Source]()  # by id of a tensor
    count = Counter[nn.Module]()
    for module, value, output in reversed(calls):
        if isinstance(module, NORMS):
            normed[id(value)] = id(output)
            continue
        count[module] += 1
        before[id(value)] = source = Source(module, -count[module])
        after.setdefault(id(output), source)  # a tensor may go through several ReLUs in place

    def source_of(stage: Tensor) -> Source | None:
        norm = normed.get(id(stage), 0)  # its output; some norms end in a ReLU of their own
        return after.get(id(stage)) or after.get(norm) or before.get(norm)

    return features, tuple(source_of(stage) for stage in features.stages)


@contextmanager
def hooks(handles: Iterable[Any]) -> Iterator[None]:
    """Hooks that last no longer than the block. Compiled code would not call them, so nothing is compiled there."""
    registered: list[Any] = []
    try:
        registered.extend(handles)
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for handle in registered:
            handle.remove()
