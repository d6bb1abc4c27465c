"""ASD in a plain PyTorch loop: train a teacher, keep its states, distil a student. Five lines are ASD's: # 1 to # 5.

python examples/plain_loop.py                       # made-up images, seconds on a CPU
python examples/plain_loop.py --data photos/train   # photos/train/<class>/*.jpg
"""

import argparse
from pathlib import Path

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
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        embedding = self.body(image)  # (B, width)
        return self.head(embedding), embedding


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", help="a folder of class folders [default: made-up images]")
parser.add_argument("--size", type=int, default=32, help="side of the images")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--out", type=Path, default=Path("plain-loop"), help="where teacher-states/ and student.pt go")
args = parser.parse_args()

torch.manual_seed(0)
transform = Compose([Resize((args.size, args.size)), ToTensor()])
data = ImageFolder(args.data, transform) if args.data else FakeData(128, (3, args.size, args.size), 4, transform)
classes = len(data.classes) if args.data else data.num_classes
loader = DataLoader(data, batch_size=32, shuffle=True)
states = args.out / "teacher-states"

# the teacher
teacher = Net(64, classes)
optimizer = torch.optim.SGD(teacher.parameters(), lr=0.05, momentum=0.9)
snapshots = Snapshots(states, total_steps=args.epochs * len(loader))  # 1
step = 0
for _ in range(args.epochs):
    for image, label in loader:
        loss = F.cross_entropy(teacher(image)[0], label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        snapshots(teacher, step)  # 2

# the student, of both states of the teacher
early = Net(64, classes)
early.load_state_dict(load_state(states, "15%"))  # 3
teacher.eval()
early.eval()
student = Net(16, classes)
asd = ASDLoss(16, 64, examples=len(data), warmup=args.epochs / 12)  # 4: widths of the embeddings; the paper's 20 of 240
optimizer = torch.optim.SGD([*student.parameters(), *asd.parameters()], lr=0.05, momentum=0.9)
for epoch in range(args.epochs):
    for number, (image, label) in enumerate(loader):
        with torch.no_grad():
            (target, final), (_, before) = teacher(image), early(image)
        logits, embedding = student(image)
        terms = {"task": F.cross_entropy(logits, label), "kd": kd_loss(logits, target, temperature=4.0)}
        terms |= asd(embedding, final, before, epoch=epoch + number / len(loader))  # 5: {"tc": …, "ss": …}
        optimizer.zero_grad()
        sum(terms.values()).backward()
        optimizer.step()
    print(f"epoch {epoch + 1}:", *(f"{name} {term.item():.3f}" for name, term in terms.items()))

torch.save(student.state_dict(), args.out / "student.pt")
print(args.out / "student.pt")
