"""What ASD's terms cost as batch, queue, directions, width and data grow, and what share of a step they are.

`python benchmarks/scaling.py [--rounds 15] [--threads 1] [--pair vgg13:vgg8] [--steps 8]` prints JSON.
ms: forward and backward of the method's terms on random features, without networks; one size varies, the others stay
(B 64, M 4096, K 4, D 512, N 50,000; 100 classes). All sizes take a turn in every round; medians, of the processor's
time, so that other work on the machine does not count. "D, projector" has a student half as wide; "N, crd" is CRD,
whose banks hold all N images, beside ASD, which should not notice N.
exponent: of ms by size, least squares of the logarithms over the upper half of the sizes.
state_mb: what a method keeps between steps, by N. share: of a whole step of a real pair of width 512, by `asd bench`;
`asd-cached` is the step without teachers, whose answers come from disk.
memory: peak of a process that does three steps of that pair; `step_mb` is what they added to what was there before.
"""
# B batch, M queue, K directions, D embedding, N training images, C classes

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from antishortcut.experiments.benchmark import CACHED, PHASES, bench, machine, pair_of
from antishortcut.methods import build_method, method_options, method_roles
from antishortcut.models import build, feature_shapes
from antishortcut.tasks import Classification
from antishortcut.training.step import DistillationStep
from antishortcut.types import Batch, Features, Method, Shape, Sizes

USUAL = {"B": 64, "M": 4096, "K": method_options("asd", {})["directions"], "D": 512, "N": 50_000}
CLASSES = 100
SIZES: dict[str, tuple[int, ...]] = {
    "B": (16, 32, 64, 128, 256, 512),
    "M": (512, 1024, 2048, 4096, 8192, 16384),
    "K": (1, 2, 4, 8, 16, 32, 64),
    "D": (64, 128, 256, 512, 1024, 2048),
    "D, projector": (64, 128, 256, 512, 1024, 2048),
    "N": (1_000, 10_000, 100_000, 1_000_000),
    "N, crd": (1_000, 10_000, 30_000, 100_000),  # 1,000,000 would be banks of 1 GB
}
KEEPING = ("asd", "crd", "crd-queue")
MEASURED: dict[str, tuple[str, dict[str, Any]]] = {
    "kd": ("kd", {}),
    "asd": ("asd", {}),
    "asd M=16384": ("asd", {"queue": 16384}),
}
WARM = 3  # rounds that are not counted
PAST_WARMUP = 1e6


def terms_of(axis: str, size: int) -> Callable[[], float]:
    """A step of a method's terms, which tells its milliseconds."""
    letter, _, settings = axis.partition(", ")
    b, m, k, d, n = (size if name == letter else usual for name, usual in USUAL.items())
    name = "crd" if settings == "crd" else "asd"
    options = method_options(name, {} if name == "crd" else {"queue": m, "directions": k})
    width = d // 2 if settings == "projector" else d
    labels = torch.arange(n) % CLASSES
    roles = method_roles(name, options)
    sizes = Sizes(CLASSES, n, Shape(width), dict.fromkeys(roles, Shape(d)), labels)
    module = build_method(name, sizes, options)
    method = cast(Method, module)

    def step() -> float:
        index = torch.randint(n, (b,))
        student = Features(torch.randn(b, CLASSES, requires_grad=True), torch.randn(b, width, requires_grad=True))
        teachers = {role: Features(torch.randn(b, CLASSES), torch.randn(b, d)) for role in roles}
        batch = Batch(torch.empty(b, 3, 0, 0), labels[index], index)
        module.zero_grad()
        start = time.process_time()
        terms = method.terms(student, teachers, batch, PAST_WARMUP)
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        return 1000 * (time.process_time() - start)

    return step


def exponent(sizes: tuple[int, ...], ms: list[float]) -> float:
    """p of ms ~ sizeᵖ, over the upper half."""
    half = len(sizes) // 2
    return round(float(np.polyfit(np.log(sizes[half:]), np.log(ms[half:]), 1)[0]), 2)


