"""ASD in a timm training script, on one process or several: any teacher and student that timm has.

    python examples/timm_script.py                                # made-up images, seconds on a CPU
    torchrun --nproc-per-node 2 examples/timm_script.py           # the same on two processes
    python examples/timm_script.py --data photos/train --size 224 --teacher resnet50 --student mobilenetv3_small_100 \
        --pretrained --epochs 100 --batch-size 128 --device cuda
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from timm.data import create_transform
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import init_distributed_device, is_primary
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import FakeData, ImageFolder

from antishortcut import ASDLoss, Snapshots, kd_loss, load_state


class WithEmbedding(nn.Module):
    """A timm model that gives its embedding, the input of the classifier, beside its logits."""

    def __init__(self, name: str, classes: int, pretrained: bool = False) -> None:
        super().__init__()
        self.net = timm.create_model(name, pretrained=pretrained, num_classes=classes)
        self.width = self.net.head_hidden_size

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        embedding = self.net.forward_head(self.net.forward_features(image), pre_logits=True)  # (B, width)
        return self.net.get_classifier()(embedding), embedding


def train(
    args: argparse.Namespace,
    loader: DataLoader,
    parameters: list[nn.Parameter],
    loss_of: Callable[[Tensor, Tensor, float], Tensor],  # of images, labels and the time in epochs
    after: Callable[[int], object] = lambda steps: None,  # told how many steps are done
) -> None:
    optimizer = create_optimizer_v2(parameters, opt=args.opt, lr=args.lr, weight_decay=args.weight_decay)
    length = {"num_epochs": args.epochs, "step_on_epochs": False, "updates_per_epoch": len(loader)}
    scheduler, _ = create_scheduler_v2(optimizer, sched="cosine", **length)
    steps = 0
    for epoch in range(args.epochs):
        if args.distributed:
            loader.sampler.set_epoch(epoch)
        for image, label in loader:
            loss = loss_of(image.to(args.device), label.to(args.device), steps / len(loader))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            scheduler.step_update(steps)
            after(steps)
        if is_primary(args):
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder of class folders [default: made-up images]")
    parser.add_argument("--size", type=int, default=32, help="side of the images")
    parser.add_argument("--teacher", default="test_resnet")
    parser.add_argument("--student", default="test_efficientnet")
    parser.add_argument("--pretrained", action="store_true", help="begin with timm's weights")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="images a step and process")
    parser.add_argument("--opt", default="sgd")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("timm-script"), help="for teacher-states/ and student.pt")
    args = parser.parse_args()

    device = init_distributed_device(args)  # knows torchrun and Slurm
    transform = create_transform((3, args.size, args.size), is_training=True)
    data = ImageFolder(args.data, transform) if args.data else FakeData(128, (3, args.size, args.size), 4, transform)
    classes = len(data.classes) if args.data else data.num_classes
    sampler = DistributedSampler(data) if args.distributed else None
    order = {"sampler": sampler} if args.distributed else {"shuffle": True}
    loader = DataLoader(data, args.batch_size, **order, drop_last=True, num_workers=args.workers)
    states = args.out / "teacher-states"

    def ready(model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model) if args.distributed else model

    # the teacher
    torch.manual_seed(0)
    teacher = WithEmbedding(args.teacher, classes, args.pretrained).to(device)
    learner = ready(teacher)
    snapshots = Snapshots(states, total_steps=args.epochs * len(loader))
    train(
        args,
        loader,
        [*teacher.parameters()],
        lambda image, label, epoch: F.cross_entropy(learner(image)[0], label),
        lambda steps: snapshots(teacher.net, steps),  # only the first process writes
    )
    if args.distributed:
        dist.barrier()  # until the last state is there

    # the student, of both states of the teacher
    early = WithEmbedding(args.teacher, classes).to(device)
    early.net.load_state_dict(load_state(states, "15%"))
    teacher.net.load_state_dict(load_state(states, "final"))  # batch statistics differ between processes
    teacher.eval()
    early.eval()
    torch.manual_seed(1)  # all processes make the same projector, which then has the same gradient everywhere
    student = WithEmbedding(args.student, classes, args.pretrained).to(device)
    asd = ASDLoss(student.width, teacher.width, examples=len(data), warmup=args.epochs / 12, sync=True).to(device)
    follower = ready(student)
    last: dict[str, Tensor] = {}

    def loss_of(image: Tensor, label: Tensor, epoch: float) -> Tensor:
        with torch.no_grad():
            (target, final), (_, before) = teacher(image), early(image)
        logits, embedding = follower(image)
        last.update(task=F.cross_entropy(logits, label), kd=kd_loss(logits, target, temperature=4.0))
        last.update(asd(embedding, final, before, epoch=epoch))  # {"tc": …, "ss": …} of the rows of all processes
        return sum(last.values())

    train(args, loader, [*student.parameters(), *asd.parameters()], loss_of)
    if is_primary(args):
        print("last batch:", *(f"{name} {term.item():.3f}" for name, term in last.items()))
        torch.save(student.net.state_dict(), args.out / "student.pt")
        print(args.out / "student.pt")
    if args.distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
