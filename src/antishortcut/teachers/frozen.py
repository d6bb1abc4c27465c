"""A frozen network in the form in which its device computes fastest: precision, fused batch norm, compiled or not.

The form is chosen once, written to run.json, and kept when a run resumes. Whatever the form, its outputs are compared
with those of the original network before anything learns from them.
"""
# B batch, R rows (images, or locations of maps), C classes, D embedding

import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from antishortcut.errors import UserError, first_line
from antishortcut.models import Network
from antishortcut.models.layers import StridedDepthwiseConv2d
from antishortcut.models.wrapper import hooks
from antishortcut.types import Features

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# How near the outputs of a form must be to float32's, by what losses see of them
MIN_COSINE = 0.999  # of embeddings, mean
MAX_KL = 0.01  # of softened predictions, as a share of what they tell about a row: their KL from the mean prediction
MIN_SAME_CLASS = 0.995  # share of confident rows with the same largest logit; a near tie may fall either way
TINY = 1e-9  # information of a network that gives every row the same prediction
SOFT, CONFIDENT = 4.0, 0.1  # temperature of those predictions; lead in probability of a confident row's class
MAX_FUSION_ERROR = 1e-3  # largest difference that fusing batch norm may make, in standard deviations of the output
WORTH_COMPILING = 1800.0  # seconds of teacher passes in a run: compiling takes a minute or two itself
FASTER = 0.95  # of the time uncompiled, below which a compiled form is used


@dataclass(frozen=True)
class InferenceForm:
    precision: str  # one of DTYPES
    compiled: bool = False

    def __str__(self) -> str:
        return self.precision + ", compiled" * self.compiled


def fastest_precision(device: torch.device) -> str:
    """The precision that the device has instructions for; emulated bfloat16 is slower than float32.

    ANTISHORTCUT_NATIVE sets it for machines that differ and should compute alike.
    """
    if precision := os.environ.get("ANTISHORTCUT_NATIVE"):
        if precision not in DTYPES:
            raise UserError(f"ANTISHORTCUT_NATIVE={precision}: one of {', '.join(DTYPES)}")
        return precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # private names, which torch may drop
    native = device.type == "cpu" and any(getattr(torch.cpu, name, lambda: False)() for name in names)
    return "bfloat16" if native else "float32"


class FrozenModel(nn.Module):
    """Raw images in, Features out, without gradient; logits and embeddings in float32, stages as they come.

    side: of the images. shape: of the batches that a compiled form is made for; others take the uncompiled way, so that
    a batch's outputs do not depend on the batches before it.
    """

    def __init__(self, network: Network, form: InferenceForm, side: int = 32, shape: torch.Size | None = None) -> None:
        super().__init__()
        self.network = fuse_batch_norm(network, side)
        self.form, self.side, self.shape = form, side, shape
        self._compiled: Callable[[Tensor], Features] | None = None
        body: Any = self.network.body
        head = dict(body.named_children()).get("head")
        if form.precision != "float32" and isinstance(head, nn.Linear | nn.Conv2d):
            body.head = _Float32Layer(head)

    @property
    def head(self) -> nn.Linear | None:
        """As of the network."""
        head = getattr(self.network.body, "head", None)
        return cast(nn.Linear, head.layer) if isinstance(head, _Float32Layer) else self.network.head

    @torch.no_grad()
    def forward(self, image: Tensor) -> Features:
        reduced = self.form.precision != "float32"
        with torch.autocast(image.device.type, DTYPES[self.form.precision] if reduced else None, enabled=reduced):
            outputs = self._forward(image)
        return replace(outputs, logits=outputs.logits.float(), embedding=outputs.embedding.float())

    def _forward(self, image: Tensor) -> Features:
        if not self.form.compiled or image.shape != self.shape:
            return cast(Features, self.network(image))
        if self._compiled is None:
            compiled = torch.compile(self.network, dynamic=False, options={"freezing": True})
            self._compiled = cast("Callable[[Tensor], Features]", compiled)
        return self._compiled(image)


