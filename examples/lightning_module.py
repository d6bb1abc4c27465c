"""ASD in PyTorch Lightning: a callback that keeps the teacher's states, and a module that distils a student.

pip install pytorch-lightning
python examples/lightning_module.py                       # made-up images, seconds on a CPU
python examples/lightning_module.py --data photos/train   # photos/train/<class>/*.jpg
"""

import argparse
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData, ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor

from antishortcut import ASDLoss, Snapshots, kd_loss, load_state


class Net(nn.Module):
    """A small network that gives its embedding, the input of the last layer, beside its logits."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.width = width
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        embedding = self.body(image)  # (B, width)
        return self.head(embedding), embedding


class Classifier(pl.LightningModule):
    """The teacher's training, as you have it already."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        image, label = batch
        return F.cross_entropy(self.net(image)[0], label)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)


class KeepStates(pl.Callback):
    """Keeps the states of `module.net` on the way, also when training is resumed or stopped early."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.snapshots = Snapshots(self.folder, total_steps=int(trainer.estimated_stepping_batches))

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *batch: Any) -> None:
        self.snapshots(module.net, trainer.global_step)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.snapshots.finish(module.net)


class Distiller(pl.LightningModule):
    """CE + KD + ASD. On several devices `sync=True` joins their rows, on one it does nothing."""

    def __init__(self, student: Net, final: Net, early: Net, examples: int, warmup: float) -> None:
        super().__init__()
        self.student = student
        self.asd = ASDLoss(student.width, final.width, examples=examples, warmup=warmup, sync=True)
        # in a tuple they are no children: neither trained, nor saved with the student, nor put in training mode
        self.teachers = (final.requires_grad_(False).eval(), early.requires_grad_(False).eval())

    def on_fit_start(self) -> None:
        for teacher in self.teachers:
            teacher.to(self.device)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        image, label = batch
        with torch.no_grad():
            (target, final), (_, early) = (teacher(image) for teacher in self.teachers)
        logits, embedding = self.student(image)
        epoch = self.current_epoch + batch_idx / self.trainer.num_training_batches
        terms = {"task": F.cross_entropy(logits, label), "kd": kd_loss(logits, target, temperature=4.0)}
        terms |= self.asd(embedding, final, early, epoch=epoch)  # {"tc": …, "ss": …}
        self.log_dict(terms)
        return sum(terms.values())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)  # the student's and the projector's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder of class folders [default: made-up images]")
    parser.add_argument("--size", type=int, default=32, help="side of the images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("lightning"), help="for teacher-states/ and student.pt")
    args = parser.parse_args()

    pl.seed_everything(0)
    transform = Compose([Resize((args.size, args.size)), ToTensor()])
    data = ImageFolder(args.data, transform) if args.data else FakeData(128, (3, args.size, args.size), 4, transform)
    classes = len(data.classes) if args.data else data.num_classes
    loader = DataLoader(data, batch_size=32, shuffle=True)
    options = {"max_epochs": args.epochs, "default_root_dir": args.out, "logger": False, "enable_checkpointing": False}
    states = args.out / "teacher-states"

    teacher = Net(64, classes)
    pl.Trainer(**options, callbacks=[KeepStates(states)]).fit(Classifier(teacher), loader)
    early = Net(64, classes)
    early.load_state_dict(load_state(states, "15%"))

    distiller = Distiller(Net(16, classes), teacher, early, len(data), warmup=args.epochs / 12)  # the paper's 20 of 240
    trainer = pl.Trainer(**options)
    trainer.fit(distiller, loader)
    print("last batch:", *(f"{name} {value:.3f}" for name, value in trainer.callback_metrics.items()))
    torch.save(distiller.student.state_dict(), args.out / "student.pt")
    print(args.out / "student.pt")


if __name__ == "__main__":
    main()
