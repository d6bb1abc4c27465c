"""Peak memory and time of a dense training step, method by method, each in a process of its own.

`python benchmarks/dense.py [TEACHER STUDENT SIDE BATCH]`; by default DeepLabv3 ResNet-101 → ResNet-18 at 512 × 512,
batch 2. On a GPU the peak is torch's, on a CPU the most the process ever held, its libraries included; beside it what
the step added to the networks and libraries that were there before it.
"""

import json
import resource
import subprocess
import sys
import time
from typing import Any, cast

METHODS = ("kd", "asd", "afdcd", "ufd")
CLASSES = 150
USUAL = ("deeplabv3-resnet101", "deeplabv3-resnet18", "512", "2")


def step(method: str, teacher: str, student: str, side: int, batch: int) -> dict[str, Any]:
    """One step as the trainer does it, in this process."""
    import torch

    from antishortcut.methods import build_method, method_options, method_roles
    from antishortcut.models import build, feature_shapes
    from antishortcut.tasks import Segmentation
    from antishortcut.training.step import DistillationStep
    from antishortcut.types import Batch, Features, Method, Sizes

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    settings = method_options(method, {})
    teachers = {role: build(teacher, CLASSES, image_size=side).eval() for role in method_roles(method, settings)}
    network = build(student, CLASSES, image_size=side)
    shapes = {role: feature_shapes(outputs, 64) for role, outputs in teachers.items()}
    own = build_method(method, Sizes(CLASSES, 20_000, feature_shapes(network, 64), shapes), settings)
    for module in (*teachers.values(), network, own):
        module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    whole = DistillationStep(network, own, Segmentation(CLASSES))
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.01, momentum=0.9)
    image = torch.rand(batch, 3, side, side, device=device)
    images = Batch(image, torch.randint(CLASSES, (batch, side, side), device=device), torch.arange(batch))
    before, start = _peak(device), time.perf_counter()
    stages = "stages" in cast(Method, own).taps
    with torch.no_grad():
        outputs = {}
        for role, requested in teachers.items():
            result = requested(image)
            outputs[role] = Features(result.logits, result.embedding, result.stages if stages else ())
            del result
    terms = whole(images, outputs, 1e6)
    torch.autograd.backward(torch.stack(list(terms.values())).sum())
    optimizer.step()
    peak = _peak(device)
    seconds = time.perf_counter() - start
    return {"peak_mb": peak, "step_mb": peak - before, "seconds": round(seconds, 2), "device": device}


def _peak(device: str) -> int:
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated() // 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(pair: list[str]) -> None:
    result = {}
    for method in METHODS:
        message = subprocess.run(
            [sys.executable, __file__, "--one", method, *pair], check=True, capture_output=True, text=True
        )
        result[method] = json.loads(message.stdout)
    ratio = {f"{name}/kd": round(result[name]["peak_mb"] / result["kd"]["peak_mb"], 3) for name in METHODS[1:]}
    print(json.dumps({"pair": pair, "steps": result, "peak_ratio": ratio}, indent=1))


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--one"]:
        print(json.dumps(step(words[1], words[2], words[3], int(words[4]), int(words[5]))))
    else:
        main(words or list(USUAL))
