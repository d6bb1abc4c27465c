"""ASD in the Hugging Face Trainer: a callback that keeps the teacher's states, and a Trainer that distils.

pip install transformers accelerate
python examples/hf_trainer.py                       # made-up images, seconds on a CPU, nothing fetched
python examples/hf_trainer.py --data photos/train   # photos/train/<class>/*.jpg
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.datasets import FakeData, ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

from antishortcut import ASDLoss, Snapshots, kd_loss, load_state


def vit(width: int, layers: int, size: int, classes: int) -> ViTForImageClassification:
    """A tiny one from scratch; `from_pretrained` of any image classifier does as well."""
    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    sizes = {"num_attention_heads": 4, "image_size": size, "patch_size": size // 4, "num_labels": classes}
    return ViTForImageClassification(ViTConfig(**shape, **sizes))


def collate(rows: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    images, labels = zip(*rows, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


class KeepStates(TrainerCallback):
    """Keeps the states of the model on the way, also when training is resumed or stopped early."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.snapshots = Snapshots(self.folder, total_steps=state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module, **others: Any) -> None:
        self.snapshots(model, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, model: nn.Module, **others: Any) -> None:
        self.snapshots.finish(model)


class Watched:
    """A model, and its embedding of the last batch: what its classifier was given."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        model.classifier.register_forward_pre_hook(self._see)

    def _see(self, classifier: nn.Module, given: tuple[Tensor, ...]) -> None:
        self.embedding = given[0].flatten(1)  # (B, D)


class ASDTrainer(Trainer):
    """The model's own loss + KD + ASD. The model brings its ASDLoss as `model.asd`.

    As a part of the model it is optimised, moved, saved and resumed with it.
    """

    loss_is_scaled_for_ga = False  # compute_loss gives a batch's mean, whether gradients are accumulated or not

    def __init__(self, model: nn.Module, *, final: nn.Module, early: nn.Module, **others: Any) -> None:
        super().__init__(model, **others)
        self.student = Watched(model)
        self.final, self.early = (Watched(teacher.eval().to(self.args.device)) for teacher in (final, early))

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)  # `model` may be wrapped; the student within is watched
        with torch.no_grad():
            target = self.final.model(inputs["pixel_values"]).logits
            self.early.model(inputs["pixel_values"])
        embeddings = self.student.embedding, self.final.embedding, self.early.embedding
        self.terms = {"task": outputs.loss, "kd": kd_loss(outputs.logits, target, temperature=4.0)}
        self.terms |= self.student.model.asd(*embeddings, epoch=self.state.epoch or 0.0)  # {"tc": …, "ss": …}
        loss = sum(self.terms.values())
        return (loss, outputs) if return_outputs else loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder of class folders [default: made-up images]")
    parser.add_argument("--size", type=int, default=32, help="side of the images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("hf-trainer"), help="for teacher-states/ and student/")
    args = parser.parse_args()

    set_seed(0)
    transform = Compose([Resize((args.size, args.size)), ToTensor()])
    data = ImageFolder(args.data, transform) if args.data else FakeData(128, (3, args.size, args.size), 4, transform)
    classes = len(data.classes) if args.data else data.num_classes
    settings = TrainingArguments(
        output_dir=str(args.out),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        remove_unused_columns=False,
        use_cpu=not torch.accelerator.is_available(),  # said outright, torchrun works on CPUs too
        ddp_find_unused_parameters=False,  # in several processes: `model.asd` is used, if not by the model's forward
        save_strategy="no",
        report_to="none",
    )
    common = {"args": settings, "train_dataset": data, "data_collator": collate}
    states = args.out / "teacher-states"

    teacher = vit(64, 3, args.size, classes)
    Trainer(teacher, **common, callbacks=[KeepStates(states)]).train()
    early = vit(64, 3, args.size, classes)
    early.load_state_dict(load_state(states, "15%"))

    student = vit(32, 2, args.size, classes)
    student.asd = ASDLoss(32, 64, examples=len(data), warmup=args.epochs / 12, sync=True)  # the paper's 20 of 240
    trainer = ASDTrainer(student, final=teacher, early=early, **common)
    trainer.train()
    if trainer.is_world_process_zero():
        print("last batch:", *(f"{name} {term.item():.3f}" for name, term in trainer.terms.items()))
        del student.asd  # it has done its work: the student is saved alone
        student.save_pretrained(args.out / "student")
        print(args.out / "student")


if __name__ == "__main__":
    main()
