"""Any classifier or segmentation network → Features: logits, embedding and feature maps.

The first call runs two images and records every submodule once. The embedding is the input of the layer that computes
the logits; the stages are the last feature map at every resolution, or outputs of evenly spaced transformer blocks.
Both are stored as module paths and read by forward hooks that last one call, so deep copies and state_dicts stay plain.
"""
# B batch, C classes, D embedding, T tokens, H × W pixels, h × w locations of a map

from __future__ import annotations

import math
from collections import Counter
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
EXPECTED = "expected float logits (batch, classes) or maps of them (batch, classes, h, w), alone, first or as 'logits'"
BLOCKS = 4  # stages of a plain transformer
PREFIX = 16  # class and register tokens, at most

Side = tuple[int, int]


class Call(NamedTuple):
    """One execution of a submodule."""

    path: str
    turn: int  # 0 for its first execution in this pass
    input: Tensor | None
    output: Tensor | None
    node: Any  # of the autograd graph, as it was when the module returned


class Stage(NamedTuple):
    """An output of a submodule, and how to read it as a map."""

    path: str
    turn: int
    form: str  # nchw, nhwc, or tokens
    prefix: int = 0  # class and register tokens before those of the image


class Layout(NamedTuple):
    """What to read in every call."""

    heads: tuple[tuple[str, int], ...]  # path and turn of the layers that compute the logits
    stages: tuple[Stage, ...]
    embedding: Stage | None  # the module that was named as the embedding
    maps: bool  # whether logits and embedding are maps


