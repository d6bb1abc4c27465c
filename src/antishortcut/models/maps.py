"""Which outputs of a network are feature maps, and which of them are its stages."""
# B batch, C channels, H × W pixels

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

Output = tuple[str, int, Tensor | None]  # path of the module, the how-manieth call, what it gave
Placed = tuple[str, int, tuple[int, int]]  # the same with the map's side lengths


def as_map(result: Tensor | None, image: Tensor, smallest: int = 2) -> Tensor | None:
    """The tensor as (B, C, H, W) if it is a map of these images; channels may come last. 1 × 1 is a vector."""
    if result is None or result.ndim != 4 or result.shape[0] != image.shape[0]:  # len() is a constant in a trace
        return None
    if looks_like(result.shape[2], result.shape[3], image, smallest):
        return result
    if looks_like(result.shape[1], result.shape[2], image, smallest):
        return result.permute(0, 3, 1, 2)  # (B, H, W, C) → (B, C, H, W)
    return None


def looks_like(height: int, width: int, image: Tensor, smallest: int) -> bool:
    """Has the image's proportions, up to rounding, and is not too small."""
    full_h, full_w = image.shape[-2:]
    return min(height, width) >= smallest and abs(height * full_w - width * full_h) < max(full_h, full_w)


def find_stages(module: nn.Module, outputs: Sequence[Output], image: Tensor) -> tuple[tuple[str, int], ...]:
    """The last map at every resolution, shallow to deep, as (path, call)."""
    placed: list[Placed] = []
    tokens_follow = False
    for path, turn, result in outputs:
        found = as_map(result, image)
        if found is not None:
            height, width = int(found.shape[2]), int(found.shape[3])
            # networks shrink: what is larger than before is an attention matrix or a late branch
            if not placed or height * width <= placed[-1][2][0] * placed[-1][2][1]:
                placed.append((path, turn, (height, width)))
                tokens_follow = False
        elif result is not None and result.ndim == 3 and result.shape[0] == image.shape[0]:
            tokens_follow = True
    sides = {side for _, _, side in placed}
    if len(sides) == 1 and tokens_follow:
        return ()  # a transformer: its only map is the patch embedding
    inner = set(inside_shrinking(module, placed))
    chosen: dict[tuple[int, int], tuple[str, int]] = {side: (path, turn) for path, turn, side in placed}
    chosen.update({side: (path, turn) for path, turn, side in placed if (path, turn, side) not in inner})
    return tuple(chosen[side] for side in sorted(sides, reverse=True))


def inside_shrinking(module: nn.Module, placed: Sequence[Placed]) -> Iterator[Placed]:
    """Maps from within a block that goes on to shrink them, like the 1 × 1 convolution before a strided one."""
    last = {path: side for path, _, side in placed}
    within: dict[str, set[tuple[int, int]]] = {}
    for path, _, side in placed:
        for outer in ancestors(path):
            within.setdefault(outer, set()).add(side)
    for path, turn, side in placed:
        for outer in ancestors(path):
            block = not isinstance(module.get_submodule(outer), nn.Sequential) and len(within[outer]) <= 2
            if block and last.get(outer, side) != side:
                yield path, turn, side


def ancestors(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path
