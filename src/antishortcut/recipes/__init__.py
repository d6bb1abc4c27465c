"""Shipped recipes, and the commented one that `asd init` writes."""

from __future__ import annotations

from importlib.resources import files

TEMPLATE = (files("antishortcut.recipes") / "template.toml.txt").read_text(encoding="utf-8")
