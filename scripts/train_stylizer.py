"""Train a stylizer for `asd stylize --stylizer`, where the public weights of AdaIN do not suit the images.

    python scripts/train_stylizer.py cifar100 stylizer --epochs 3

The encoder is the first stages of a VGG that learns to classify the data set, as `asd teach` would train it.
The decoder learns to turn their maps back into images:

content loss   ‖f(g(t)) − t‖², t = adain(f(c), f(s)), at the deepest stage
style loss     means and deviations of g(t)'s maps against those of s, at every stage
pixel loss     ‖g(f(c)) − c‖² on a quarter of each batch, which keeps its own statistics, for sharpness
"""
# B batch, k images of it that are only reconstructed, S side of the images

import argparse
import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from antishortcut.cli.data import data_settings
from antishortcut.config.recipe import ModelSettings, OptimSettings, Recipe, TeacherSettings
from antishortcut.data import Loader
from antishortcut.evaluation.adain import (
    DECODER,
    ENCODER,
    FACTS,
    VERSION,
    OwnEncoder,
    adain,
    encoder_from,
    own_decoder,
    statistics,
)
from antishortcut.fileio import atomic_write
from antishortcut.models import build, load_weights
from antishortcut.models.vgg import CONVS, WIDTHS
from antishortcut.progress import ProgressBar
from antishortcut.run_dir import RunDir, write_json
from antishortcut.teachers.trajectory import Trajectory
from antishortcut.training.pipeline import Session, teach
from antishortcut.types import AnySet

BATCH, RATE = 16, 1e-3  # of Adam; the rate falls to zero along a cosine
STYLE, PIXEL = 10.0, 10.0  # weights of the losses beside the content loss


def style_loss(made: Sequence[Tensor], style: Sequence[Tensor]) -> Tensor:
    """Σ over stages of the squared errors of channel means and deviations. Each stage two maps (B, C_i, H_i, W_i)."""
    total = made[0].new_zeros(())
    for one, two in zip(made, style, strict=True):
        for ours, target in zip(statistics(one), statistics(two), strict=True):
            total = total + F.mse_loss(ours, target)
    return total


def decoder_losses(encoder: nn.Module, decoder: nn.Module, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Content, style and pixel loss of a batch (B, 3, S, S); every image takes the style of the one before it.

    The first quarter keeps its own statistics, adain(f(c), f(c)) = f(c), so that its pixels can be compared.
    """
    k = max(len(image) // 4, 1)
    with torch.no_grad():
        maps: Sequence[Tensor] = encoder(image)
        styles = [torch.cat([own[:k], own.roll(1, 0)[k:]]) for own in maps]  # each (B, C_i, …)
        code = torch.cat([maps[-1][:k], adain(maps[-1], styles[-1])[k:]])  # (B, C, …)
    decoded = decoder(code)[..., : image.shape[-2], : image.shape[-1]]  # (B, 3, S, S)
    again: Sequence[Tensor] = encoder(decoded)
    return F.mse_loss(again[-1], code), style_loss(again, styles), F.mse_loss(decoded[:k], image[:k])


def train_decoder(encoder: OwnEncoder, images: AnySet, side: int, steps: int, seed: int = 0) -> nn.Sequential:
    device = encoder.mean.device
    torch.manual_seed(seed)
    decoder = own_decoder(WIDTHS[: len(encoder.stages)]).to(device)
    optimizer = torch.optim.Adam(decoder.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loader = Loader(images, batch=min(BATCH, len(images)), seed=seed, image_size=side, augment="none")

    def batches() -> Iterator[Tensor]:
        for epoch in range(-(-steps // len(loader))):
            for batch in loader.epoch(epoch):
                yield batch.image.to(device)

    with ProgressBar("decoder", steps) as watch:
        watch.begin(0)
        for step, image in zip(range(1, steps + 1), batches(), strict=False):
            content, style, pixel = decoder_losses(encoder, decoder, image)
            loss = content + STYLE * style + PIXEL * pixel
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            watch.update(step, {"loss": loss.item()})
    if not math.isfinite(loss.item()):
        raise SystemExit("the decoder's training diverged; train the encoder for more epochs")
    return decoder.eval()


def save_stylizer(out: Path, encoder: OwnEncoder, decoder: nn.Module, name: str, steps: int) -> None:
    """facts.json comes last: a folder that has it is complete."""
    digests = {}
    for kind, file, module in (("encoder", ENCODER, encoder), ("decoder", DECODER, decoder)):
        data: bytes = save({key: value.cpu().contiguous() for key, value in module.state_dict().items()})
        digests[kind] = hashlib.sha256(data).hexdigest()
        with atomic_write(out / file) as written:
            written.write(data)
    settings = {"encoder": name, "depth": len(encoder.stages), "steps": steps}
    write_json(out / FACTS, {"kind": "stylizer", "version": VERSION, "digests": digests, "settings": settings})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a data set or a recipe, as for asd stylize")
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--model", choices=sorted(CONVS), default="vgg8", help="the encoder")
    parser.add_argument("--epochs", type=int, default=12, help="of the encoder")
    parser.add_argument("--steps", type=int, default=2000, help="of the decoder")
    parser.add_argument("--depth", type=int, choices=range(1, 5), help="stages of the encoder [default: by image size]")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the encoder is trained")
    parser.add_argument("--data-root", type=Path)
    args = parser.parse_args()
    session = Session(args.runs, args.data_root)
    data, _ = data_settings(args.data)
    sets = session.sets(data)
    side = sets.image_size
    recipe = Recipe(
        epochs=args.epochs,
        data=data.model_copy(update={"augment": "imagenet" if side > 64 else "crop"}),  # not mirrored: some are chiral
        teacher=TeacherSettings(name=args.model, keep=(100,)),
        student=ModelSettings(name=args.model),
        optim=OptimSettings(nesterov=True),
    )
    folder = RunDir(teach(recipe, session).folder(args.runs))
    network = build(args.model, len(sets.classes))
    load_weights(network, folder.snapshots / Trajectory(folder).entry("final")["file"])
    depth = args.depth or min(max(int(math.log2(side / 16)) + 1, 2), 4)  # so that the code keeps 16 × 16 places
    encoder = encoder_from(network, depth).to("cuda" if torch.cuda.is_available() else "cpu")
    save_stylizer(args.out, encoder, train_decoder(encoder, sets.train, side, args.steps), args.model, args.steps)
    print(args.out)


if __name__ == "__main__":
    main()
