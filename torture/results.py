"""Results as files: with date and versions, without anything of the machine's own."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

VERSIONS = ("antishortcut", "torch", "numpy")


def keep_result(folder: Path, name: str, found: dict[str, Any]) -> None:
    """Write <folder>/<name>.json."""
    keep(folder / f"{name}.json", found)


def keep(path: Path, found: dict[str, Any]) -> None:
    about = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version()} | {each: version(each) for each in VERSIONS},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about | found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
