"""Seconds and peak memory of the analysis of rows × width features, as JSON.

`python benchmarks/diagnose.py [rows width] [all]`. `all` adds angles, abandoned directions, a student and stability.
Peak memory is that of the whole process so far; `features_mb` of it are torch and the features themselves.
"""

import json
import resource
import sys
import time
from collections.abc import Callable

import torch

from antishortcut.analysis.moments import (
    Moments,
    batch_angles,
    batch_sizes,
    bootstrap,
    energy,
    folds,
    reuse,
    state_cosines,
    subspace_projection,
)


def peak() -> int:
    """Most memory the process has held so far, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main(rows: int, width: int, everything: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.arange(1, width + 1).rsqrt()  # a falling spectrum, as real ones
    final, early = (torch.randn(rows, width, generator=generator).mul_(each) for each in (scale, scale.flip(0)))
    result: dict[str, float] = {"rows": rows, "width": width, "threads": torch.get_num_threads(), "features_mb": peak()}
    moments: list[Moments] = []
    steps: dict[str, Callable[[], object]] = {
        "moments": lambda: moments.append(Moments(final, early)),
        "shortcut": lambda: moments[0].shortcut(4),
    }
    if everything:
        steps |= {
            "geometry": lambda: moments[0].geometry(4),
            "abandoned": lambda: reuse(moments[0], moments[0].abandoned()),
            "student": lambda: (state_cosines(early, final, early), subspace_projection(early, moments[0].shortcut(4))),
            "energy": lambda: energy(final, moments[0].shortcut(4)),
            "folds": lambda: bootstrap(final, early, folds(rows)),
            "batches": lambda: batch_angles(final, early, moments[0].shortcut(4), batch_sizes(rows)),
        }
    for name, step in steps.items():
        begin = time.perf_counter()
        step()
        result |= {f"{name}_s": round(time.perf_counter() - begin, 1), f"{name}_mb": peak()}
    print(json.dumps(result))


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:] if word.isdigit()] or [50_000, 2048]
    main(sizes[0], sizes[1], "all" in sys.argv)
