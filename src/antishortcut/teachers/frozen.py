"""A network that only answers: frozen, and in the form in which its device answers fastest.

The form (precision, batch norm folded into convolutions, compiled or not) is settled once, from the device and from
what the network is, and written down by the run: a run that goes on does not choose again. Whatever the form, what
comes out is compared with the network as it was before anybody learns from it.
"""
# B batch, R rows: images, or locations of maps, C classes, D embedding

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from antishortcut.errors import UserError
from antishortcut.models import Network
from antishortcut.types import Features

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COSINE, ARGMAX = 0.999, 0.995  # of embeddings on average, of rows whose largest logit is the same
FOLDED = 1e-3  # largest difference that folding may make, in standard deviations of the output
ROUNDS = 5  # timings of either form
WORTH = 1800.0  # seconds of answering in a run below which compiling is not tried: it takes a minute or two itself
FASTER = 0.95  # of the time uncompiled that compiled must stay below to be taken


@dataclass(frozen=True)
class InferenceForm:
    """How a network answers."""

    precision: str  # one of DTYPES
    compiled: bool = False

    def __str__(self) -> str:
        return self.precision + ", compiled" * self.compiled


def fastest_precision(device: torch.device) -> str:
    """The precision that the device has instructions for; without them bfloat16 is slower than float32.

    ANTISHORTCUT_NATIVE says it for machines that differ and are to compute alike.
    """
    if text := os.environ.get("ANTISHORTCUT_NATIVE"):
        if text not in DTYPES:
            raise UserError(f"ANTISHORTCUT_NATIVE={text}: one of {', '.join(DTYPES)}")
        return text
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    if device.type == "cpu" and any(_has(name) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")):
        return "bfloat16"
    return "float32"


def _has(name: str) -> bool:
    """Names that torch does not promise to keep."""
    return bool(getattr(torch.cpu, name, lambda: False)())


class FrozenModel(nn.Module):
    """Raw images in, Features out, without gradient; logits and embeddings in float32, stages as they come.

    side: of the images it will see. shape: of the batches a compiled form is made for; others go the other way, so that
    what a batch is answered with does not depend on those before it.
    """

    def __init__(self, network: Network, form: InferenceForm, side: int = 32, shape: torch.Size | None = None) -> None:
        super().__init__()
        self.network = fold(network, side)
        self.form, self.side, self.shape = form, side, shape
        self._compiled: Callable[[Tensor], Features] | None = None
        if form.precision != "float32":
            _full_head(self.network)

    @torch.no_grad()
    def forward(self, image: Tensor) -> Features:
        with self._casting(image.device.type):
            outputs = self._answer(image)
        aux = None if outputs.aux is None else outputs.aux.float()
        return Features(outputs.logits.float(), outputs.embedding.float(), outputs.stages, aux)

    def _answer(self, image: Tensor) -> Features:
        if not self.form.compiled or image.shape != self.shape:
            outputs: Features = self.network(image)
            return outputs
        if self._compiled is None:
            built = torch.compile(self.network, dynamic=False, options={"freezing": True})
            self._compiled = cast("Callable[[Tensor], Features]", built)
        return self._compiled(image)

    def _casting(self, device: str) -> AbstractContextManager[Any]:
        if self.form.precision == "float32":
            return nullcontext()
        return torch.autocast(device, DTYPES[self.form.precision])


class _Full(nn.Module):
    """A layer in float32, whatever is around it: two logits that bfloat16 rounds to one would change the answer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            out: Tensor = self.layer(x.float())
        return out


def _full_head(network: Network) -> None:
    body: Any = network.body
    if isinstance(getattr(body, "head", None), nn.Linear | nn.Conv2d) and "head" in dict(body.named_children()):
        body.head = _Full(body.head)


def fold(network: Network, side: int = 32) -> Network:
    """A frozen copy; batch norm that stands behind a convolution is put into its weights, where answers stay the same.

    Which stands behind which is seen in a pass over images of this side, so the network's code need not be traceable;
    whether somebody else reads the convolution's result, in the answers. Both on the CPU: a GPU's convolutions may
    round to TF32. A network that will not have it stays as it is.
    """
    device = next(network.parameters()).device
    whole = deepcopy(network).requires_grad_(False).eval().cpu()
    drawn = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    try:
        built = _folded(whole, drawn)
    except Exception:  # it is somebody's code, which may do anything with a hook or a copy
        built = whole
    return built.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _folded(network: Network, image: Tensor) -> Network:
    pairs = _adjacent(network, image)
    built = _without(network, pairs)
    if not _alike(network, built, image):
        built = _without(network, [pair for pair in pairs if _alike(network, _without(network, [pair]), image)])
    return built if _alike(network, built, image) else network


def _without(network: Network, pairs: Sequence[tuple[str, str]]) -> Network:
    """A copy in which these norms are part of these convolutions."""
    folded = deepcopy(network)
    for one, other in pairs:
        conv, norm = cast(nn.Conv2d, folded.get_submodule(one)), cast(nn.BatchNorm2d, folded.get_submodule(other))
        assert norm.running_mean is not None
        assert norm.running_var is not None
        weight, bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        conv.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
        conv.bias = nn.Parameter(bias, requires_grad=False)
        parent, _, name = other.rpartition(".")
        setattr(folded.get_submodule(parent), name, _after(norm))
    return folded


def _after(norm: nn.BatchNorm2d) -> nn.Module:
    """What is left of a norm without its arithmetic: nothing, or timm's activation."""
    rest = [part for name, part in norm.named_children() if name in ("drop", "act")]
    return nn.Sequential(*rest) if rest else nn.Identity()


def _adjacent(network: Network, image: Tensor) -> list[tuple[str, str]]:
    """Paths of every convolution whose result goes into a batch norm, and of that; both used once."""
    built: dict[int, tuple[nn.Module, Tensor]] = {}  # by identity of the result, which is kept so that it stays its own
    pairs: list[tuple[nn.Module, nn.Module]] = []
    uses: dict[nn.Module, int] = {}

    def note(module: nn.Module, given: tuple[Any, ...], result: Tensor) -> None:
        uses[module] = uses.get(module, 0) + 1
        if isinstance(module, nn.Conv2d):
            built[id(result)] = (module, result)
        elif id(given[0]) in built and module.running_mean is not None:
            pairs.append((built[id(given[0])][0], module))

    kinds = [m for m in network.modules() if type(m) is nn.Conv2d or isinstance(m, nn.BatchNorm2d)]
    handles = [module.register_forward_hook(note) for module in kinds]
    try:
        with torch.no_grad():
            network(image)
    finally:
        for handle in handles:
            handle.remove()
    paths = {module: path for path, module in network.named_modules()}
    return [(paths[conv], paths[norm]) for conv, norm in pairs if uses[conv] == uses[norm] == 1]


@torch.no_grad()
def _alike(one: Network, other: Network, image: Tensor) -> bool:
    first, second = one(image), other(image)
    outputs = [(first.logits, second.logits), (first.embedding, second.embedding)]
    outputs += list(zip(first.stages, second.stages, strict=True))
    return all(float((a - b).abs().max()) <= FOLDED * float(a.std() + 1e-12) for a, b in outputs)


@dataclass(frozen=True)
class Agreement:
    """How near the answers of two forms of one network are."""

    cosine: float  # of embeddings, on average
    argmax: float  # share of rows with the same largest logit

    @property
    def enough(self) -> bool:
        return self.cosine >= COSINE and self.argmax >= ARGMAX

    def __str__(self) -> str:
        return f"cosine {self.cosine:.5f} (at least {COSINE}), same class {self.argmax:.2%} (at least {ARGMAX:.1%})"


SAME = Agreement(1.0, 1.0)


@torch.no_grad()
def agreement(network: Network, frozen: FrozenModel, images: Sequence[Tensor]) -> Agreement:
    """On batches of real images."""
    cosines, same = [], []
    for image in images:
        truth, outputs = network(image), frozen(image)
        cosines.append(F.cosine_similarity(_rows(truth.embedding), _rows(outputs.embedding), dim=1))  # (R,)
        same.append(_rows(truth.logits).argmax(1) == _rows(outputs.logits).argmax(1))  # (R,)
    return Agreement(float(torch.cat(cosines).mean()), float(torch.cat(same).float().mean()))


def _rows(values: Tensor) -> Tensor:
    """(B, D) or maps (B, D, h, w) → (R, D)."""
    return values if values.ndim == 2 else values.movedim(1, -1).flatten(0, -2)


def freeze_all(
    networks: Mapping[str, Network], asked: str, images: Sequence[Tensor], tell: Callable[[str], None], side: int = 32
) -> dict[str, FrozenModel]:
    """Networks in the precision asked for ("auto": the device's own), if all of them give the same answers there.

    images: batches of real ones, on which answers are compared; none when they have been before. side: theirs.
    """
    device = next(next(iter(networks.values())).parameters()).device
    precision = fastest_precision(device) if asked == "auto" else asked
    built = {role: FrozenModel(network, InferenceForm(precision), side) for role, network in networks.items()}
    if precision == "float32":
        return built
    for role, network in networks.items():
        result = agreement(network, built[role], images) if images else SAME
        if result.enough:
            continue
        if asked != "auto":
            raise UserError(
                f"--teacher-precision {asked}: the {role} teacher gives other answers than in float32: {result}; "
                "leave it out or use float32"
            )
        tell(f"teachers stay in float32: in {precision} {role!r} gives other answers, {result}")
        return freeze_all(networks, "float32", (), tell, side)
    return built


def compile_all(
    made: Mapping[str, FrozenModel], image: Tensor, networks: Mapping[str, Network]
) -> dict[str, FrozenModel]:
    """The same networks compiled for batches like this one; of those also given as they were, answers are compared."""
    every: dict[str, FrozenModel] = {}
    for role, frozen in made.items():
        form = replace(frozen.form, compiled=True)
        every[role] = FrozenModel(frozen.network, form, frozen.side, image.shape)
        try:
            every[role](image)
        except Exception as error:  # whatever a compiler may raise
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            raise UserError(
                f"--teacher-compile on: torch cannot compile the {role} teacher here ({reason}); leave it out"
            ) from None
        result = agreement(networks[role], every[role], [image]) if role in networks else SAME
        if not result.enough:
            raise UserError(f"--teacher-compile on: compiled, the {role} teacher gives other answers: {result}")
    return every


def compile_if_faster(
    made: dict[str, FrozenModel],
    image: Tensor,
    networks: Mapping[str, Network],
    batches: int,
    tell: Callable[[str], None],
) -> dict[str, FrozenModel]:
    """The same networks compiled, when a run that asks so many batches of each is long enough and it is faster."""
    first = next(iter(made.values()))
    before = _seconds(first, image, 1)
    if before * batches < WORTH or not has_compiler(image.device):
        return made
    tell(f"teachers: compiling, since {batches:,} batches of about {1000 * before:.0f} ms each are to come")
    try:
        every = compile_all(made, image, networks)
    except UserError as error:
        tell(f"teachers: not compiled ({error})")
        return made
    before, after = _seconds(first, image), _seconds(next(iter(every.values())), image)
    tell(f"teachers: {1000 * before:.0f} ms a batch, compiled {1000 * after:.0f} ms")
    return every if after < FASTER * before else made


def has_compiler(device: torch.device) -> bool:
    """Whether torch.compile finds what it needs for the device."""
    return device.type == "cuda" or any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def _seconds(frozen: FrozenModel, image: Tensor, rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        frozen(image)
        if image.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