class _Float32Layer(nn.Module):
    """A layer in float32 under autocast: two logits that bfloat16 rounds to one value would change the prediction."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return cast(Tensor, self.layer(x.float()))


def fuse_batch_norm(network: Network, side: int = 32) -> Network:
    """A frozen copy with every batch norm behind a convolution fused into its weights, where outputs stay the same.

    Which norm follows which convolution is seen in a forward pass, so the network need not be traceable. It runs on the
    CPU: a GPU's convolutions may round to TF32. A network that cannot be fused stays as it is.
    """
    device = next(network.parameters()).device
    whole = deepcopy(network).requires_grad_(False).eval().cpu()
    image = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    try:
        pairs = _conv_norm_pairs(whole, image)
        fused = _fused(whole, pairs)
        if not _same_outputs(whole, fused, image):  # someone else reads a convolution's result: fuse one by one
            fused = _fused(whole, [pair for pair in pairs if _same_outputs(whole, _fused(whole, [pair]), image)])
        if not _same_outputs(whole, fused, image):
            fused = whole
    except Exception:  # user code may do anything with a hook or a copy
        fused = whole
    return fused.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _fused(network: Network, pairs: Sequence[tuple[str, str]]) -> Network:
    """A copy in which these norms are part of these convolutions."""
    fused = deepcopy(network)
    for conv_path, norm_path in pairs:
        conv, norm = (cast(Any, fused.get_submodule(path)) for path in (conv_path, norm_path))
        moments = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
        weight, bias = fuse_conv_bn_weights(conv.weight, conv.bias, *moments)
        conv.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
        conv.bias = nn.Parameter(bias, requires_grad=False)
        rest = [child for name, child in norm.named_children() if name in ("drop", "act")]  # of timm's BatchNormAct2d
        parent, _, name = norm_path.rpartition(".")
        setattr(fused.get_submodule(parent), name, nn.Sequential(*rest) if rest else nn.Identity())
    return fused


def _conv_norm_pairs(network: Network, image: Tensor) -> list[tuple[str, str]]:
    """Paths of every convolution whose output goes into a batch norm, and of that norm; both used once."""
    outputs: dict[int, tuple[nn.Module, Tensor]] = {}  # by id of the output, which is kept so that its id stays unique
    pairs: list[tuple[nn.Module, nn.Module]] = []
    uses: dict[nn.Module, int] = {}

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        uses[module] = uses.get(module, 0) + 1
        if isinstance(module, nn.Conv2d):
            outputs[id(output)] = (module, output)
        elif id(inputs[0]) in outputs and module.running_mean is not None:
            pairs.append((outputs[id(inputs[0])][0], module))

    convolutions = (nn.Conv2d, StridedDepthwiseConv2d)  # not those of others, which may change their weights first
    layers = [m for m in network.modules() if type(m) in convolutions or isinstance(m, nn.BatchNorm2d)]
    with hooks(module.register_forward_hook(hook) for module in layers), torch.no_grad():
        network(image)
    paths = {module: path for path, module in network.named_modules()}
    return [(paths[conv], paths[norm]) for conv, norm in pairs if uses[conv] == uses[norm] == 1]


@torch.no_grad()
def _same_outputs(one: Network, other: Network, image: Tensor) -> bool:
    first, second = one(image), other(image)
    pairs = [(first.logits, second.logits), (first.embedding, second.embedding)]
    pairs = [(a, b) for a, b in pairs if a.numel()]  # a network without a classifier has no logits
    pairs += list(zip(first.stages, second.stages, strict=True))
    if first.last is not None and second.last is not None:
        pairs.append((first.last, second.last))
    return all(float((a - b).abs().max()) <= MAX_FUSION_ERROR * float(a.std() + 1e-12) for a, b in pairs)


@dataclass(frozen=True)
class Agreement:
    """How close the outputs of two forms of one network are."""

    cosine: float = 1.0  # of embeddings, mean
    kl: float = 0.0  # of softened predictions, as a share of their information
    same_class: float = 1.0  # share of confident rows with the same largest logit

    @property
    def enough(self) -> bool:
        return self.cosine >= MIN_COSINE and self.kl <= MAX_KL and self.same_class >= MIN_SAME_CLASS

    def __str__(self) -> str:
        return (
            f"cosine {self.cosine:.5f} (at least {MIN_COSINE}), KL {self.kl:.2%} (at most {MAX_KL:.0%}), "
            f"same class if confident {self.same_class:.2%} (at least {MIN_SAME_CLASS:.1%})"
        )


@torch.no_grad()
def agreement(network: Network, frozen: FrozenModel, images: Sequence[Tensor]) -> Agreement:
    """On batches of real images; full agreement without any."""
    if not images:
        return Agreement()
    pairs = [(network(image), frozen(image)) for image in images]
    embedding, other = (torch.cat([_rows(pair[at].embedding) for pair in pairs]).float() for at in (0, 1))  # (R, D)
    cosine = float(F.cosine_similarity(embedding, other, dim=1).mean())
    logits, others = (torch.cat([_rows(pair[at].logits) for pair in pairs]).double() for at in (0, 1))  # (R, C)
    if logits.shape[1] < 2:  # no classifier
        return Agreement(cosine)
    soft, form = (F.log_softmax(rows / SOFT, dim=1) for rows in (logits, others))  # (R, C)
    mean = soft.exp().mean(dim=0).log()  # (C,)
    differs, tells = (float((soft.exp() * (soft - rows)).sum(dim=1).mean()) for rows in (form, mean))
    top = logits.softmax(dim=1).topk(2, dim=1).values  # (R, 2)
    same = (logits.argmax(dim=1) == others.argmax(dim=1))[top[:, 0] - top[:, 1] >= CONFIDENT]
    return Agreement(cosine, differs / max(tells, TINY), float(same.double().mean()) if len(same) else 1.0)


def _rows(values: Tensor) -> Tensor:
    """(B, D) or maps (B, D, h, w) → (R, D)."""
    return values if values.ndim == 2 else values.movedim(1, -1).flatten(0, -2)


def freeze_all(
    networks: dict[str, Network],
    precision: str,
    judge: Callable[[str, FrozenModel], Agreement],
    say: Callable[[str], None],
    side: int = 32,
) -> dict[str, FrozenModel]:
    """Networks in this precision ("auto": the device's own), if all of them give the same outputs in it.

    judge: how near a role's form is to float32; not called when that is the precision. side: of the images.
    """
    device = next(next(iter(networks.values())).parameters()).device
    chosen = fastest_precision(device) if precision == "auto" else precision
    frozen = {role: FrozenModel(network, InferenceForm(chosen), side) for role, network in networks.items()}
    for role in networks if chosen != "float32" else ():
        result = judge(role, frozen[role])
        if result.enough:
            continue
        if precision != "auto":
            problem = f"the {role} teacher's outputs differ from float32: {result}"
            raise UserError(f"--teacher-precision {precision}: {problem}; leave it out or use float32")
        say(f"teachers stay in float32: in {chosen} the outputs of {role!r} differ, {result}")
        return freeze_all(networks, "float32", judge, say, side)
    return frozen


def compile_all(frozen: dict[str, FrozenModel], image: Tensor, networks: dict[str, Network]) -> dict[str, FrozenModel]:
    """The same models compiled for batches like this one, and compared with `networks`, the originals, by role."""
    compiled: dict[str, FrozenModel] = {}
    for role, model in frozen.items():
        form = replace(model.form, compiled=True)
        compiled[role] = FrozenModel(model.network, form, model.side, image.shape)
        try:
            compiled[role](image)
        except Exception as error:  # a compiler may raise anything
            reason = f"{type(error).__name__}: {first_line(error)[:200]}"
            raise UserError(f"--teacher-compile on: torch cannot compile the {role} teacher ({reason})") from None
        result = agreement(networks[role], compiled[role], [image]) if role in networks else Agreement()
        if not result.enough:
            raise UserError(f"--teacher-compile on: compiled, the {role} teacher's outputs differ: {result}")
    return compiled


def compile_if_faster(
    frozen: dict[str, FrozenModel],
    image: Tensor,
    networks: dict[str, Network],
    batches: int,
    say: Callable[[str], None],
    known: dict[str, bool] | None = None,
) -> dict[str, FrozenModel]:
    """The same models compiled, if a run of so many batches is long enough and compiling makes it faster.

    known: whether it does, by batch shape; what is measured here is added.
    """
    known, shape = {} if known is None else known, "x".join(map(str, image.shape))
    first = next(iter(frozen.values()))
    before = _seconds(first, image, 1)
    if known.get(shape) is False or before * batches < WORTH_COMPILING or not has_compiler(image.device):
        return frozen
    say(f"teachers: compiling, for {batches:,} batches of about {1000 * before:.0f} ms each")
    try:
        compiled = compile_all(frozen, image, networks)
    except UserError as error:
        say(f"teachers: not compiled ({error})")
        return frozen
    if shape not in known:
        before, after = _seconds(first, image), _seconds(next(iter(compiled.values())), image)
        say(f"teachers: {1000 * before:.0f} ms a batch, compiled {1000 * after:.0f} ms")
        known[shape] = after < FASTER * before
    return compiled if known[shape] else frozen


def has_compiler(device: torch.device) -> bool:
    """Whether torch.compile finds what it needs for the device."""
    return device.type == "cuda" or any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def _seconds(model: FrozenModel, image: Tensor, rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        model(image)
        if image.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
