"""Words in pictures: as much of them as there is room for, and legends in lines."""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import combining, normalize

from PIL import ImageFont

LIKE = {"ß": "ss", "æ": "ae", "ø": "o", "œ": "oe", "ł": "l", "Æ": "AE", "Ø": "O", "Œ": "OE", "Ł": "L"}  # no accents
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def cut(text: str, width: float, font: Font) -> str:
    """As much of a text as there is room for; what is no letter is left out."""
    text = "".join(_spelt(letter, font) for letter in " ".join(text.split()) if letter.isprintable())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…" if text else ""


def legible(name: str, font: Font, instead: str) -> str:
    """A name, or what stands for it where the font lacks letters of it: boxes are all alike."""
    spelt = "".join(_spelt(letter, font) for letter in name if letter.isprintable())
    return instead if any(not letter.isascii() and _lacks(letter, font) for letter in spelt) else name


def _spelt(letter: str, font: Font) -> str:
    """A letter that the font lacks without its accent, where that is one it has: Pillow's own has few but English."""
    if letter.isascii() or not _lacks(letter, font):
        return letter
    bare = "".join(part for part in normalize("NFKD", LIKE.get(letter, letter)) if not combining(part))
    return bare if bare.isascii() else letter


def _lacks(letter: str, font: Font) -> bool:
    return bytes(font.getmask(letter)) == bytes(font.getmask("\uffff"))  # the box that stands for what is not there


def laid(
    key: Iterable[tuple[str, str]], width: int, font: Font, before: int, after: int
) -> list[list[tuple[int, str, str]]]:
    """A legend in lines: place, word and colour, with so much room before and after each word."""
    lines: list[list[tuple[int, str, str]]] = []
    left = 0
    for name, colour in key:
        word = cut(name, width - before, font)
        wide = before + round(font.getlength(word)) + after
        if not lines or left + wide > width:
            lines.append([])
            left = 0
        lines[-1].append((left, word, colour))
        left += wide
    return lines
