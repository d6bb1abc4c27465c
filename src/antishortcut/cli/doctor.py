"""asd doctor: versions, devices, what will be used."""

from __future__ import annotations

from typing import Any

from antishortcut.cli.options import JsonOption, RootOption, print_json, table
from antishortcut.errors import UserError


def doctor(data_root: RootOption = None, as_json: JsonOption = False) -> None:
    """Versions, devices, data found, what a run would use, and what to do about what is amiss."""
    from antishortcut.doctor import examine

    found = examine(data_root)
    if as_json:
        print_json(found)
    else:
        _show(found)
    if found["broken"]:
        raise UserError(f"asd cannot run here: {'; '.join(found['broken'])}")


def _show(found: dict[str, Any]) -> None:
    table("versions", ("", "version"), [(name, there or "missing") for name, there in found["versions"].items()])
    rows = [(name, ", ".join(e["there"]) or "–", _missing(e)) for name, e in found["extras"].items()]
    if rows:
        table("extras", ("extra", "there", "missing"), rows)
    table("machine", ("", ""), _machine(found["devices"]))
    if "default" in found:
        table("what a run uses unless told", ("", ""), _default(found["default"]))
    data, room = found["data"], found["room"]
    sets = [name for name, there in data["sets"].items() if there]
    lines = {
        "data root": data["root"] + ("" if data["exists"] else ", which is not there"),
        "sets found there": ", ".join(sets) or "none; cues and cues-seg need none",
        "disk free": ", ".join(f"{gib} GiB {place}" for place, gib in room["disk_gib"].items() if gib is not None),
        "/dev/shm free": "–" if room["shared_gib"] is None else f"{room['shared_gib']} GiB",
        "environment": ", ".join(f"{name}={value}" for name, value in found["environment"].items()) or "nothing set",
    }
    for name, line in lines.items():
        print(f"{name}: {line}")
    for line in found["warnings"]:
        print(f"- {line}")
    print("all well; next: asd demo, or asd check YOUR-FOLDER" if not found["broken"] else "broken, see below")


def _default(default: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("device", default["device"]),
        ("precision of the student", default["student_precision"]),
        ("precision of teachers", default["teacher_precision"]),
        ("threads", str(default["threads"])),
        ("workers that decode images", str(default["workers"])),
        ("compiler for torch.compile", "found" if default["compiler"] else "none"),
    ]


def _missing(entry: dict[str, Any]) -> str:
    return f"{', '.join(entry['missing'])}: {entry['install']}" if entry["missing"] else "–"


def _machine(devices: dict[str, Any]) -> list[tuple[str, str]]:
    cores = f"{devices['cores']} of {devices['cores_present']}"
    if devices["cores_allowed"] is not None:
        cores += f", of which the container may use {devices['cores_allowed']:g}"
    rows = [("CPU", devices["cpu"]), ("cores", cores), ("system", devices["system"])]
    if devices["memory_gib"] is not None:
        rows.append(("memory", f"{devices['memory_gib']} GiB"))
    if "cuda" in devices:
        cards = [f"{card['name']}, {card['memory_gib']} GiB" for card in devices["cuda"]]
        rows += [("CUDA", "; ".join(cards) or "none"), ("MPS", "yes" if devices["mps"] else "no")]
    return rows
