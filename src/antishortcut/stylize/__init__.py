"""Stylised copies of test sets: shapes of one image in the textures of another. Reading them loads no network."""

from antishortcut.stylize.copying import check_request, write_stylized
from antishortcut.stylize.reading import Stylized, open_stylized

__all__ = ["Stylized", "check_request", "open_stylized", "write_stylized"]
