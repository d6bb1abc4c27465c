"""Ten families of black-and-white textures, each a rule on the plane.

A family is a function of two coordinates counted in periods, so that phase, frequency and orientation are the caller's
affine map and the rule itself stays one line. Only additions, products and floors: no transcendental function whose
last bit depends on the machine.
"""
# n images of one family, S × S samples, G × G cells of the noise lattice

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

LATTICE = 32  # G, cells after which the noise repeats; more than any image shows


def paint(family: int, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    """Paint one family: 1 where the first colour goes, 0 where the second does.

    family  index into FAMILIES
    x, y    (n, S, S) float pixels of a 32-pixel image, already turned, scaled and shifted
    noise   (n, G, G) float in [0, 1), used by the two random families
    """
    _, period, rule = FAMILIES[family]
    return rule(x / period, y / period, noise).to(x.dtype)  # (n, S, S)


def _half(t: Tensor) -> Tensor:
    return t - t.floor() < 0.5


def _horizontal(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    return _half(y)


def _vertical(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    return _half(x)


def _diagonal(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    return _half((x + y) * 0.7071)


def _checkers(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    return _half(x) ^ _half(y)


def _dots(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    dx, dy = x - x.floor() - 0.5, y - y.floor() - 0.5
    return dx * dx + dy * dy < 0.1


def _rings(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    return _half((x * x + y * y).sqrt())


def _bricks(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    row = y.floor()
    along = 0.5 * x + 0.5 * (row - 2 * (0.5 * row).floor())  # bricks twice as long as high, every other row moved
    return (y - row < 0.22) | (along - along.floor() < 0.11)


def _zigzag(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    sawtooth = (2 * (0.5 * x - (0.5 * x).floor()) - 1).abs()
    return _half(y + 1.6 * sawtooth)


def _cell(noise: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Noise of lattice cells, repeating. (n, G, G) and whole-numbered (n, S, S) → (n, S, S)."""
    place = row.long() % LATTICE * LATTICE + column.long() % LATTICE  # (n, S, S)
    return noise.flatten(1).gather(1, place.flatten(1)).view_as(place)


def _grain(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    return _cell(noise, y.floor(), x.floor()) < 0.5


def _clouds(x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    column, row = x.floor(), y.floor()
    dx, dy = x - column, y - row
    above = (1 - dx) * _cell(noise, row, column) + dx * _cell(noise, row, column + 1)
    below = (1 - dx) * _cell(noise, row + 1, column) + dx * _cell(noise, row + 1, column + 1)
    return (1 - dy) * above + dy * below < 0.5


Rule = Callable[[Tensor, Tensor, Tensor], Tensor]

FAMILIES: tuple[tuple[str, float, Rule], ...] = (  # name, period in pixels of a 32-pixel image, rule
    ("horizontal", 6.0, _horizontal),
    ("vertical", 6.0, _vertical),
    ("diagonal", 6.0, _diagonal),
    ("checkers", 8.0, _checkers),
    ("dots", 6.0, _dots),
    ("rings", 6.0, _rings),
    ("bricks", 5.0, _bricks),
    ("zigzag", 6.0, _zigzag),
    ("grain", 1.8, _grain),
    ("clouds", 5.0, _clouds),
)
