"""What a folder says of the copies in it: facts.json when they are whole, making.json until then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...folder import read_json

FACTS, MAKING, LABELS = "facts.json", "making.json", "labels.npy"


def read_facts(path: Path) -> dict[str, Any] | None:
    """The facts of corrupted copies; None when there are none, an error when they are of something else."""
    if not path.exists():
        return None
    facts = read_json(path)
    if not isinstance(facts, dict) or facts.get("kind") != "corruptions" or not isinstance(facts.get("count"), int):
        raise UserError(f"{path} does not speak of corruptions; give another folder")
    return facts


def differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """In what settings differ, for people; which corruptions are there does not count."""
    wanted = json.loads(json.dumps(wanted))  # as they would be read back
    keys = [key for key in (*wanted, *there) if key != "names" and there.get(key) != wanted.get(key)]
    return ", ".join(f"{key} {there.get(key)} there, {wanted.get(key)} here" for key in dict.fromkeys(keys))
