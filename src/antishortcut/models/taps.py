"""Any network → Features: embedding and stages are read by forward hooks that live only as long as one call.

What to read is found once, by a small silent pass in evaluation mode, and remembered as module paths: nothing that a
deep copy, a state_dict or a second thread could trip over.
"""
# B batch, C classes, D embedding, T tokens, H × W pixels

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from antishortcut.errors import UserError, near
from antishortcut.models.hooks import Call, recording, silent, tensor_in
from antishortcut.models.maps import as_map, find_stages
from antishortcut.types import Features


@dataclass(frozen=True)
class Plan:
    """What to read, as (module path, turn)."""

    head: tuple[str, int] | None  # the layer whose result is the logits
    stages: tuple[tuple[str, int], ...]
    hint: str  # paths that could serve as embedding


@dataclass(frozen=True)
class Seen:
    """What the hooks caught in one call."""

    turns: dict[tuple[str, int], Call]
    latest: dict[str, Call]  # the last call of every path
    image: Tensor


_probing = threading.Lock()  # one for all: a lock of its own would forbid deep copies


class Tapped(nn.Module):
    """Wraps a module that returns logits (or a dict, tuple or object holding them), so that it returns Features.

    embedding: by default the input of the layer that makes the logits; or the path of a module, whose output is pooled.
    stages: by default the last map at every resolution, shallow to deep; or the paths of modules.
    """

    def __init__(self, module: nn.Module, embedding: str | None = None, stages: Sequence[str] | None = None) -> None:
        super().__init__()
        self.module = module
        self.embedding = embedding
        self.stages = None if stages is None else tuple(stages)
        self._plan: Plan | None = None
        for path in self._named():
            check_path(module, path)

    @property
    def head(self) -> nn.Linear | None:
        """The linear layer that makes the logits; known after the first call."""
        if self._plan is None or self._plan.head is None:
            return None
        head = self.module.get_submodule(self._plan.head[0])
        return head if isinstance(head, nn.Linear) else None

    def forward(self, x: Tensor) -> Features:
        plan = self._plan or self._find(x)
        taps = plan.stages if plan.head is None else (*plan.stages, plan.head)
        with recording(self.module, {*self._named(), *(path for path, _ in taps)}) as calls:
            output = self.module(x)
        seen = Seen({(call.path, call.turn): call for call in calls}, {call.path: call for call in calls}, x)
        return Features(logits_in(output), self._embedding(plan, seen, output), self._stages(plan, seen, output))

    def _named(self) -> list[str]:
        return [path for path in (self.embedding, *(self.stages or ())) if path is not None]

    def _embedding(self, plan: Plan, seen: Seen, output: Any) -> Tensor:
        if self.embedding is not None:
            call = seen.latest.get(self.embedding)
            vector = None if call is None else as_vector(call.result, seen.image, self.module)
            if vector is None:
                raise UserError(
                    f"{self.embedding!r} gives no vector, map or tokens; name another: embedding = … ({plan.hint})"
                )
            return vector
        if isinstance(output, Features):
            return output.embedding
        call = None if plan.head is None else seen.turns.get(plan.head)
        if call is None or call.given is None:
            raise UserError(f"cannot tell which layer's input is the embedding; name it: embedding = … ({plan.hint})")
        return call.given.flatten(1)  # (B, D), also from the (B, D, 1, 1) of a 1 × 1 convolution

    def _stages(self, plan: Plan, seen: Seen, output: Any) -> tuple[Tensor, ...]:
        if self.stages is None and isinstance(output, Features):
            return output.stages
        if self.stages is None:
            wanted = [(path, seen.turns.get((path, turn))) for path, turn in plan.stages]
        else:
            wanted = [(path, seen.latest.get(path)) for path in self.stages]
        maps = []
        for path, call in wanted:
            found = None if call is None else as_map(call.result, seen.image, smallest=1)  # smaller images than probed
            if found is None:
                raise UserError(f"{path!r} gives no map (B, C, H, W), so it cannot be a stage; name others: stages = …")
            maps.append(found)
        return tuple(maps)

    def _find(self, x: Tensor) -> Plan:
        with _probing:
            if self._plan is None:
                paths = [path for path, _ in self.module.named_modules() if path]
                with silent(self.module), recording(self.module, paths) as calls:
                    few = x[:2]
                    output = self.module(few)
                self._plan = Plan(
                    find_head(self.module, calls, logits_in(output)),
                    find_stages(self.module, [(c.path, c.turn, c.result) for c in calls], few),
                    candidates(calls, len(few)),
                )
            return self._plan


def check_path(module: nn.Module, path: str) -> None:
    paths = [known for known, _ in module.named_modules() if known]
    if path not in paths:
        hint = near(path, paths)
        if not hint.startswith("; did"):  # nothing is near: the outermost modules are a short enough list
            hint = near(path, [name for name, _ in module.named_children()])
        raise UserError(f"the network has no module {path!r}{hint}")


def logits_in(output: Any) -> Tensor:
    logits = tensor_in(output)
    if logits is None or logits.ndim != 2:
        got = type(output).__name__ if logits is None else f"a tensor of shape {tuple(logits.shape)}"
        raise UserError(f"the network returns {got}; wanted: logits (batch, classes), alone, first, or under 'logits'")
    return logits


def find_head(module: nn.Module, calls: Sequence[Call], logits: Tensor) -> tuple[str, int] | None:
    """The linear layer or 1 × 1 convolution whose output is the logits."""
    fitting = []
    for call in calls:
        part = module.get_submodule(call.path)
        pointwise = isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1)
        shape = None if call.result is None else call.result.shape
        if (isinstance(part, nn.Linear) or pointwise) and shape in (logits.shape, (*logits.shape, 1, 1)):
            fitting.append(call)
    same = [call for call in fitting if call.result is not None and call.result.data_ptr() == logits.data_ptr()]
    # logits that were scaled, cast or normalised afterwards: sure only when one layer can have made them
    chosen = same[-1] if same else fitting[0] if len(fitting) == 1 else None
    return None if chosen is None else (chosen.path, chosen.turn)


def candidates(calls: Sequence[Call], batch: int) -> str:
    """The last few modules that give something a batch of vectors can be made of."""
    paths = [c.path for c in calls if c.result is not None and c.result.ndim in (2, 3, 4) and len(c.result) == batch]
    last = list(dict.fromkeys(reversed(paths)))[:6]
    return "candidates: " + ", ".join(last) if last else "it has no submodule that gives one"


def as_vector(result: Tensor | None, image: Tensor, module: nn.Module) -> Tensor | None:
    """The output of a module named as embedding, pooled to (B, D)."""
    if result is None or result.ndim not in (2, 3, 4):
        return None
    if result.ndim == 4:
        found = as_map(result, image)  # channels may come last; a (B, D, 1, 1) is no map
        return (result if found is None else found).mean(dim=(2, 3))  # (B, D)
    return pool_tokens(module, result) if result.ndim == 3 else result


def pool_tokens(module: nn.Module, tokens: Tensor) -> Tensor:
    """(B, T, D) → (B, D): the class token where the network classifies by it, else the mean of the image's tokens."""
    names = {name.rpartition(".")[2] for name, _ in module.named_parameters()}
    if names & {"cls_token", "class_token"} and getattr(module, "global_pool", "token") == "token":
        return tokens[:, 0]  # (B, D)
    extra = getattr(module, "num_prefix_tokens", 0)  # timm: class and register tokens are no part of the mean
    return tokens[:, extra:].mean(dim=1)  # (B, D)
