"""The folder of copies: facts.json when they are whole, making.json until then, and a lock while someone writes."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import UserError

FACTS, MAKING, LABELS = "facts.json", "making.json", "labels.npy"


def read_facts(path: Path) -> dict[str, Any] | None:
    """What a folder says of its corrupted copies; None when it says nothing."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); restore it or remove its folder") from None
    if not isinstance(facts, dict) or facts.get("kind") != "corruptions" or not isinstance(facts.get("count"), int):
        raise UserError(f"{path} does not speak of corruptions; give another folder")
    return facts


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """At once and whole."""
    part = path.with_name(f".{path.stem}.part")
    part.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """In what settings differ, for people; which corruptions are there does not count."""
    wanted = json.loads(json.dumps(wanted))  # as they would be read back
    keys = [key for key in (*wanted, *there) if key != "names" and there.get(key) != wanted.get(key)]
    return ", ".join(f"{key} {there.get(key)} there, {wanted.get(key)} here" for key in dict.fromkeys(keys))


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Only one process at a time writes here; the lock goes with its process, however that ends."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process writes to {out}; wait until it has finished, or stop it") from None
        for part in out.glob(".*.part"):  # left by a process that was killed
            part.unlink()
        yield
