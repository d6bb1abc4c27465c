"""Contact sheets: rows of pictures with column titles, a caption below every row, and a legend of colours."""

from collections.abc import Mapping, Sequence
from unicodedata import normalize

from PIL import Image, ImageDraw, ImageFont

from antishortcut.errors import one_line

TILE, GAP, LINE = 128, 6, 20  # pixels of a picture, between pictures, of a line of text
EMPTY = "#eceff2"


def contact_sheet(
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[Image.Image]]],
    *,
    title: str = "",
    across: int = 1,
    legend: Mapping[str, str] | None = None,
) -> Image.Image:
    """Every row is a caption and a picture per column. `across`: rows beside each other; `legend`: name → colour."""
    across = min(across, len(rows))
    step = len(columns) * (TILE + GAP) + GAP  # width of a row
    heads = LINE if title else 0
    key = list((legend or {}).items())
    keys_per_line = max(across * step // (TILE + GAP), 1)
    below = heads + LINE + -(-len(rows) // across) * (TILE + LINE)
    sheet = Image.new("RGB", (across * step, below + -(-len(key) // keys_per_line) * LINE), "white")
    _write(sheet, title, GAP, 0, across * step)
    for number, (caption, pictures) in enumerate(rows):
        left, top = number % across * step + GAP, heads + LINE + number // across * (TILE + LINE)
        for column, picture in enumerate(pictures):
            at = left + column * (TILE + GAP)
            sheet.paste(_tile(picture), (at, top))
            if number < across:
                _write(sheet, columns[column], at, heads, TILE)
        _write(sheet, caption, left, top + TILE, step - GAP)
    for number, (name, colour) in enumerate(key):
        left, top = number % keys_per_line * (TILE + GAP) + GAP, below + number // keys_per_line * LINE
        sheet.paste(colour, (left, top + 4, left + 12, top + 16))
        _write(sheet, name, left + 17, top, TILE - 17)
    return sheet


def _write(sheet: Image.Image, text: str, left: int, top: int, width: int) -> None:
    """Text that is cut off where its room ends. Pillow's own font has hardly more than ASCII: accents are dropped."""
    text = normalize("NFKD", one_line(text)).encode("ascii", "ignore").decode()
    line = Image.new("RGB", (width, LINE), "white")
    ImageDraw.Draw(line).text((0, 2), text, "black", ImageFont.load_default(13))
    sheet.paste(line, (left, top))


def _tile(picture: Image.Image) -> Image.Image:
    """The whole picture, centred; small ones are enlarged a whole number of times, so that pixels stay square."""
    scale = TILE / max(picture.size)
    scale = int(scale) if scale >= 1 else scale
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    resized = picture.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS)
    tile = Image.new("RGB", (TILE, TILE), EMPTY)
    tile.paste(resized, ((TILE - size[0]) // 2, (TILE - size[1]) // 2))
    return tile
