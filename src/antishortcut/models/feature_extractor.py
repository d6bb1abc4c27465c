"""Any classifier or segmentation network → Features: logits, embedding and feature maps.

The first call runs two images and records every submodule. The embedding is the input of the layer that computes the
logits. The stages are the modules in timm's feature_info, whose maps are those of forward_intermediates; in any other
network they are the last map at every resolution. Both are stored as module paths and read by forward hooks that last
one call. So the network's own forward runs, once: all outputs saw the same dropout, and nothing has to be traceable.
"""
# B batch, C classes, D embedding, T tokens, H × W pixels, h × w locations of a map

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antishortcut.errors import UserError, suggest
from antishortcut.types import Features

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)  # which may compute logits
LOGITS = ("logits", "out", "pred", "prediction", "output", "scores")  # usual names in dicts and objects
EMBEDDINGS = ("embedding", "image_embeds", "pooler_output")  # the last two are of transformers
EXPECTED = "expected float logits (batch, classes) or maps of them (batch, classes, h, w), alone, first or as 'logits'"
EMBEDS = "data.options.classes = 0, method features"
BLOCKS = 4  # stages of a plain transformer
PREFIX = 16  # class and register tokens, at most
SAME = 1e-4  # of the largest value: means that are taken in another order


class Call(NamedTuple):
    """The last execution of a submodule in a pass."""

    input: Tensor | None
    output: Tensor | None
    node: Any  # of the autograd graph, as it was when the module returned
    times: int  # how often it was called


class Stage(NamedTuple):
    """An output of a submodule (of a head its input), and how to read it."""

    path: str
    form: str  # nchw, nhwc, tokens (B, T, D) or vector (B, D)
    side: tuple[int, ...] = (1, 1)  # of the map, for the images of the first call
    prefix: int = 0  # class and register tokens before those of the image


class Layout(NamedTuple):
    """What to read in every call."""

    heads: tuple[Stage, ...]  # the layers that compute the logits
    stages: tuple[Stage, ...]
    embedding: Stage | None  # the module that was named as the embedding
    maps: bool  # whether logits and embedding are maps
    last: Stage | None = None  # the map whose mean is the embedding


