"""Which outputs of a network are feature maps, and which of them are its stages."""
# B batch, C channels, H × W pixels

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

Output = tuple[str, int, Tensor | None]  # path of the module, the how-manieth call, what it gave
Placed = tuple[str, int, tuple[int, int]]  # the same with the map's side lengths
Stage = tuple[str, int, bool]  # path, call, whether channels come last


def as_map(result: Tensor | None, image: Tensor, smallest: int = 2) -> Tensor | None:
    """The tensor as (B, C, H, W) if it is a map of these images; channels may come last. 1 × 1 is a vector."""
    if result is None or result.ndim != 4 or result.shape[0] != image.shape[0] or not result.is_floating_point():
        return None
    if looks_like(result.shape[2], result.shape[3], image, smallest):
        return result
    if looks_like(result.shape[1], result.shape[2], image, smallest):
        return result.permute(0, 3, 1, 2)  # (B, H, W, C) → (B, C, H, W)
    return None


def channels_last(result: Tensor | None, image: Tensor) -> bool:
    """Whether it is a map (B, H, W, C)."""
    found = as_map(result, image)
    return found is not None and found is not result


def looks_like(height: int, width: int, image: Tensor, smallest: int) -> bool:
    """Has the image's proportions, up to rounding, and is not too small."""
    full_h, full_w = image.shape[-2:]
    return min(height, width) >= smallest and abs(height * full_w - width * full_h) < max(full_h, full_w)


def find_stages(module: nn.Module, outputs: Sequence[Output], image: Tensor) -> tuple[Stage, ...]:
    """The last map at every resolution, shallow to deep."""
    placed: list[Placed] = []
    ends: dict[str, tuple[int, int]] = {}  # sides of what every module gave last, 1 × 1 too
    turned: set[tuple[str, int]] = set()
    tokens_follow = False
    for path, turn, result in outputs:
        found = as_map(result, image, smallest=1)
        if found is not None:
            height, width = int(found.shape[2]), int(found.shape[3])
            ends[path] = (height, width)
            if min(height, width) < 2:
                continue
            placed = without_inner(placed, path, (height, width))
            # networks shrink: what is larger than before is a late branch or a decoder
            if not placed or height * width <= placed[-1][2][0] * placed[-1][2][1]:
                placed.append((path, turn, (height, width)))
                turned |= {(path, turn)} if found is not result else set()
                tokens_follow = False
        elif result is not None and result.ndim == 3 and result.shape[0] == image.shape[0]:
            tokens_follow = True
    sides = {side for _, _, side in placed}
    if len(sides) == 1 and tokens_follow:
        return ()  # a transformer: its only map is the patch embedding
    inner = set(inside_shrinking(module, placed, ends))
    chosen: dict[tuple[int, int], tuple[str, int]] = {side: (path, turn) for path, turn, side in placed}
    chosen.update({side: (path, turn) for path, turn, side in placed if (path, turn, side) not in inner})
    return tuple((*chosen[side], chosen[side] in turned) for side in sorted(sides, reverse=True))


def without_inner(placed: list[Placed], path: str, side: tuple[int, int]) -> list[Placed]:
    """Without the one smaller side that came up only within a block which gives larger maps again.

    Attention makes such maps: matrices between channels, and keys of fewer places.
    """
    inside = {each for other, _, each in placed if other.startswith(f"{path}.")}
    smaller = {each for each in inside if each[0] * each[1] < side[0] * side[1]}
    if len(smaller) != 1:
        return placed
    return [each for each in placed if not (each[2] in smaller and each[0].startswith(f"{path}."))]


def inside_shrinking(
    module: nn.Module, placed: Sequence[Placed], ends: Mapping[str, tuple[int, int]]
) -> Iterator[Placed]:
    """Maps from within a block that goes on to shrink them, like the 1 × 1 convolution before a strided one."""
    within: dict[str, set[tuple[int, int]]] = {}
    for path, _, side in placed:
        for outer in ancestors(path):
            within.setdefault(outer, set()).add(side)
    for path, turn, side in placed:
        for outer in ancestors(path):
            block = not isinstance(module.get_submodule(outer), nn.Sequential) and len(within[outer]) <= 2
            if block and ends.get(outer, side) != side:
                yield path, turn, side


def ancestors(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path
