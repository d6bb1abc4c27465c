"""Whether weights of a network are published, and at hand: on this machine already, or where they can be fetched."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path

SECONDS = 5.0  # to find out whether a hub answers; its own library would try for a minute


def published(name: str) -> bool | None:
    """True: its weights are here or can be fetched; None: published, but out of reach; False: there are none."""
    source, _, rest = name.partition(":")
    if source == "timm":
        return _timm(rest)
    if source == "torchvision":
        return _torchvision(rest)
    return False


def _timm(name: str) -> bool | None:
    import timm
    from huggingface_hub import constants, try_to_load_from_cache
    from timm.models import get_pretrained_cfg

    if ":" in name:  # hf-hub:owner/name says itself where its weights are
        return True
    found = get_pretrained_cfg(name, allow_unregistered=True) if timm.is_model(name.partition(".")[0]) else None
    if found is None or not found.has_weights:
        return False
    if found.hf_hub_id:
        files = ("model.safetensors", "pytorch_model.bin")
        if any(isinstance(try_to_load_from_cache(found.hf_hub_id, file), str) for file in files):
            return True
        return True if not constants.HF_HUB_OFFLINE and answers(constants.ENDPOINT) else None
    return _file(str(found.url or ""))


def _torchvision(name: str) -> bool | None:
    from torchvision import models

    if name not in models.list_models(module=models):
        return False
    return _file(models.get_model_weights(name).DEFAULT.url)


def _file(url: str) -> bool | None:
    from torch.hub import get_dir

    kept = Path(get_dir()) / "checkpoints" / Path(url).name
    return True if kept.is_file() or answers(url) else None


def answers(url: str) -> bool:
    """Whether there is a server, through a proxy where one is set; what it says does not matter."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True
