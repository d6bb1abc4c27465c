"""Moments of 100,000 × 2048 features, streamed: seconds and peak memory, as JSON.

`python benchmarks/diagnose.py [rows width] [all]`. `all` goes on to directions, angles, bootstrap and growing batches.
Peak memory is the whole process's so far; `import_mb` of it is torch itself.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antishortcut.analysis import Moments, batch_sizes, bootstrap, energies, growth, leanings, parts, reuse, standing


def peak() -> float:
    """Most memory the process has held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@dataclass(frozen=True)
class Synthetic:
    """Features made as they are read, the same every time, so that their sum of bytes is nowhere."""

    rows: int
    width: int
    chunk: int = 1000

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        scale = torch.arange(1, self.width + 1).rsqrt()  # a spectrum that falls, as real ones do
        for start in range(0, self.rows, self.chunk):
            n = min(self.chunk, self.rows - start)
            final, moved = (torch.randn(n, self.width, generator=generator) for _ in range(2))
            final *= scale
            early = final + 0.5 * moved * scale.flip(0)
            yield {"final": final, "early": early, "student": final + early}


def main(rows: int, width: int, everything: bool) -> None:
    stream = Synthetic(rows, width)
    result: dict[str, float | int] = {"rows": rows, "width": width, "threads": torch.get_num_threads()}
    result["import_mb"] = round(peak())
    begin = time.perf_counter()
    moments = Moments.of(stream)
    result["moments_s"], result["moments_mb"] = round(time.perf_counter() - begin, 1), round(peak())
    steps: dict[str, Callable[[], object]] = {"shortcut": lambda: moments.shortcut(4)}
    if everything:
        u, v = moments.shortcut(4), moments.pca("final", 8)
        steps |= {
            "geometry": moments.geometry,
            "abandoned": lambda: reuse(moments, moments.abandoned()),
            "student": lambda: (standing(stream), leanings(stream, {"u": u, "v": v}, ("student", "final"))),
            "energies": lambda: energies(stream, {"u": u, "v": v}),
            "bootstrap": lambda: bootstrap(stream, parts(rows)),
            "growth": lambda: growth(stream, u, batch_sizes(rows)),
        }
    for name, step in steps.items():
        begin = time.perf_counter()
        step()
        result[f"{name}_s"], result[f"{name}_mb"] = round(time.perf_counter() - begin, 1), round(peak())
    print(json.dumps(result))


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:] if word.isdigit()] or [100_000, 2048]
    main(given[0], given[1], "all" in sys.argv)
