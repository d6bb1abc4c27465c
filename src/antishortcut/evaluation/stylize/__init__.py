"""Stylised copies of test sets: shapes of one image in the textures of another. Reading them loads no network."""

from antishortcut.evaluation.stylize.generate import Stylized, open_stylized, write_stylized

__all__ = ["Stylized", "open_stylized", "write_stylized"]
