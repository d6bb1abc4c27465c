"""A contact sheet: content, style and result beside each other, large enough to be judged by eye."""
# n images on the sheet, S side of the images

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

TILE = 112  # pixels of a picture on the sheet
GAP, LINE, HEAD = 6, 16, 22  # between pictures, of a caption, of the heading
ACROSS = 3  # triples in a row
COLUMNS = ("content", "style", "result")


def contact_sheet(content: Tensor, style: Tensor, result: Tensor, captions: Sequence[tuple[str, str]]) -> Image.Image:
    """Triples of images, each (n, 3, S, S) in [0, 1]; captions say what the content and what the style is."""
    rows = -(-len(captions) // ACROSS)
    step = 3 * (TILE + GAP) + 2 * GAP  # from a triple to the next
    width, height = ACROSS * step, HEAD + rows * (TILE + LINE + GAP)
    page = Image.new("RGB", (width, height), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(12)
    for across in range(min(ACROSS, len(captions))):
        for column, title in enumerate(COLUMNS):
            pen.text((GAP + across * step + column * (TILE + GAP), 4), title, fill="black", font=font)
    for number, caption in enumerate(captions):
        down, across = divmod(number, ACROSS)
        top = HEAD + down * (TILE + LINE + GAP)
        for column, images in enumerate((content, style, result)):
            left = GAP + across * step + column * (TILE + GAP)
            page.paste(_tile(images[number]), (left, top))
            if column < len(caption):
                pen.text((left, top + TILE + 1), caption[column][:18], fill="black", font=font)
    return page


def _tile(image: Tensor) -> Image.Image:
    """(3, S, S) in [0, 1]; small images are enlarged without smoothing, so that their pixels show as they are."""
    array = (image * 255).round().byte().permute(1, 2, 0).contiguous().numpy()  # (S, S, 3)
    sampling = Image.Resampling.NEAREST if image.shape[-1] < TILE else Image.Resampling.LANCZOS
    return Image.fromarray(array).resize((TILE, TILE), sampling)
