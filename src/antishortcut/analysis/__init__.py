"""What the teacher's states and the student lean on: pure functions over streamed features, float64 throughout.

A stream is an iterable of chunks {"final": (n, D), "early": (n, D), "student": (n, D)} of the same samples. Each
function reads it once; whoever calls two gives something that can be read again (a list, `Chunks`), not a generator.
Undefined numbers are NaN inside and None in `.values()`. Without any direction, nothing can be measured along it.
"""

from __future__ import annotations

from antishortcut.analysis.alignment import (
    Leaning,
    Standing,
    alignment,
    cosine,
    leaning,
    leanings,
    shortcut_projection,
    standing,
)
from antishortcut.analysis.attribution import Ends, Explained, class_means, ends, explained
from antishortcut.analysis.bounds import Bounds, infonce
from antishortcut.analysis.found import Found, Spread, plain
from antishortcut.analysis.geometry import Energy, Judgement, Reuse, energies, energy, judge, judge_streams, reuse
from antishortcut.analysis.head import Head, Shift, head_share, head_shift
from antishortcut.analysis.moments import Angles, Geometry, Moments, Moved, Scatter, angles
from antishortcut.analysis.ridge import Cross, Mapped, ridge_map
from antishortcut.analysis.stability import Bootstrap, Growth, batch_sizes, bootstrap, growth
from antishortcut.analysis.stream import Chunks, Stream, parts, pick, project

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