class FeatureExtractor(nn.Module):
    """Wraps a module that returns logits (or a dict, tuple or object that holds them), so that it returns Features.

    embedding: path of a module whose output is pooled; by default the input of the layer that computes the logits.
    stages: paths of modules; by default found as described above.
    classes: the number of logits, which distinguishes them from other tensors.
    """

    def __init__(
        self,
        module: nn.Module,
        embedding: str | None = None,
        stages: Sequence[str] | None = None,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        while isinstance(module, nn.DataParallel) or hasattr(module, "_orig_mod"):  # hooks need the plain module
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
                hint = suggest(path, paths)
                if not hint.startswith("; did"):  # nothing is near: list the outermost modules only
                    hint = suggest(path, [name for name, _ in module.named_children()])
                raise UserError(f"the network has no module {path!r}{hint}")

    @property
    def head(self) -> nn.Linear | None:
        """The linear layer that computes the logits; known after the first call."""
        head = self.module.get_submodule(self.heads[0]) if len(self.heads) == 1 else None
        return head if isinstance(head, nn.Linear) else None

    @property
    def heads(self) -> tuple[str, ...]:
        """Paths of the layers that compute the logits; known after the first call."""
        return tuple(dict.fromkeys(path for path, _ in self._layout.heads)) if self._layout is not None else ()

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
        named = () if layout.embedding is None else (layout.embedding,)
        paths = dict.fromkeys([*self.heads, *(stage.path for stage in (*layout.stages, *named))])
        with recorded(self.module, paths) as calls:
            output = self.module(x)
        by_key = {call[:2]: call for call in calls}
        heads = [by_key[key] for key in layout.heads if key in by_key]
        logits = find_logits(output, None, self.classes, heads[0].output if len(heads) == 1 else None)
        aux = entries(output).get("aux") if layout.maps and self.training else None
        if self.stages is None and isinstance(output, Features):
            stages = output.stages
        else:
            stages = tuple(
                to_map(call.output, stage, x)
                for stage in layout.stages
                if (call := by_key.get(stage[:2])) is not None and call.output is not None
            )
            stages = stages if len(stages) == len(layout.stages) else ()  # stochastic depth skipped one
        embedding = self._embedding(layout, by_key, heads, output, x)
        return Features(logits if layout.maps else logits.flatten(1), embedding, stages, aux)

    def _embedding(
        self, layout: Layout, by_key: Mapping[tuple[str, int], Call], heads: list[Call], output: Any, x: Tensor
    ) -> Tensor:
        if (named := layout.embedding) is not None:
            call = by_key.get(named[:2])
            if call is None or call.output is None:
                raise UserError(f"{named.path!r} was not called, so it is no embedding; name another: embedding = …")
            return self._pooled(call.output, named, layout.maps, x)
        returned = entries(output).get("embedding")
        if isinstance(returned, Tensor):
            return returned
        inputs = {id(call.input): self._head_input(call, layout.maps, x) for call in heads}  # heads may share theirs
        vectors = list(inputs.values())
        if len(vectors) < 2:
            return vectors[0]
        if layout.maps:
            vectors = [v if v.shape == vectors[0].shape else F.interpolate(v, vectors[0].shape[2:]) for v in vectors]
        repeated = len(self.heads) == 1  # one layer that was called several times
        return torch.stack(vectors).mean(dim=0) if repeated else torch.cat(vectors, dim=1)

    def _head_input(self, call: Call, maps: bool, x: Tensor) -> Tensor:
        """The input of a head as (B, D), or (B, D, h, w) where the logits are maps."""
        value = call.input
        assert value is not None
        channels_last = isinstance(self.module.get_submodule(call.path), nn.Linear)
        if maps:
            if value.ndim == 3:
                return to_grid(value, x)
            return value.permute(0, 3, 1, 2) if channels_last else value
        if value.ndim == 2:
            return value
        return value.flatten(1, -2).mean(dim=1) if channels_last else value.flatten(2).mean(dim=2)  # (B, D)

    def _pooled(self, value: Tensor, named: Stage, maps: bool, x: Tensor) -> Tensor:
        """The output of the named module as (B, D), or (B, D, h, w) where the logits are maps."""
        if maps or value.ndim == 4:
            grid = to_map(value, named, x)
            return grid if maps else grid.mean(dim=(2, 3))
        if value.ndim == 2:
            return value
        names = {name.rpartition(".")[2] for name, _ in self.module.named_parameters()}
        if names & {"cls_token", "class_token"} and getattr(self.module, "global_pool", "token") == "token":
            return value[:, 0]
        return value[:, getattr(self.module, "num_prefix_tokens", 0) :].mean(dim=1)  # timm's number of other tokens

    def _find(self, x: Tensor) -> Layout:
        """What to read, by one pass in evaluation mode whose autograd graph leads from the logits to their layer."""
        named = [path for path in (self.embedding, *(self.stages or ())) if path is not None]
        every = [path for path, _ in self.module.named_modules() if path]
        with silent(self.module), torch.inference_mode(False), torch.enable_grad():
            image = x.detach().clone().requires_grad_() * 1.0  # no leaf, so it may be changed in place
            with recorded(self.module, dict.fromkeys([*every, *named])) as calls:
                output = self.module(image)
        logits = find_logits(output, len(x), self.classes)
        returned = isinstance(entries(output).get("embedding"), Tensor)
        heads = find_heads(self.module, calls, logits)
        if not heads and not returned and self.embedding is None:
            outputs = [c.path for c in calls if c.output is not None and c.output.ndim > 1 and len(c.output) == len(x)]
            options = ", ".join(list(dict.fromkeys(reversed(outputs)))[:6])
            raise UserError(
                "cannot tell which layer's input is the embedding; name a module: embedding = … "
                f"(candidates: {options or 'none'}), or return {{'logits': …, 'embedding': …}}"
            )
        keys = {call[:2] for call in heads}
        embedding = None if self.embedding is None else named_output(calls, self.embedding, x, "embedding")
        if self.stages is not None:
            stages = tuple(named_output(calls, path, x, "stages") for path in self.stages)
        else:
            end = next((i for i, call in enumerate(calls) if call[:2] in keys), len(calls))  # no maps of logits
            learns = (
                i for i, c in enumerate(calls) if any(True for _ in self.module.get_submodule(c.path).parameters())
            )
            stages = find_stages(self.module, calls[next(learns, 0) : end], x)  # nor the image, normalised or resized
        maps = logits.ndim == 4 and logits.shape[2:] != (1, 1)
        return Layout(() if returned else tuple(sorted(keys)), stages, embedding, maps)


@contextmanager
def recorded(module: nn.Module, paths: Iterable[str]) -> Iterator[list[Call]]:
    """The calls of these submodules, in the order in which they return."""
    calls: list[Call] = []
    turns: Counter[str] = Counter()

    def hook_for(path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            inputs, result = first_tensor((*args, *kwargs.values())), first_tensor(output)
            calls.append(Call(path, turns[path], inputs, result, None if result is None else result.grad_fn))
            turns[path] += 1

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
        raise UserError(
            f"the network returns {value.shape[1]} logits, but there are {classes} classes; "
            "let its factory take num_classes and use it"
        )
    shapes = ", ".join(f"{k} {tuple(v.shape)} {str(v.dtype).removeprefix('torch.')}".strip() for k, v in values.items())
    columns = f", none of them with {classes} columns" if len(values) > 1 and classes is not None else ""
    raise UserError(f"the network returns {shapes or type(output).__name__}{columns}; {EXPECTED}")


def find_heads(module: nn.Module, calls: Sequence[Call], logits: Tensor) -> list[Call]:
    """The layers that compute the logits: the first ones met on the way back through the autograd graph.

    None if one of them has another width than the logits, as before a product with a matrix.
    """
    layers: dict[Any, Call] = {}
    for call in calls:
        part = module.get_submodule(call.path)
        if call.input is None or call.output is None:
            continue
        if call.output is logits and isinstance(part, LAYERS) and call.node is None:  # under torch.no_grad
            return [call]
        own = not any(True for _ in part.children()) and any(True for _ in part.parameters())  # a user's own layer
        if isinstance(part, LAYERS) or (own and call.input.shape != call.output.shape):
            layers.setdefault(call.node, call)
    heads: list[Call] = []
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
    for call in heads:
        assert call.output is not None
        if call.output.shape[-1 if isinstance(module.get_submodule(call.path), nn.Linear) else 1] != logits.shape[1]:
            return []
    return heads


def named_output(calls: Sequence[Call], path: str, x: Tensor, what: str) -> Stage:
    """The module that was named as the embedding or a stage."""
    call = next((call for call in reversed(calls) if call.path == path), None)
    value = None if call is None else call.output
    if call is not None and value is not None and value.is_floating_point():
        if (form := map_form(value, x, smallest=1)) is not None:
            return Stage(path, call.turn, form)
        if value.ndim == 3 and (prefix := token_prefix(value, x)) is not None:
            return Stage(path, call.turn, "tokens", prefix)
        if value.ndim in (2, 3, 4) and what == "embedding":
            return Stage(path, call.turn, "nchw")
    kind = "vector, map or tokens" if what == "embedding" else "map (B, C, H, W) or tokens (B, T, C)"
    maps = dict.fromkeys(c.path for c in calls if c.output is not None and map_form(c.output, x) is not None)
    raise UserError(f"{path!r} gives no {kind}; name another: {what} = … (maps: {', '.join([*maps][-6:]) or 'none'})")


def map_form(value: Tensor, x: Tensor, smallest: int = 2) -> str | None:
    """nchw or nhwc, if it is a map with the image's proportions, up to rounding; 1 × 1 is a vector."""
    if value.ndim != 4 or len(value) != len(x) or not value.is_floating_point():
        return None
    for form, (height, width) in (("nchw", value.shape[2:]), ("nhwc", value.shape[1:3])):
        if min(height, width) >= smallest and proportional((height, width), x):
            return form
    return None


def to_map(value: Tensor, stage: Stage, x: Tensor) -> Tensor:
    """An output as a map (B, C, h, w)."""
    if stage.form == "tokens":
        return to_grid(value[:, stage.prefix :], x)
    return value.permute(0, 3, 1, 2) if stage.form == "nhwc" else value


def grid_side(tokens: int, x: Tensor) -> Side | None:
    """Height and width of a grid of that many tokens in the image's proportions."""
    height = round(math.sqrt(tokens * x.shape[2] / x.shape[3]))
    return None if height == 0 or tokens % height else (height, tokens // height)


def to_grid(tokens: Tensor, x: Tensor) -> Tensor:
    """(B, T, D) → (B, D, h, w)"""
    side = grid_side(tokens.shape[1], x)
    if side is None:
        raise UserError(f"{tokens.shape[1]} tokens are no grid of an image of {tuple(x.shape[2:])} pixels")
    return tokens.transpose(1, 2).reshape(len(tokens), -1, *side)


def token_prefix(tokens: Tensor, x: Tensor, places: int | None = None) -> int | None:
    """How many tokens (B, T, D) come before those of the image's grid; places: the size of the grid, if known."""
    if len(tokens) != len(x) or not tokens.is_floating_point():
        return None
    count = int(tokens.shape[1])
    if places is not None:
        return count - places if 0 <= count - places <= PREFIX else None
    for prefix in range(min(PREFIX, count)):
        side = grid_side(count - prefix, x)
        if side is not None and proportional(side, x):
            return prefix
    return None


def proportional(side: Sequence[int], x: Tensor) -> bool:
    """Whether a map has the image's proportions, up to rounding."""
    return abs(side[0] * x.shape[3] - side[1] * x.shape[2]) < max(x.shape[2:])


def find_stages(module: nn.Module, calls: Sequence[Call], x: Tensor) -> tuple[Stage, ...]:
    """The last map at every resolution, shallow to deep; of a plain transformer outputs of evenly spaced blocks."""
    maps: list[tuple[Stage, Side]] = []
    ends: dict[str, Side] = {}  # sides of the last map of every module, 1 × 1 too
    tokens_follow = False
    for call in calls:
        value = call.output
        if value is None or (form := map_form(value, x, smallest=1)) is None:
            tokens_follow |= value is not None and value.ndim == 3 and len(value) == len(x)
            continue
        side: Side = tuple(value.shape[2:] if form == "nchw" else value.shape[1:3])  # type: ignore[assignment]
        ends[call.path] = side
        if min(side) < 2:
            continue
        # attention has smaller maps within a block (matrices of channels, fewer keys): drop those of one size
        inside = {other for stage, other in maps if stage.path.startswith(f"{call.path}.")}
        smaller = {other for other in inside if math.prod(other) < math.prod(side)}
        if len(smaller) == 1:
            maps = [m for m in maps if not (m[1] in smaller and m[0].path.startswith(f"{call.path}."))]
        if not maps or math.prod(side) <= math.prod(maps[-1][1]):  # a larger map is a late branch or a decoder
            maps.append((Stage(call.path, call.turn, form), side))
            tokens_follow = False
    sides = {side for _, side in maps}
    if len(sides) <= 1 and (tokens_follow or not sides):
        return block_stages(module, calls, x, math.prod(*sides) if sides else None)
    within: dict[str, set[Side]] = {}
    for stage, side in maps:
        for outer in ancestors(stage.path):
            within.setdefault(outer, set()).add(side)

    def shrinks(stage: Stage, side: Side) -> bool:
        """Whether its block goes on to shrink the map, like the 1 × 1 convolution before a strided one."""
        return any(
            ends.get(outer, side) != side
            and len(within[outer]) <= 2
            and not isinstance(module.get_submodule(outer), nn.Sequential)
            for outer in ancestors(stage.path)
        )

    chosen = {side: stage for stage, side in maps}
    chosen.update({side: stage for stage, side in maps if not shrinks(stage, side)})
    return tuple(chosen[side] for side in sorted(sides, reverse=True))


def block_stages(module: nn.Module, calls: Sequence[Call], x: Tensor, places: int | None) -> tuple[Stage, ...]:
    """Outputs of evenly spaced transformer blocks, the last one included; places: of the patch embedding's map."""
    stacks: dict[str, list[Stage]] = {}
    for call in calls:
        parent = call.path.rpartition(".")[0]
        stack, block = module.get_submodule(parent), module.get_submodule(call.path)
        if call.output is None or call.output.ndim != 3 or not isinstance(stack, nn.Sequential | nn.ModuleList):
            continue
        prefix = token_prefix(call.output, x, places)
        if prefix is not None and any(True for _ in block.children()):
            stacks.setdefault(parent, []).append(Stage(call.path, call.turn, "tokens", prefix))
    if not stacks:
        return ()
    outermost = min(parent.count(".") for parent in stacks)
    blocks = max((stack for parent, stack in stacks.items() if parent.count(".") == outermost), key=len)
    count = min(BLOCKS, len(blocks))
    return tuple(blocks[len(blocks) * (i + 1) // count - 1] for i in range(count))


def ancestors(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path
