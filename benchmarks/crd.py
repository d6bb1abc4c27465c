"""What a CRD step costs beside a KD step: WRN-40-2 → WRN-16-2, float32, batch 64, N = 50,000, K = 16,384.

Interleaved, median of many; prints JSON. `python benchmarks/crd.py [rounds]`.
"""

import json
import statistics
import sys
import time

import torch

from antishortcut.methods import METHODS, method_options
from antishortcut.models import build, feature_shapes
from antishortcut.tasks import Classification
from antishortcut.training.step import DistillationStep
from antishortcut.types import Batch, Sizes

NAMES = ("kd", "crd", "crd+kd", "crd-queue")


def main(rounds: int) -> None:
    torch.manual_seed(0)
    teacher = build("wrn-40-2", 100).eval().requires_grad_(False)
    labels = torch.arange(50_000) % 100
    steps = {}
    for name in NAMES:
        student = build("wrn-16-2", 100)
        sizes = Sizes(100, 50_000, feature_shapes(student, 32), {"final": feature_shapes(teacher, 32)}, labels)
        step = DistillationStep(student, METHODS[name](sizes, **method_options(name, {})), Classification())
        steps[name] = (step, torch.optim.SGD(step.parameters(), lr=0.05, momentum=0.9))
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(rounds + 2):
        index = torch.randint(50_000, (64,))
        batch = Batch(torch.rand(64, 3, 32, 32), labels[index], index)
        for name, (step, optimizer) in steps.items():
            start = time.perf_counter()
            with torch.no_grad():
                targets = {"final": teacher(batch.image)}
            torch.autograd.backward(torch.stack(list(step(batch, targets, 100.0).values())).sum())
            optimizer.step()
            optimizer.zero_grad()
            if number >= 2:  # the first two warm up
                times[name].append(1000 * (time.perf_counter() - start))
    median = {name: round(statistics.median(values), 1) for name, values in times.items()}
    ratio = {
        f"{name}/kd": round(statistics.median(a / b for a, b in zip(times[name], times["kd"], strict=True)), 3)
        for name in NAMES[1:]
    }
    print(
        json.dumps(
            {
                "ms": median,
                "ratio": ratio,
                "rounds": rounds,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
