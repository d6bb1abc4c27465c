"""Words in pictures: as much of them as there is room for, and legends in lines."""

from __future__ import annotations

from collections.abc import Iterable

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def cut(text: str, width: float, font: Font) -> str:
    """As much of a text as there is room for; what is no letter is left out."""
    text = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…" if text else ""


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
