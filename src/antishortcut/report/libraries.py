"""Vega, Vega-Lite and Vega-Embed as one script. Bundling takes seconds, so the bundle is kept beside other caches."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock

import vl_convert

from antishortcut.folder import replacing

ONCE = Lock()  # two threads may want it at once
SNIPPET = "window.vegaEmbed = vegaEmbed;"


def libraries() -> str:
    """The script, fit to stand inside an HTML page."""
    with ONCE:
        return _libraries()


@lru_cache(maxsize=1)
def _libraries() -> str:
    place = _place()
    bundle = _kept(place) if place else None
    if bundle is None:
        bundle = vl_convert.javascript_bundle(SNIPPET).replace("</script", "<\\/script").replace("<!--", "<\\!--")
        if place:
            _keep(place, bundle)
    return bundle


def warm() -> None:
    """Start the drawing engine and have the bundle ready; both let other threads run meanwhile."""
    vl_convert.vegalite_to_svg({"data": {"values": []}, "mark": "point"})
    libraries()


def _place() -> Path | None:
    """A file named by the versions it was made of; None where the system knows no home."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    known = version("vl-convert-python"), vl_convert.get_vega_version(), vl_convert.get_vega_embed_version()
    return home / "antishortcut" / f"vega-{'-'.join(known)}.js"


def _kept(place: Path) -> str | None:
    """The kept bundle, if it is our own file and whole: its first line is the checksum of the rest."""
    try:
        if place.stat().st_uid != os.getuid():
            return None
        checksum, _, bundle = place.read_bytes().decode().partition("\n")
    except (OSError, ValueError):
        return None
    return bundle if checksum == f"// {_checksum(bundle)}" else None


def _keep(place: Path, bundle: str) -> None:
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(place) as file:
            file.write(f"// {_checksum(bundle)}\n{bundle}".encode())
    except OSError:
        pass  # a cache that cannot be written costs seconds, nothing else


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
