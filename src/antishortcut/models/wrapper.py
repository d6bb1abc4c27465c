"""Network: raw images in, Features out. It owns resizing and normalisation, so any teacher fits any student."""
# B batch, H × W pixels

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.models.feature_extractor import silent
from antishortcut.types import Features, Shape

Colour = Sequence[float]  # one number a channel

ROUNDING = 0.02  # of the largest logit, what bfloat16 may change
CIFAR_MEAN, CIFAR_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


class Network(nn.Module):
    """Raw images (B, 3, H, W), float in [0, 1] → Features of the body, which sees them resized and normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module, mean: Colour = CIFAR_MEAN, std: Colour = CIFAR_STD, size: int | None = None):
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise UserError(f"mean and std want one number a channel and std > 0; got mean {mean}, std {std}")
        self.body = body
        self.size = size
        # not persistent: they belong to the settings, and checkpoints hold weights alone
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> Features:
        if not image.is_floating_point():
            raise UserError(f"images must be floats in [0, 1], got {image.dtype}: divide by 255 first")
        image = self.resized(image).contiguous(memory_format=torch.channels_last)  # faster on CPUs and tensor cores
        features: Features = self.body((image - self.mean) / self.std)
        return features

    def resized(self, image: Tensor) -> Tensor:
        """Images (B, 3, size, size) where the network takes only one size."""
        if self.size is None or image.shape[-2:] == (self.size, self.size):
            return image
        larger = min(image.shape[-2:]) > self.size
        return F.interpolate(image, (self.size, self.size), mode="bilinear", antialias=larger)

    @property
    def head(self) -> nn.Linear | None:
        """The classifier: logits = head(embedding), unless the embedding was named elsewhere."""
        head = getattr(self.body, "head", None)
        return head if isinstance(head, nn.Linear) else None


def feature_shapes(network: nn.Module, image_size: int) -> Shape:
    """Sizes of the network's features for square images, found by a silent pass."""
    weight = next(network.parameters(), torch.empty(0))
    image = torch.rand(2, 3, image_size, image_size, generator=torch.Generator().manual_seed(0)).to(weight.device)
    with silent(network):
        features, relus = find_relus(network, image)
        head = _is_linear(features, getattr(network, "head", None))
    stages = tuple((int(s.shape[1]), int(s.shape[2]), int(s.shape[3])) for s in features.stages)
    negative = (stage.is_meta or bool((stage < 0).any()) for stage in features.stages)
    preact = tuple(relu is not None or sign for relu, sign in zip(relus, negative, strict=True))
    read = features.embedding if features.last is None else features.last
    side = (1, 1) if features.last is None else (int(read.shape[2]), int(read.shape[3]))
    signed = not read.is_meta and bool((read < 0).any())
    maps = features.embedding.ndim == 4
    return Shape(int(features.embedding.shape[1]), stages, maps, side, signed, head, preact)


def _is_linear(features: Features, head: object) -> bool:
    """Whether the logits are what the head makes of the embedding, in any precision."""
    embedding, logits = features.embedding, features.logits
    if not isinstance(head, nn.Linear) or embedding.shape[1:] != (head.in_features,) or embedding.is_meta:
        return False
    return not bool((head(embedding) - logits).abs().max() > ROUNDING * logits.abs().max())  # NaN is another problem


# --- The maps before the last ReLU of each stage, for methods with the tap "preact" ---

# Of a stage that a ReLU module returns it is that module's input. Of one that goes through a batch norm into a ReLU, as
# in pre-activation networks, it is the input of that ReLU. Of any other, like a linear bottleneck's or a transformer's,
# it is the stage itself.

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
