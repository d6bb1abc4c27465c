"""Watching a network for the length of one call: its submodules, and of which weights its results are made.

The latter tells logits from features that are as wide.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from antishortcut.models.outputs import Place, tensor_in, tensors


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


def find_place(
    module: nn.Module, fitting: Mapping[str, Tensor], output: Any, calls: Sequence[Call], x: Tensor
) -> Place:
    """Where the logits are: under their name, or the first that fits and is not itself made into another.

    Another is made of it when it depends on all that this one depends on, and on weights besides. What only follows
    from logits, such as probabilities, has none.
    """
    names, first = tuple(sorted(tensors(output))), next(iter(fitting))
    if first == "logits" or all(each is fitting[first] for each in fitting.values()):
        return Place(first, names)
    behind = woven(module, x)
    if all(name in behind for name in fitting) and any(behind[name] for name in fitting):
        last = (name for name in fitting if not any(goes_into(behind[name], behind[other]) for other in fitting))
        return Place(next(last), names)
    # a network that carries no gradient: features may still be seen to go into a layer
    made = next((call.result for call in calls if call.given is fitting[first]), None)
    return Place(next((name for name, each in fitting.items() if each is made), first), names)


def same_place(module: nn.Module, place: Place, fitting: Mapping[str, Tensor], output: Any, x: Tensor) -> Place:
    """Where an output of another kind, as in training, holds the logits that lay at this place in evaluation.

    They depend on the same weights; where none does, the first is taken.
    """
    weights, behind = woven(module, x).get(place.name), woven(module, x, module.training)
    same = (name for name in fitting if weights and behind.get(name) == weights)
    return Place(next(same, next(iter(fitting))), tuple(sorted(tensors(output))))


def goes_into(one: set[int], other: set[int]) -> bool:
    return one < other and max(other - one) >= 0


def woven(module: nn.Module, x: Tensor, training: bool = False, fixed: bool = True) -> dict[str, set[int]]:
    """For every tensor of the output the weights it depends on, as numbers; below zero: the image, and fixed, buffers.

    The pass works on weights and buffers of its own, draws no random numbers of others, and computes no gradient: the
    graph is read. Nothing is told of a network that does not bear it.
    """
    modes = [(part, part.training) for part in module.modules()]
    devices = [x.device] if x.is_cuda else []
    try:
        with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the network has been called before
            weights = {name: weight.detach() for name, weight in module.named_parameters()}  # frozen ones too
            buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
            some = [each for name, each in buffers.items() if "running_" not in name]  # torch would forbid it of those
            for each in (*weights.values(), *(some if fixed else ())):
                each.requires_grad_(each.is_floating_point() or each.is_complex())
            image = x.detach().clone().requires_grad_() * 1.0  # which may be changed in place
            with torch.random.fork_rng(devices):
                module.train(training)
                output = torch.func.functional_call(module, weights | buffers, (image,))
            numbers = {id(each): i for i, each in enumerate(weights.values())}
            numbers |= {id(each): -2 - i for i, each in enumerate(some)}
            numbers |= {id(own): i for i, own in enumerate(module.parameters())}  # recurrent layers hold theirs twice
            return {name: {numbers.get(each, -1) for each in leaves(t)} for name, t in tensors(output).items()}
    except Exception:  # somebody's code, which may use buffers as it likes
        return woven(module, x, training, fixed=False) if fixed else {}
    finally:
        for part, mode in modes:
            part.training = mode
        torch.clear_autocast_cache()


def leaves(result: Tensor) -> set[int]:
    """The ids of all tensors with a gradient of their own that this one was computed from."""
    found, seen = set[int](), set[Any]()
    ahead = [result.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)  # kept, so that no other gets its place in memory
        if (leaf := getattr(node, "variable", None)) is not None:
            found.add(id(leaf))
        ahead += [before for before, _ in node.next_functions]
    return found
