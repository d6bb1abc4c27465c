"""Watching the submodules of a network for the length of one call."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.models.outputs import tensor_in


@dataclass(frozen=True)
class Call:
    """One execution of a submodule: its path, the how-manieth it was, what went in and came out."""

    path: str
    turn: int
    given: Tensor | None
    result: Tensor | None


def tokens_first(call: Call, batch: int) -> bool:
    """Whether it gave tokens (T, B, D), as torch's own transformers and recurrent layers do unless told otherwise."""
    found = call.result
    return found is not None and found.ndim == 3 and found.shape[0] != batch == found.shape[1]


def turned(call: Call, paths: Collection[str]) -> Call:
    """The call with the batch before the tokens, if it is of one of these modules."""
    if call.path not in paths:
        return call
    given, result = (
        each.transpose(0, 1) if each is not None and each.ndim == 3 else each for each in (call.given, call.result)
    )
    return Call(call.path, call.turn, given, result)


@contextmanager
def recording(module: nn.Module, paths: Iterable[str]) -> Iterator[list[Call]]:
    """The calls of these submodules in the order they end, of this thread alone; the hooks go when the block ends."""
    calls: list[Call] = []
    turns: Counter[str] = Counter()
    me = threading.get_ident()

    def hook_for(path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if threading.get_ident() == me:  # a neighbour thread runs the same modules
                calls.append(Call(path, turns[path], tensor_in((*args, *kwargs.values())), tensor_in(output)))
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
