"""KD steps in torchdistill, on demand: the other side of torchdistill_reference.py, in a venv without our package.

`python torchdistill_step.py PAIR BATCH THREADS` says on one line of JSON what it is made of; then every line `go N`
is answered by the milliseconds of N steps: {"step": [...], "data": [...]}. It ends with its input.
"""

import json
import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset, RandomSampler
from torchdistill.core.distillation import get_distillation_box  # type: ignore[import-not-found]
from torchdistill.models.classification.wide_resnet import wide_resnet  # type: ignore[import-not-found]
from torchvision import transforms
from torchvision.models.resnet import BasicBlock, conv1x1, conv3x3

CLASSES, SIDE = 100, 32
POOL = 20  # batches of different images
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


class Pictures(Dataset[tuple[Tensor, int]]):
    """Random images, handed out as torchvision's CIFAR100 hands out its own."""

    def __init__(self, count: int) -> None:
        self.data = np.random.default_rng(0).integers(256, size=(count, SIDE, SIDE, 3), dtype=np.uint8)
        crop, flip = transforms.RandomCrop(SIDE, padding=4), transforms.RandomHorizontalFlip()
        self.transform = transforms.Compose([crop, flip, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.data[index])), index % CLASSES


def network(name: str) -> nn.Module:
    """wrn-DEPTH-WIDTH is torchdistill's own; resnetDEPTHx4, which it lacks, is made of the blocks its ResNets use."""
    if name.startswith("wrn-"):
        depth, width = (int(number) for number in name.split("-")[1:])
        built: nn.Module = wide_resnet(depth, width, 0.0, CLASSES, pretrained=False, progress=False)
        return built
    return resnet_x4(int(name.removeprefix("resnet").removesuffix("x4")))


def resnet_x4(depth: int) -> nn.Module:
    c_in = 32
    layers = [conv3x3(3, c_in), nn.BatchNorm2d(c_in), nn.ReLU(inplace=True)]
    for width, first in ((64, 1), (128, 2), (256, 2)):
        for block in range((depth - 2) // 6):
            stride = first if block == 0 else 1
            shortcut = nn.Sequential(conv1x1(c_in, width, stride), nn.BatchNorm2d(width)) if c_in != width else None
            layers.append(BasicBlock(c_in, width, stride, shortcut))
            c_in = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c_in, CLASSES))


def settings(batch: int) -> dict[str, Any]:
    """As in torchdistill's samples for KD on CIFAR-100; batch, learning rate and loss weights are our bench's."""
    logits = {
        f"{who}_module_{what}": at for who in ("student", "teacher") for what, at in (("path", "."), ("io", "output"))
    }
    kd = {"key": "KDLoss", "kwargs": logits | {"temperature": 4.0, "alpha": 1.0, "beta": 1.0, "reduction": "batchmean"}}
    return {
        "num_epochs": 1,
        "train_data_loader": {
            "dataset_id": "train",
            "sampler": {"class_or_func": RandomSampler},
            "kwargs": {"batch_size": batch, "num_workers": 0},
        },
        "teacher": {"forward_proc": "forward_batch_only", "requires_grad": False},
        "student": {"forward_proc": "forward_batch_only", "requires_grad": True},
        "optimizer": {"key": "SGD", "kwargs": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}},
        "criterion": {"key": "WeightedSumLoss", "kwargs": {"sub_terms": {"kd": {"criterion": kd, "weight": 1.0}}}},
    }


def steps(box: Any) -> Iterator[tuple[float, float]]:
    """Milliseconds of a step, and of the batch before it: the loop of torchdistill's examples, without end."""
    epoch = 0
    while True:
        box.pre_epoch_process(epoch=epoch)
        start = time.perf_counter()
        for image, label, extra in box.train_data_loader:
            ready = time.perf_counter()
            loss = box.forward_process(image, label, extra)
            box.post_forward_process(loss=loss)
            done = time.perf_counter()
            yield 1000 * (done - ready), 1000 * (ready - start)
            start = time.perf_counter()
        box.post_epoch_process()
        epoch += 1


def main(pair: str, batch: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    teacher, student = (network(name) for name in pair.split(":"))
    teacher.eval()  # torchdistill leaves that to us
    sets = {"train": Pictures(POOL * batch)}
    box = get_distillation_box(teacher, student, sets, settings(batch), torch.device("cpu"), None, False, 1)
    versions = {"python": platform.python_version()}
    versions |= {name: version(name) for name in ("torchdistill", "torch", "torchvision", "numpy", "pillow")}
    sizes = [sum(values.numel() for values in one.parameters()) for one in (teacher, student)]
    print(json.dumps({"versions": versions, "parameters": sizes, "threads": torch.get_num_threads()}), flush=True)
    endless = steps(box)
    for line in sys.stdin:
        times = [next(endless) for _ in range(int(line.removeprefix("go ")))]
        print(json.dumps({"step": [step for step, _ in times], "data": [data for _, data in times]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
