"""Vega, Vega-Lite and Vega-Embed as one script. Bundling takes two seconds, so the bundle is cached."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import vl_convert

from antishortcut.run_dir import replacing

SNIPPET = "window.vegaEmbed = vegaEmbed;"


@lru_cache(maxsize=1)
def libraries() -> str:
    """The script, fit to stand inside an HTML page."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~/.cache")))
    cached = home / "antishortcut" / f"vega-{version('vl-convert-python')}.js"
    try:
        return cached.read_bytes().decode()  # read_text would change its line ends, and so its hash
    except (OSError, ValueError):
        bundle = vl_convert.javascript_bundle(SNIPPET).replace("</script", "<\\/script").replace("<!--", "<\\!--")
    try:
        with replacing(cached) as file:
            file.write(bundle.encode())
    except OSError:
        pass  # without a cache every report bundles anew
    return bundle
