"""Measurements of a teacher's inference forms, saved in its folder for the next run.

inference.json: a list of {"key", "result"}. The key has what the result depends on: state, images, device, versions. An
entry with another key, or one that cannot be read, does not count. A resumed run does not look here: its form is in
run.json.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from antishortcut.errors import UserError
from antishortcut.fileio import refuse_links
from antishortcut.hardware import processor, versions
from antishortcut.run_dir import RunDir, read_json, write_json

NAME = "inference.json"
MOST = 100  # entries; the oldest go


class InferenceRecord:
    """Numbers and decisions by name, under one key."""

    def __init__(self, folder: RunDir, key: Mapping[str, Any]) -> None:
        self.folder, self.key = folder, dict(key)

    def read(self) -> dict[str, Any]:
        return next((entry["result"] for entry in self._entries() if entry["key"] == self.key), {})

    def add(self, **values: Any) -> None:
        """Save these too. A folder that cannot be written is no error: the next run measures again."""
        refuse_links(self.folder.path, NAME)
        rest = [entry for entry in self._entries() if entry["key"] != self.key]
        entries = [*rest, {"key": self.key, "result": self.read() | values}]
        with suppress(OSError):
            write_json(self.folder.path / NAME, entries[-MOST:], parents=False)

    def _entries(self) -> list[dict[str, Any]]:
        with suppress(UserError):
            match read_json(self.folder.path / NAME):
                case list(entries):
                    return [entry for entry in entries if _is_entry(entry)]
        return []


def _is_entry(entry: Any) -> bool:
    match entry:
        case {"key": dict(), "result": dict()}:
            return True
    return False


def device_key(device: torch.device) -> dict[str, Any]:
    """The device and the versions that decide what a network computes there, and how fast."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    used = {package: version for package, version in versions().items() if package in ("antishortcut", "timm")}
    return {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__} | used  # with its CUDA
