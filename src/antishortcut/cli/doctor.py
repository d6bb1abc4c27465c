"""asd doctor: versions, devices, what will be used."""

from __future__ import annotations

from antishortcut.cli.options import JsonOption, RootOption, print_json, table, tell
from antishortcut.errors import UserError


def doctor(data_root: RootOption = None, as_json: JsonOption = False) -> None:
    """Versions, devices, data found, what a run would use, and how to fix any problems."""
    from antishortcut.cli.doctor_doctor import examine

    result = examine(data_root)
    if as_json:
        print_json(result)
    else:
        rows = []
        for name, value in result.items():
            if isinstance(value, dict):
                rows += [(f"{name}: {key}", text or "missing") for key, text in value.items()]
            elif name not in ("warnings", "broken"):
                rows.append((name, value if isinstance(value, str) else ", ".join(value) or "none"))
        table("asd doctor", ("", ""), [(name, str(value)) for name, value in rows])
        for line in result["warnings"]:
            tell(f"- {line}")
    if result["broken"]:
        raise UserError(f"asd cannot run here: {'; '.join(result['broken'])}")
    if not as_json:
        tell("all well; next: asd demo, or asd check YOUR-FOLDER")