class FeatureExtractor(nn.Module):
    """Wraps a module that returns logits (or a dict, tuple or object that holds them), so that it returns Features.

    embedding: path of a module whose output is pooled; by default the input of the layer that computes the logits.
    stages: paths of modules; by default chosen as described above.
    classes: the number of logits, which distinguishes them from other tensors. 0: the module only embeds, so what it
        returns is the embedding (of maps their mean), and the logits are empty.
    """

    def __init__(
        self,
        module: nn.Module,
        embedding: str | None = None,
        stages: Sequence[str] | None = None,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        # hooks need the plain module; _orig_mod is torch.compile's, and never there should torch rename it
        while isinstance(module, nn.DataParallel) or hasattr(module, "_orig_mod"):
            module = module.module if isinstance(module, nn.DataParallel) else module._orig_mod  # type: ignore[assignment]
        if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
            raise UserError("layers of a TorchScript module cannot be read; give the nn.Module it was made from")
        self.module = module
        self.embedding = embedding
        self.stages = None if stages is None else tuple(stages)
        self.classes = classes
        self._layout: Layout | None = None
        paths = [path for path, _ in module.named_modules(remove_duplicate=False) if path]
        for path in (embedding, *(stages or ())):
            if path is not None and path not in paths:
                children = ", ".join(name for name, _ in module.named_children())
                raise UserError(f"the network has no module {path!r}{suggest(path, paths, f'; known: {children}')}")

    @property
    def head(self) -> nn.Linear | None:
        """The linear layer that computes the logits; known after the first call."""
        head = self.module.get_submodule(self.heads[0]) if len(self.heads) == 1 else None
        return head if isinstance(head, nn.Linear) else None

    @property
    def heads(self) -> tuple[str, ...]:
        """Paths of the layers that compute the logits; known after the first call."""
        return tuple(head.path for head in self._layout.heads) if self._layout is not None else ()

    @property
    def summary(self) -> str:
        """Where embedding and stages are read; known after the first call."""
        if self._layout is None:
            return "unknown before the first call"
        heads = f"input of {' and '.join(self.heads)}" if self.heads else "as the network returns it"
        stages = ", ".join(stage.path for stage in self._layout.stages) or "none"
        return f"embedding: {self.embedding or heads}; stages: {stages}"

    def forward(self, x: Tensor) -> Features:
        if self._layout is None:
            self._layout = self._find(x[:2])
        layout = self._layout
        sources = [*layout.heads, *layout.stages, *filter(None, (layout.embedding, layout.last))]
        with recorded(self.module, dict.fromkeys(source.path for source in sources)) as calls:
            output = self.module(x)
        head = calls[layout.heads[0].path].output if len(layout.heads) == 1 else None
        logits = self._logits(output, None, head)
        aux = entries(output).get("aux") if layout.maps and self.training else None
        if self.stages is None and isinstance(output, Features):
            stages = output.stages
        elif all(stage.path in calls for stage in layout.stages):
            stages = tuple(to_map(calls[stage.path].output, stage, x) for stage in layout.stages)
        else:
            stages = ()  # stochastic depth skipped one
        embedding = self._embedding(layout, calls, output, x)
        last = output.last if isinstance(output, Features) and layout.embedding is None else None
        if layout.last is not None and layout.last.path in calls:
            last = to_map(calls[layout.last.path].output, layout.last, x)
        return Features(logits if layout.maps else logits.flatten(1), embedding, stages, aux, last)

    def _logits(self, output: Any, batch: int | None, head: Tensor | None = None) -> Tensor:
        """(B, C), or maps; (B, 0) of a module that only embeds."""
        if self.classes != 0:
            return find_logits(output, batch, self.classes, head)
        return returned_embedding(output)[:, :0]

    def _embedding(self, layout: Layout, calls: Mapping[str, Call], output: Any, x: Tensor) -> Tensor:
        """(B, D), or (B, D, h, w) where the logits are maps."""
        if layout.embedding is not None:
            return self._pooled(calls[layout.embedding.path].output, layout.embedding, layout.maps, x)
        returned = entries(output).get("embedding")
        if self.classes == 0:
            return returned_embedding(output)
        if isinstance(returned, Tensor):
            return returned
        inputs = {id(calls[head.path].input): head for head in layout.heads}  # heads may share theirs
        vectors = [self._pooled(calls[head.path].input, head, layout.maps, x) for head in inputs.values()]
        if len(vectors) == 1:
            return vectors[0]
        if layout.maps:
            vectors = [v if v.shape == vectors[0].shape else F.interpolate(v, vectors[0].shape[2:]) for v in vectors]
        return torch.cat(vectors, dim=1)

    def _pooled(self, value: Any, stage: Stage, maps: bool, x: Tensor) -> Tensor:
        """(B, D), or (B, D, h, w) where the logits are maps."""
        if maps:
            return to_map(value, stage, x)
        if stage.form in ("nchw", "nhwc"):
            return to_map(value, stage, x).flatten(2).mean(dim=2)
        result: Tensor = value
        if stage.form == "tokens" and stage.prefix:
            names = {name.rpartition(".")[2] for name, _ in self.module.named_parameters()}
            if names & {"cls_token", "class_token"} and getattr(self.module, "global_pool", "token") == "token":
                return result[:, 0]
            result = result[:, getattr(self.module, "num_prefix_tokens", 0) :]  # timm's number of other tokens
        return result.mean(dim=1) if stage.form == "tokens" else result

    def _find(self, x: Tensor) -> Layout:
        """What to read, by one pass in evaluation mode whose autograd graph leads from the logits to their layer."""
        paths = [path for path, _ in self.module.named_modules(remove_duplicate=False) if path]
        with silent(self.module), torch.inference_mode(False), torch.enable_grad():
            image = x.detach().clone().requires_grad_() * 1.0  # no leaf, so it may be changed in place
            with recorded(self.module, paths) as calls:
                output = self.module(image)
        logits = self._logits(output, len(x))
        returned = self.classes == 0 or isinstance(entries(output).get("embedding"), Tensor)
        heads = () if self.classes == 0 else find_heads(self.module, calls, logits)
        if not heads and not returned and self.embedding is None:
            options = ", ".join(on_the_way(calls, logits)[:6])
            raise UserError(
                "cannot tell where the embedding is; return {'logits': …, 'embedding': …} in forward, or name the "
                f"module whose output it is: --set student.embedding=PATH (candidates: {options or 'none'}; for the "
                "teacher it is teacher.embedding)"
            )
        embedding = None if self.embedding is None else named_output(calls, self.embedding, x, "embedding")
        if self.stages is not None:
            stages = tuple(named_output(calls, path, x, "stages") for path in self.stages)
        else:
            stages = find_stages(self.module, calls, heads, x)
        maps = logits.ndim == 4 and logits.shape[2:] != (1, 1)
        inputs = () if returned else tuple(head_input(self.module, path, calls[path].input) for path in heads)
        layout = Layout(inputs, stages, embedding, maps)
        if maps or x.is_meta or isinstance(output, Features):
            return layout
        return layout._replace(last=find_last(calls, heads, self._embedding(layout, calls, output, x), x))


@contextmanager
def recorded(module: nn.Module, paths: Iterable[str]) -> Iterator[dict[str, Call]]:
    """The calls of these submodules by path, in the order in which they return."""
    calls: dict[str, Call] = {}

    def hook_for(path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            inputs, result = first_tensor((*args, *kwargs.values())), first_tensor(output)
            times = calls.pop(path).times + 1 if path in calls else 1
            calls[path] = Call(inputs, result, None if result is None else result.grad_fn, times)

        return hook

    handles = []
    try:
        for path in paths:
            handles.append(module.get_submodule(path).register_forward_hook(hook_for(path), with_kwargs=True))
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def silent(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every submodule gets its own mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode
        torch.clear_autocast_cache()  # older torch would reuse casts made here, which carry no gradient


def entries(output: Any) -> dict[str, Any]:
    """What a network returns, by name; items of a tuple are numbered, a lone tensor has the name ''."""
    if isinstance(output, Tensor):
        return {"": output}
    if isinstance(output, Mapping):
        return {str(key): value for key, value in output.items()}
    if isinstance(output, tuple | list):
        return dict(zip(getattr(output, "_fields", map(str, range(len(output)))), output, strict=True))
    return dict(getattr(output, "__dict__", {}))


def first_tensor(output: Any) -> Tensor | None:
    values = entries(output)
    return next((values[k] for k in (*LOGITS, *values) if isinstance(values.get(k), Tensor)), None)


def find_logits(output: Any, batch: int | None, classes: int | None, head: Tensor | None = None) -> Tensor:
    """Logits (B, C) or (B, C, h, w): the output of the head, those under a usual name, or the first that fits."""
    values = {name: value for name, value in entries(output).items() if isinstance(value, Tensor)}
    floats = {
        name: value
        for name, value in values.items()
        if value.ndim in (2, 4) and value.is_floating_point() and batch in (None, value.shape[0])
    }
    fitting = {name: value for name, value in floats.items() if classes in (None, value.shape[1])}
    for value in fitting.values():
        if value is head:
            return value
    for name in (*LOGITS, *(name for name in fitting if name not in ("aux", "embedding")), *fitting):
        if name in fitting:
            return fitting[name]
    if len(values) == 1 and floats:
        (value,) = floats.values()
        counts = f"{value.shape[1]} logits, but there are {classes} classes"
        raise UserError(
            f"the network returns {counts}; let its factory take num_classes and use it, "
            f"or give it a classifier with {classes} outputs, or learn its embedding: {EMBEDS}"
        )
    shapes = ", ".join(f"{k} {tuple(v.shape)} {str(v.dtype).removeprefix('torch.')}".strip() for k, v in values.items())
    columns = f", none of them with {classes} columns" if len(values) > 1 and classes is not None else ""
    advice = f"; of a network that only embeds: {EMBEDS}" if columns else ""
    raise UserError(f"the network returns {shapes or type(output).__name__}{columns}; {EXPECTED}{advice}")


def returned_embedding(output: Any) -> Tensor:
    """What a module without a classifier returns: under a usual name, or the first vector or map, or tokens. (B, D)"""
    values = {name: value for name, value in entries(output).items() if isinstance(value, Tensor)}
    floats = {name: value for name, value in values.items() if value.is_floating_point() and 0 not in value.shape}
    for sizes in ((2, 4), (3,)):
        for name in (*EMBEDDINGS, *LOGITS, *floats):
            if name in floats and floats[name].ndim in sizes:
                value = floats[name]
                return value if value.ndim == 2 else value.mean(dim=1 if value.ndim == 3 else (2, 3))
    shapes = ", ".join(f"{tuple(value.shape)} {value.dtype}" for value in values.values()) or type(output).__name__
    expected = "expected an embedding (batch, width) or a map of it, alone, first or as 'embedding'"
    raise UserError(f"the network returns {shapes.replace('torch.', '')} without a classifier; {expected}")


def count_logits(module: nn.Module, image: Tensor) -> int:
    """For how many classes a network's outputs are, whatever it was told; 0 if it only embeds.

    Logits have a usual name, or leave a linear layer or a convolution under no embedding's name.
    """
    paths = [path for path, part in module.named_modules() if isinstance(part, LAYERS)]
    with silent(module), recorded(module, paths) as calls:
        output = module(image)
    layers = {call.output.data_ptr() for call in calls.values() if call.output is not None}
    counts = {
        name: value.shape[1]
        for name, value in entries(output).items()
        if isinstance(value, Tensor) and value.ndim in (2, 4) and (name in LOGITS or value.data_ptr() in layers)
    }
    count = next((counts[name] for name in (*LOGITS, *counts) if name in counts and "embed" not in name), 0)
    known = getattr(module, "pretrained_cfg", None) or {}  # timm's, whose image towers end in CLIP's projection
    tower = "clip" in known.get("architecture", "") and "ft_" not in known.get("tag", "")
    return 0 if tower and count == known.get("num_classes") else count


def find_heads(module: nn.Module, calls: Mapping[str, Call], logits: Tensor) -> tuple[str, ...]:
    """The layers that compute the logits: the first ones met on the way back through the autograd graph.

    None if one of them has another width than the logits, as before a product with a matrix, or is used several times.
    """
    layers: dict[Any, str] = {}
    for path, call in calls.items():
        part = module.get_submodule(path)
        if call.input is None or call.output is None:
            continue
        if call.output is logits and isinstance(part, LAYERS) and call.times == 1:
            return (path,)
        own = not any(True for _ in part.children()) and any(True for _ in part.parameters())  # a user's own layer
        if isinstance(part, LAYERS) or (own and call.input.shape != call.output.shape):
            layers.setdefault(call.node, path)
    heads: list[str] = []
    visited, ahead = set[Any](), [logits.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node in layers:
            heads.append(layers[node])
        else:
            ahead += [before for before, _ in node.next_functions]
    for path in heads:
        output: Any = calls[path].output
        width = output.shape[-1 if isinstance(module.get_submodule(path), nn.Linear) else 1]
        if width != logits.shape[1] or calls[path].times > 1:
            return ()
    return tuple(sorted(heads))


def on_the_way(calls: Mapping[str, Call], logits: Tensor) -> list[str]:
    """Modules that may give the embedding, the last first: the logits depend on them, and they are no logits."""
    visited, ahead = set[Any](), [logits.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in visited:
            visited.add(node)
            ahead += [before for before, _ in node.next_functions]
    shape, known = logits.shape, logits.grad_fn is not None  # without a graph, any may be it
    return [
        path
        for path, (_, y, node, _) in reversed([*calls.items()])
        if y is not None and y.ndim > 1 and len(y) == shape[0] and y.shape != shape and (node in visited or not known)
    ]


def head_input(module: nn.Module, path: str, value: Any) -> Stage:
    """How to read the input of a layer that computes the logits."""
    channels_last = isinstance(module.get_submodule(path), nn.Linear)
    forms = {2: "vector", 3: "tokens"} if channels_last else {2: "vector"}
    return Stage(path, forms.get(value.ndim, "nhwc" if channels_last else "nchw"))


def find_stages(module: nn.Module, calls: Mapping[str, Call], heads: Sequence[str], x: Tensor) -> tuple[Stage, ...]:
    """One map for every resolution, shallow to deep; of a plain transformer outputs of evenly spaced blocks.

    Left out are modules that only prepare the image, what follows the classifier, and maps of one pixel.
    """
    paths = list(calls)
    first = next((i for i, path in enumerate(paths) if any(True for _ in module.get_submodule(path).parameters())), 0)
    end = min((paths.index(path) for path in heads), default=len(paths))
    outputs = (as_stage(path, calls[path].output, x) for path in paths[first:end])
    stages = [stage for stage in outputs if stage is not None and min(stage.side) > 1]
    info = getattr(module, "feature_info", None)  # timm's list of its stages or blocks
    names = [entry["module"] for entry in info] if isinstance(info, list) else []
    maps = blocks = [stage for stage in stages if stage.path in names]
    if not maps:
        maps, blocks = narrowing_maps(module, stages), transformer_blocks(module, stages)
    last = {stage.side: stage for stage in maps}
    if len(last) < 2 and blocks:
        count = min(BLOCKS, len(blocks))
        return tuple(blocks[len(blocks) * (i + 1) // count - 1] for i in range(count))
    return tuple(sorted(last.values(), key=lambda stage: math.prod(stage.side), reverse=True))


def find_last(calls: Mapping[str, Call], heads: Sequence[str], embedding: Tensor, x: Tensor) -> Stage | None:
    """The last map before the heads whose mean over its locations is the embedding (B, D); None if there is none."""
    paths, scale = list(calls), embedding.abs().max()
    end = min((paths.index(path) for path in heads), default=len(paths))
    for path in reversed(paths[:end]):
        stage = as_stage(path, calls[path].output, x)
        if stage is None or min(stage.side) < 2:
            continue
        mean = to_map(calls[path].output, stage, x).mean(dim=(2, 3))  # (B, channels)
        if mean.shape == embedding.shape and scale > 0 and (mean - embedding).abs().max() <= SAME * scale:
            return stage
    return None


def narrowing_maps(module: nn.Module, stages: Iterable[Stage]) -> list[Stage]:
    """Maps that do not grow, which would be a late branch or a decoder; those of the outermost modules come last.

    A block's output is preferred to what it computes on its way, like the 1 × 1 convolution before a strided one.
    """
    levels: list[tuple[int, Stage]] = []
    for stage in stages:
        words = stage.path.split(".")
        outer = [module.get_submodule(".".join(words[:end])) for end in range(1, len(words))]
        level = sum(not isinstance(part, nn.Sequential | nn.ModuleList) for part in outer)
        grows = any(at <= level and math.prod(before.side) < math.prod(stage.side) for at, before in levels)
        if stage.form != "tokens" and not grows:
            levels.append((level, stage))
    return [stage for _, stage in sorted(levels, key=lambda pair: -pair[0])]


def transformer_blocks(module: nn.Module, stages: Iterable[Stage]) -> list[Stage]:
    """Outputs of the longest of the outermost lists of blocks."""
    stacks: dict[str, list[Stage]] = {}
    for stage in stages:
        parent = stage.path.rpartition(".")[0]
        listed = isinstance(module.get_submodule(parent), nn.Sequential | nn.ModuleList)
        if stage.form == "tokens" and listed and any(True for _ in module.get_submodule(stage.path).children()):
            stacks.setdefault(parent, []).append(stage)
    return max(stacks.values(), key=lambda stack: (-stack[0].path.count("."), len(stack)), default=[])


def named_output(calls: Mapping[str, Call], path: str, x: Tensor, what: str) -> Stage:
    """The module that was named as the embedding or a stage."""
    value = calls[path].output if path in calls else None
    stage = as_stage(path, value, x)
    if stage is not None:
        return stage
    if what == "embedding" and value is not None and value.ndim in (2, 3, 4):
        return Stage(path, {2: "vector", 3: "tokens", 4: "nchw"}[value.ndim])
    kind = "vector, map or tokens" if what == "embedding" else "map (B, C, H, W) or tokens (B, T, C)"
    outputs = (as_stage(path, call.output, x) for path, call in calls.items())
    maps = [stage.path for stage in outputs if stage is not None and min(stage.side) > 1]
    raise UserError(f"{path!r} gives no {kind}; name another: {what} = … (maps: {', '.join(maps[-6:]) or 'none'})")


def as_stage(path: str, value: Tensor | None, x: Tensor) -> Stage | None:
    """How to read an output as a map in the image's proportions, up to rounding; None if it is none."""
    if value is None or value.ndim not in (3, 4) or len(value) != len(x) or not value.is_floating_point():
        return None
    height, width = x.shape[2:]
    options = [Stage(path, "nchw", tuple(value.shape[2:])), Stage(path, "nhwc", tuple(value.shape[1:3]))]
    if value.ndim == 3:
        tokens = range(value.shape[1], max(value.shape[1] - PREFIX, 0), -1)
        options = [Stage(path, "tokens", grid_side(count, x), value.shape[1] - count) for count in tokens]
    for stage in options:
        if min(stage.side) > 0 and abs(stage.side[0] * width - stage.side[1] * height) < max(height, width):
            return stage
    return None


def to_map(value: Any, stage: Stage, x: Tensor) -> Tensor:
    """An output as a map (B, C, h, w)."""
    if stage.form == "tokens":
        tokens = value[:, stage.prefix :]
        value = tokens.transpose(1, 2).unflatten(2, grid_side(tokens.shape[1], x))  # len() would fix an export's batch
    result: Tensor = value.permute(0, 3, 1, 2) if stage.form == "nhwc" else value
    return result


def grid_side(tokens: int, x: Tensor) -> tuple[int, int]:
    """Height and width of a grid of that many tokens in the image's proportions; zeros if there is none."""
    height = round(math.sqrt(tokens * x.shape[2] / x.shape[3]))
    return (0, 0) if height == 0 or tokens % height else (height, tokens // height)