def kept(name: str, n: int) -> float:
    """Megabytes of a method's state; nothing is allocated."""
    with torch.device("meta"):
        sizes = Sizes(
            CLASSES,
            n,
            Shape(USUAL["D"]),
            dict.fromkeys(("final", "early"), Shape(USUAL["D"])),
            torch.arange(n, device="cpu") % CLASSES,
        )
        state = build_method(name, sizes, method_options(name, {})).state_dict()
    return round(sum(float(tensor.nbytes) for tensor in state.values()) / 2**20, 1)


def share(pair: str, steps: int) -> dict[str, Any]:
    """The method's part of a step: its terms and the task's own loss, forward and backward."""
    message = bench(pair_of(pair), ["kd", "asd"], batch=USUAL["B"], rounds=steps)
    split = {name: message["split"][name] for name in ("kd", "asd", "asd" + CACHED)}
    part = {name: round(pieces["method"] / sum(pieces[p] for p in PHASES), 4) for name, pieces in split.items()}
    return {"pair": pair, "batch": USUAL["B"], "steps": steps, "method": part, "ms": split}


def steps_in_memory(name: str, pair: str) -> dict[str, int]:
    """Three steps in this process, and the most it ever held."""
    method, options = MEASURED[name]
    first, _, second = pair.partition(":")
    torch.manual_seed(0)
    settings = method_options(method, options)
    teachers = {role: build(first, CLASSES).eval().requires_grad_(False) for role in method_roles(method, settings)}
    student = build(second, CLASSES)
    shapes = {role: feature_shapes(network, 32) for role, network in teachers.items()}
    sizes = Sizes(CLASSES, USUAL["N"], feature_shapes(student, 32), shapes, torch.arange(USUAL["N"]) % CLASSES)
    step = DistillationStep(student, build_method(method, sizes, settings), Classification())
    optimizer = torch.optim.SGD(step.parameters(), lr=0.01, momentum=0.9)
    before = _peak()
    for _ in range(3):
        index = torch.randint(USUAL["N"], (USUAL["B"],))
        batch = Batch(torch.rand(USUAL["B"], 3, 32, 32), index % CLASSES, index)
        outputs = {}
        for role, network in teachers.items():
            result = network(batch.image)
            outputs[role] = Features(result.logits, result.embedding)
        torch.autograd.backward(torch.stack(list(step(batch, outputs, PAST_WARMUP).values())).sum())
        optimizer.step()
        optimizer.zero_grad()
    peak = _peak()
    return {"peak_mb": peak, "step_mb": peak - before}


def _peak() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, kilobytes elsewhere


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--pair", default="vgg13:vgg8", help="TEACHER:STUDENT; the default is the smallest one of width 512"
    )
    parser.add_argument("--steps", type=int, default=8, help="whole steps of the pair; 0 for none")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    requested = parser.parse_args()
    torch.set_num_threads(requested.threads)
    if requested.one:
        print(json.dumps(steps_in_memory(requested.one, requested.pair)))
        return
    memory = {}
    for name in MEASURED if requested.steps else ():  # first: a process begins with the peak of the one that started it
        words = [sys.executable, __file__, "--one", name, "--pair", requested.pair, "--threads", str(requested.threads)]
        memory[name] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    torch.manual_seed(0)
    steps = {axis: [terms_of(axis, size) for size in sizes] for axis, sizes in SIZES.items()}
    rounds: dict[str, list[list[float]]] = {axis: [] for axis in SIZES}
    for number in range(WARM + requested.rounds):
        for axis, row in steps.items():
            result = [step() for step in row]
            if number >= WARM:
                rounds[axis].append(result)
    ms = {axis: [statistics.median(column) for column in zip(*result, strict=True)] for axis, result in rounds.items()}
    del steps
    report = {
        "usual": USUAL | {"C": CLASSES},
        "ms": {
            axis: {str(size): round(value, 2) for size, value in zip(SIZES[axis], values, strict=True)}
            for axis, values in ms.items()
        },
        "exponent": {axis: exponent(SIZES[axis], values) for axis, values in ms.items()},
        "state_mb": {name: {str(n): kept(name, n) for n in SIZES["N"]} for name in KEEPING},
        "share": share(requested.pair, requested.steps) if requested.steps else None,
        "memory": memory,
        "rounds": requested.rounds,
        "machine": machine("cpu"),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
