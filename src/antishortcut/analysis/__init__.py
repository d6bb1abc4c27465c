"""What the teacher's states and the student lean on: pure functions over streamed features, float64 throughout.

A stream is an iterable of chunks {"final": (n, D), "early": (n, D), "student": (n, D)} of the same samples. Each
function reads it once; whoever calls two gives something that can be read again (a list, `Chunks`), not a generator.
Undefined numbers are NaN inside and None in `.values()`. Without any direction, nothing can be measured along it.
"""

from __future__ import annotations

from antishortcut.analysis.alignment import (
    Bounds,
    Leaning,
    Standing,
    alignment,
    cosine,
    infonce,
    leaning,
    leanings,
    shortcut_projection,
    standing,
)
from antishortcut.analysis.attribution import (
    Ends,
    Explained,
    Head,
    Shift,
    class_means,
    ends,
    explained,
    head_share,
    head_shift,
)
from antishortcut.analysis.geometry import Energy, Judgement, Reuse, energies, energy, judge, judge_streams, reuse
from antishortcut.analysis.moments import Angles, Cross, Geometry, Mapped, Moments, Moved, Scatter, angles, ridge_map
from antishortcut.analysis.stability import Bootstrap, Growth, batch_sizes, bootstrap, growth
from antishortcut.analysis.stream import Chunks, Found, Spread, Stream, parts, pick, plain, project

__all__ = [
    "Angles",
    "Bootstrap",
    "Bounds",
    "Chunks",
    "Cross",
    "Ends",
    "Energy",
    "Explained",
    "Found",
    "Geometry",
    "Growth",
    "Head",
    "Judgement",
    "Leaning",
    "Mapped",
    "Moments",
    "Moved",
    "Reuse",
    "Scatter",
    "Shift",
    "Spread",
    "Standing",
    "Stream",
    "alignment",
    "angles",
    "batch_sizes",
    "bootstrap",
    "class_means",
    "cosine",
    "ends",
    "energies",
    "energy",
    "explained",
    "growth",
    "head_share",
    "head_shift",
    "infonce",
    "judge",
    "judge_streams",
    "leaning",
    "leanings",
    "parts",
    "pick",
    "plain",
    "project",
    "reuse",
    "ridge_map",
    "shortcut_projection",
    "standing",
]
