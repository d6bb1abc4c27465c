"""Any network → Features: embedding and stages are read by forward hooks that live only as long as one call.

What to read is found once, by a small silent pass in evaluation mode, and remembered as module paths: nothing that a
deep copy, a state_dict or a second thread could trip over.
"""
# B batch, C classes, D embedding, T tokens, H × W pixels, h × w locations of a map

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError, near
from antishortcut.models.hooks import Call, find_place, recording, same_place, silent, tokens_first, turned
from antishortcut.models.makers import Maker, find_maker
from antishortcut.models.maps import Stage, as_map, channels_last, find_stages
from antishortcut.models.outputs import Place, fitting_in, logits_in, named_in
from antishortcut.models.vectors import as_embedding, channels_first, joined
from antishortcut.types import Features

SCRIPT = "a TorchScript module shows nothing of what is inside it; give the nn.Module it was made of"
SELF = "let it return {'logits': …, 'embedding': …}"


@dataclass(frozen=True)
class Plan:
    """What to read."""

    places: tuple[Place, ...]  # of the logits, in evaluation, and in training where more is returned
    exact: bool  # whether they are what the maker gave, as it is
    maker: Maker | None  # the layers whose input is the embedding
    stages: tuple[Stage, ...]
    last: frozenset[str]  # paths of maps whose channels come last
    first: frozenset[str]  # paths of sequences whose channels come first
    second: frozenset[str]  # paths of tokens that come before the batch
    maps: bool  # whether the logits are maps
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
    classes: how many logits there must be, which tells them from other tensors.
    """

    def __init__(
        self,
        module: nn.Module,
        embedding: str | None = None,
        stages: Sequence[str] | None = None,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        self.module = unwrapped(module)
        self.embedding = embedding
        self.stages = None if stages is None else tuple(stages)
        self.classes = classes
        self._plan: Plan | None = None
        for path in self._named():
            check_path(self.module, path)

    @property
    def head(self) -> nn.Linear | None:
        """The linear layer that makes the logits; known after the first call."""
        head = self.module.get_submodule(self.heads[0]) if len(self.heads) == 1 else None
        return head if isinstance(head, nn.Linear) else None

    @property
    def heads(self) -> tuple[str, ...]:
        """Paths of the layers that make the logits; known after the first call."""
        maker = None if self._plan is None else self._plan.maker
        return maker.paths if maker is not None and maker.inputs else ()

    @property
    def found(self) -> str:
        """In words, where embedding and stages are read; known after the first call."""
        if self._plan is None:
            return "nothing yet: call it with images first"
        maker = self._plan.maker
        embedding = self.embedding or ("what the network calls so" if maker is None else str(maker))
        return f"embedding: {embedding}; stages: {', '.join(path for path, _, _ in self._plan.stages) or 'none'}"

    def forward(self, x: Tensor) -> Features:
        plan = self._plan or self._find(x)
        makers = () if plan.maker is None else plan.maker.calls
        taps = {*self._named(), *(path for path, _ in makers), *(path for path, _, _ in plan.stages)}
        with recording(self.module, taps) as caught:
            output = self.module(x)
        calls = [turned(call, plan.second) for call in caught]
        seen = Seen({(call.path, call.turn): call for call in calls}, {call.path: call for call in calls}, x)
        made = seen.turns.get(makers[0]) if len(makers) == 1 and plan.maker is not None and plan.maker.inputs else None
        logits = self._logits(plan, output, None if made is None else made.result, x)
        aux = named_in(output, "aux") if plan.maps and self.training else None
        return Features(logits, self._embedding(plan, seen, output), self._stages(plan, seen, output), aux)

    def _named(self) -> list[str]:
        return [path for path in (self.embedding, *(self.stages or ())) if path is not None]

    def _logits(self, plan: Plan, output: Any, made: Tensor | None, x: Tensor) -> Tensor:
        place = next((each for each in plan.places if each.known(output)), None)
        if place is None:
            fitting = fitting_in(output, None, self.classes)
            if len(fitting) > 1 and "logits" not in fitting and not any(each is made for each in fitting.values()):
                with _probing:
                    place = same_place(self.module, plan.places[0], fitting, output, x[:2])
                    self._plan = replace(plan, places=(*plan.places, place))
        elif not plan.exact:
            made = None
        return logits_in(output, None, self.classes, plan.maps, made, place)

    def _embedding(self, plan: Plan, seen: Seen, output: Any) -> Tensor:
        if self.embedding is not None:
            call = seen.latest.get(self.embedding)
            result = None if call is None else call.result
            order = (self.embedding in plan.last, self.embedding in plan.first)
            vector = as_embedding(result, seen.image, self.module, plan.maps, *order)
            if vector is None:
                kinds = "map or tokens" if plan.maps else "vector, map or tokens"
                raise UserError(
                    f"{self.embedding!r} gives no {kinds}; name another: embedding = … ({plan.hint or SELF})"
                )
            return vector
        if isinstance(output, Features):
            return output.embedding
        if (own := named_in(output, "embedding")) is not None:
            vector = as_embedding(own, seen.image, self.module, plan.maps, False)
            if vector is None:
                raise UserError(f"the network returns an 'embedding' of shape {tuple(own.shape)}; wanted: (batch, D)")
            return vector
        calls = [seen.turns.get(each) for each in plan.maker.calls] if plan.maker is not None else []
        if plan.maker is None or any(call is None for call in calls):
            if isinstance(self.module, torch.jit.ScriptModule):
                raise UserError(f"{SCRIPT}, or {SELF}")
            what = f"name it: embedding = … ({plan.hint})" if plan.hint else f"no module of it gives one, so {SELF}"
            raise UserError(f"cannot tell which layer's input is the embedding; {what}")
        read = [call for call in calls if call is not None]
        return joined(self.module, plan.maker, read, seen.image, plan.maps, plan.last, plan.first)

    def _stages(self, plan: Plan, seen: Seen, output: Any) -> tuple[Tensor, ...]:
        if self.stages is None and isinstance(output, Features):
            return output.stages
        maps = []
        for path, turn, last in plan.stages:
            call = seen.turns.get((path, turn))
            if call is None or call.result is None:  # skipped at random: most methods need no stages, the step knows
                return ()
            maps.append(call.result.permute(0, 3, 1, 2) if last else call.result)  # (B, C, h, w)
        return tuple(maps)

    def _find(self, x: Tensor) -> Plan:
        with _probing:
            if self._plan is None:
                few = x[:2]
                paths = visible(self.module)
                with silent(self.module), recording(self.module, {*paths, *self._named()}) as caught:
                    output = self.module(few)
                second = frozenset(call.path for call in caught if tokens_first(call, len(few)))
                calls = [turned(call, second) for call in caught]
                fitting = fitting_in(output, len(few), self.classes)
                place = find_place(self.module, fitting, output, calls, few)
                logits = logits_in(output, len(few), self.classes, place=place)
                tells = isinstance(output, Features) or named_in(output, "embedding") is not None
                maker = None if tells else find_maker(self.module, calls, logits, few, place)
                makers = () if maker is None else maker.calls
                self._plan = Plan(
                    (place,),
                    any(c.result is fitting[place.name] for c in calls if (c.path, c.turn) in makers),
                    maker,
                    self._find_stages(calls, few, maker),
                    frozenset(call.path for call in calls if channels_last(call.result, few)),
                    channels_first(self.module, calls),
                    second,
                    logits.ndim == 4,
                    candidates(calls, len(few)),
                )
            return self._plan

    def _find_stages(self, calls: Sequence[Call], image: Tensor, maker: Maker | None) -> tuple[Stage, ...]:
        if self.stages is None:
            makers = maker.calls if maker is not None and maker.inputs else ()
            # maps of logits, and what comes after them, are no features
            end = next((i for i, call in enumerate(calls) if (call.path, call.turn) in makers), len(calls))
            # nor is the image itself, normalised or enlarged
            learns = (next(self.module.get_submodule(call.path).parameters(), None) is not None for call in calls)
            start = next((i for i, found in enumerate(learns) if found), 0)
            return find_stages(self.module, [(c.path, c.turn, c.result) for c in calls[start:end]], image)
        latest = {call.path: call for call in calls}
        for path in self.stages:
            if path not in latest or as_map(latest[path].result, image, smallest=1) is None:
                maps = dict.fromkeys(call.path for call in calls if as_map(call.result, image) is not None)
                some = ", ".join([*maps][-6:])
                hint = f" (maps: {some})" if maps else ""
                raise UserError(
                    f"{path!r} gives no map (B, C, H, W), so it cannot be a stage; name others: stages = …{hint}"
                )
        return tuple((path, latest[path].turn, channels_last(latest[path].result, image)) for path in self.stages)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module itself: hooks do not fire within what torch.compile has made, nor need DataParallel's copies them."""
    while isinstance(module, nn.DataParallel) or hasattr(module, "_orig_mod"):
        module = module.module if isinstance(module, nn.DataParallel) else module._orig_mod  # type: ignore[assignment]
    if isinstance(module, torch.jit.ScriptModule):
        return module
    for part in module.modules():
        if getattr(part, "_compiled_call_impl", None) is not None:
            part._compiled_call_impl = None
    for name, child in list(module.named_children()):
        if (bare := unwrapped(child)) is not child:
            setattr(module, name, bare)
    return module


def visible(module: nn.Module) -> list[str]:
    """Paths of the submodules that Python calls, so that hooks fire."""
    hidden = [path for path, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    inside = tuple(f"{path}." if path else "" for path in hidden)
    return [path for path, _ in module.named_modules() if path and not (inside and path.startswith(inside))]


def check_path(module: nn.Module, path: str) -> None:
    paths = [known for known, _ in module.named_modules(remove_duplicate=False) if known]
    if path not in paths:
        hint = near(path, paths)
        if not hint.startswith("; did"):  # nothing is near: the outermost modules are a short enough list
            hint = near(path, [name for name, _ in module.named_children()])
        raise UserError(f"the network has no module {path!r}{hint}")


def candidates(calls: Sequence[Call], batch: int) -> str:
    """The last few modules that give something a batch of vectors can be made of."""
    paths = [c.path for c in calls if c.result is not None and c.result.ndim in (2, 3, 4) and len(c.result) == batch]
    last = list(dict.fromkeys(reversed(paths)))[:6]
    return "candidates: " + ", ".join(last) if last else ""
