"""Text in pictures: as much as fits, and legends in lines."""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import normalize

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def cut(text: str, width: float, font: Font) -> str:
    """As much of a text as fits. Pillow's own font has hardly more than ASCII: accents are dropped."""
    text = normalize("NFKD", " ".join(text.split())).encode("ascii", "ignore").decode()
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text}..." if text else ""


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
