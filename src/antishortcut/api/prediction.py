"""Class names for image files, by a trained network: what `asd predict` prints."""
# B batch, C classes, S side of the square images

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from antishortcut.api.arguments import use_hardware
from antishortcut.config.schema import SIDE
from antishortcut.errors import UserError
from antishortcut.fileio import expanded, near_folder

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 32


class Classifier(NamedTuple):
    """A network and how image files are prepared for it."""

    logits: Callable[[Tensor], Tensor]  # (B, 3, S, S) in [0, 1] → (B, C)
    classes: Sequence[str]
    side: int
    shorter_side: int  # of a file, before the square is cut from its centre


def predict(
    model: str | Path,
    images: str | Path | Sequence[str | Path],
    *,
    top: int = 3,
    device: str = "auto",
    threads: int = 0,
) -> list[dict[str, Any]]:
    """The likeliest classes of image files: [{"image": path, "top": [{"class": name, "confidence": share}, …]}, …].

    model: a run folder, an export's folder, a model.onnx or "hf://OWNER/NAME". images: files, and folders of them.
    """
    import torch

    from antishortcut.data.image_io import fit, pixels, read
    from antishortcut.data.transforms import as_float

    device = use_hardware(device, threads)
    paths = image_files([images] if isinstance(images, str | Path) else images)
    onnx = Path(model).suffix == ".onnx"
    network = from_onnx(expanded(model)) if onnx else from_torch(model, device)
    smaller = 2 * network.side if network.shorter_side == network.side else None  # as sets held in memory are decoded
    margin, results = network.shorter_side / network.side, []
    for start in range(0, len(paths), BATCH):
        part = paths[start : start + BATCH]
        batch = torch.stack([pixels(fit(read(path, smaller), network.side, margin)) for path in part])
        confidence, number = network.logits(as_float(batch)).double().softmax(1).sort(stable=True, descending=True)
        for path, shares, numbers in zip(part, confidence.tolist(), number.tolist(), strict=True):
            answers = [{"class": network.classes[n], "confidence": s} for n, s in zip(numbers, shares, strict=True)]
            results.append({"image": str(path), "top": answers[:top]})
    return results


def image_files(given: Sequence[str | Path]) -> list[Path]:
    """Files as they are, folders as the images below them."""
    from antishortcut.data.datasets import list_unlabelled

    paths: list[Path] = []
    for path in map(expanded, given):
        if path.is_dir():
            paths += [Path(str(each)) for each in list_unlabelled(path).paths]
        elif not path.exists():
            raise UserError(f"no image file or folder {path}{near_folder(path) or ''}")
        else:
            paths.append(path)
    if not paths:
        raise UserError("no images are named")
    return paths


def from_torch(model: str | Path, device: str) -> Classifier:
    import torch

    from antishortcut.deployment import load

    loaded = load(model).to(device).requires_grad_(False)
    with torch.inference_mode():
        shape = loaded(torch.zeros(1, 3, loaded.image_size, loaded.image_size, device=device)).shape
    if len(shape) != 2 or not loaded.classes:
        raise no_classifier(model)

    @torch.inference_mode()
    def logits(image: Tensor) -> Tensor:
        return loaded(image.to(device)).cpu()  # type: ignore[no-any-return]

    return Classifier(logits, loaded.classes, loaded.image_size, loaded.shorter_side)


def from_onnx(path: Path) -> Classifier:
    """As `asd export --to onnx` wrote it; nothing else of the export is needed."""
    import torch

    from antishortcut.deployment.formats import onnx_session
    from antishortcut.deployment.verify import library_errors

    if not path.is_file():
        raise UserError(f"no file {path}; asd export RUN --to onnx writes one")
    with library_errors(f"ONNX Runtime does not load {path}", "asd export RUN --to onnx writes it again"):
        session = onnx_session(path, torch.get_num_threads())
    inputs, outputs = (
        {each.name: each.shape for each in part} for part in (session.get_inputs(), session.get_outputs())
    )
    side = inputs["image"][-1] if list(inputs) == ["image"] else None
    if not isinstance(side, int) or len(outputs.get("logits", ())) != 2:
        raise no_classifier(path)
    known, count = session.get_modelmeta().custom_metadata_map, outputs["logits"][1]
    try:
        classes = json.loads(known["classes"]) if "classes" in known else list(map(str, range(count)))
        shorter_side = int(known.get("shorter_side", side))
        if not isinstance(classes, list) or len(classes) != count or not side <= shorter_side <= SIDE:
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise UserError(f"{path}: damaged (its class names or size of images); asd export writes it again") from None

    def logits(image: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"image": image.numpy()})[0])

    return Classifier(logits, list(map(str, classes)), side, shorter_side)


def no_classifier(model: str | Path) -> UserError:
    return UserError(f"{model} is no classifier of this package: predict names one class for a whole image")
