"""Outputs of networks over a whole set: the one inference loop, features of every image, and their t-SNE."""
# B batch, N images, D features

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from antishortcut.data import Loader, order
from antishortcut.data.segmentation import wants_labels
from antishortcut.data.splits import take
from antishortcut.errors import UserError
from antishortcut.models import Network
from antishortcut.progress import ProgressBar
from antishortcut.types import AnySet, Batch, Features, FileSet

BATCH = 256
CLASSES, EACH, PERPLEXITY = 10, 50, 30.0  # of a t-SNE: the first classes, images of each


@torch.no_grad()
def predict(
    networks: Mapping[str, Network],
    images: AnySet,
    size: int,
    *,
    device: str = "cpu",
    batch: int = BATCH,
    title: str = "",
    quiet: bool = True,
) -> Iterator[tuple[dict[str, Features], Batch]]:
    """Logits and embeddings of every network in evaluation mode, on the CPU, batch by batch in the set's order.

    title: of a progress bar, unless quiet.
    """
    for network in networks.values():
        network.to(device).eval()
    loader = Loader.in_order(images, batch, size)
    with ProgressBar(title, len(loader), quiet, batch) as bar:
        for number, loaded in enumerate(loader.epoch(0), start=1):
            image = loaded.image.to(device)
            outputs = {role: network(image) for role, network in networks.items()}
            bar.update(number, {})
            yield {role: Features(out.logits.cpu(), out.embedding.cpu()) for role, out in outputs.items()}, loaded


@dataclass(frozen=True)
class Predictions:
    """Of one network, for every image of a set."""

    features: Tensor  # (N, D) float32
    label: Tensor  # the predicted class. (N,)
    classes: int


def predictions(
    networks: Mapping[str, Network], images: AnySet, size: int, device: str = "cpu", title: str = "", quiet: bool = True
) -> dict[str, Predictions]:
    """Features and predicted classes of every network, in the set's order; images are read once."""
    wants_labels("a comparison of features", images, of="image")
    results: dict[str, Predictions] = {}
    for outputs, batch in predict(networks, images, size, device=device, title=title, quiet=quiet):
        for role, out in outputs.items():
            if not out.embedding.isfinite().all():
                raise UserError(f"features of {role!r} are not finite: did it diverge, or is its file damaged?")
            if role not in results:
                features = torch.empty(len(images), out.embedding.shape[1])
                results[role] = Predictions(features, torch.zeros(len(images)).long(), out.logits.shape[1])
            results[role].features[batch.index] = out.embedding.float()
            if out.logits.shape[1]:  # else the network has no classifier
                results[role].label[batch.index] = out.logits.argmax(dim=1)
    return results


def features(
    networks: Mapping[str, Network], images: AnySet, size: int, device: str = "cpu", title: str = "", quiet: bool = True
) -> dict[str, Tensor]:
    """The embedding of every image in every network: {role: (N, D)}."""
    return {role: one.features for role, one in predictions(networks, images, size, device, title, quiet).items()}


def sample(images: AnySet, count: int) -> tuple[AnySet, list[str] | list[int]]:
    """A random part of a set, the same for every run, and the names of its files or, in memory, numbers in the set."""
    if count < 1:
        raise UserError(f"--limit must be at least 1, not {count}")
    index = torch.arange(len(images)) if len(images) <= count else order(len(images), 0, 0)[:count].sort().values
    chosen = images if len(images) <= count else take(images, index)
    return chosen, [str(path) for path in chosen.paths] if isinstance(chosen, FileSet) else index.tolist()


def first_of_classes(label: Tensor, classes: int = CLASSES, each: int = EACH) -> Tensor:
    """The first `each` samples of the first `classes` classes, in order. (n,)"""
    return torch.cat([(label == number).nonzero().flatten()[:each] for number in range(classes)]).sort().values


def tsne(
    features: Mapping[str, Tensor], label: Tensor, names: Sequence[str], classes: int = CLASSES, each: int = EACH
) -> dict[str, Any] | None:
    """t-SNE of the same images in each network: {"label", "classes", role: [[x, y], …]}; None without scikit-learn.

    Each network has a plane of its own: distances mean something within a plane, not between two.
    """
    try:
        from sklearn.manifold import TSNE
    except ModuleNotFoundError:
        return None
    drawn = first_of_classes(label, classes, each)
    if len(drawn) < 5:
        return None
    perplexity = min(PERPLEXITY, (len(drawn) - 1) / 3)
    result: dict[str, Any] = {"method": "t-SNE", "label": label[drawn].tolist(), "classes": list(names[:classes])}
    for role, rows in features.items():
        plane = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=1).fit_transform(rows[drawn].numpy())
        result[role] = [[round(float(x), 2), round(float(y), 2)] for x, y in plane]
    return result
