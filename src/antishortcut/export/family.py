"""A student's teacher, as far as its folder is here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from antishortcut.errors import UserError
from antishortcut.export.measured import whole
from antishortcut.folder import Folder
from antishortcut.run import Run
from antishortcut.teachers import Trajectory


@dataclass(frozen=True)
class Family:
    run: Run | None = None
    parameters: int | None = None
    size: int | None = None  # bytes of its final weights
    headline: tuple[str, float] | None = None


def family_of(folder: Folder, run: Run, runs: Path | None = None) -> Family:
    """`runs`: where teachers/ lies, two levels above the run unless said."""
    if run.teacher is None:
        return Family()
    home = Folder((runs or folder.path.resolve().parent.parent) / "teachers" / run.teacher)
    try:
        teacher, _ = home.read()
        final = home.snapshots / Trajectory(home).entry("final")["file"]
        size = final.stat().st_size
        parameters = whole(home.result().get("parameters"))
    except (UserError, OSError, KeyError):  # not here, or not whole
        return Family()
    try:
        return Family(teacher, parameters, size, home.headline())
    except (KeyError, TypeError, ValueError):  # never scored
        return Family(teacher, parameters, size)
