"""KD, then the last layer refitted on balanced groups: deep feature reweighting, Kirichenko, Izmailov & Wilson 2023."""
# N images, D embedding, C classes

import inspect
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from antishortcut.methods.checks import check_choice, check_groups, check_settings
from antishortcut.methods.kd import KD
from antishortcut.models.feature_extractor import silent
from antishortcut.types import AnySet, DataSplits, Features, Sizes

Floats = NDArray[Any]
Ints = NDArray[np.int64]

STRENGTHS = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)  # C of the regression, weakest penalty first
REFITS, REFITS_TRAIN = 20, 10
LAYER = "refits the student's last layer, which must be an nn.Linear with a bias whose input is the embedding"


class LastLayer(NamedTuple):
    """logits = embedding @ weight.T + bias, and how it was chosen."""

    weight: Floats  # (C, D)
    bias: Floats  # (C,)
    strength: float  # C of the regression
    worst: float  # accuracy of the worst group on the half that chose it


def balanced(group: Ints, draw: np.random.Generator) -> Ints:
    """Places of images, of every group as many as the smallest has, drawn without replacement."""
    members = [draw.permutation(np.flatnonzero(group == number)) for number in np.unique(group)]
    return np.concatenate([places[: min(map(len, members))] for places in members])


def halves(group: Ints, draw: np.random.Generator) -> tuple[Ints, Ints]:
    """Places of two random halves of every group; of an odd number the first half has one more."""
    members = [draw.permutation(np.flatnonzero(group == number)) for number in np.unique(group)]
    return np.concatenate([places[::2] for places in members]), np.concatenate([places[1::2] for places in members])


def l1_regression(strength: float) -> Any:
    """scikit-learn's logistic regression with an ℓ1 penalty."""
    from sklearn.linear_model import LogisticRegression

    penalty = inspect.signature(LogisticRegression).parameters.get("penalty")  # before scikit-learn 1.8
    sparse = {"penalty": "l1"} if penalty is not None and penalty.default == "l2" else {"l1_ratio": 1.0}
    return LogisticRegression(**sparse, C=strength, solver="liblinear", random_state=0)


def logistic(x: Floats, label: Ints, classes: int, strength: float) -> tuple[Floats, Floats]:
    """Weights (C, D) and biases (C,) of ℓ1 logistic regressions: one against the rest, for two classes a single one."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        numbers = range(classes) if classes > 2 else (1,)
        fits = [l1_regression(strength).fit(x, label == number) for number in numbers]
    weight = np.concatenate([fit.coef_ for fit in fits])  # (C, D)
    bias = np.concatenate([fit.intercept_ for fit in fits])  # (C,)
    if classes == 2:  # both signs, halved: softmax then gives the regression's probabilities
        weight, bias = (np.concatenate([-value, value]) / 2 for value in (weight, bias))
    return weight, bias


def worst_group(right: NDArray[np.bool_], group: Ints) -> float:
    return min((float(right[group == number].mean()) for number in np.unique(group)), default=0.0)


def refit(train: Floats, x: Floats, label: Ints, group: Ints, classes: int, refits: int, seed: int) -> LastLayer:
    """The last layer for embeddings, refitted on balanced groups of x (N, D); train (M, D) only standardises.

    C is chosen by the worst group's accuracy on one half of every group after a fit to the other. Then the mean of
    `refits` fits to balanced subsets of all.
    """
    from sklearn.preprocessing import StandardScaler

    def standardised(rows: Ints) -> Floats:
        result: Floats = (x[rows] - scaler.mean_) / scaler.scale_
        return result

    draw = np.random.default_rng(seed)
    first, second = halves(group, draw)
    rows = first[balanced(group[first], draw)]
    scaler = StandardScaler().fit(x[rows])
    scores = {}
    for strength in STRENGTHS:
        weight, bias = logistic(standardised(rows), label[rows], classes, strength)
        guess = (standardised(second) @ weight.T + bias).argmax(axis=1)
        scores[strength] = worst_group(guess == label[second], group[second])
    strength = max(scores, key=scores.__getitem__)  # the first of equal ones

    scaler = StandardScaler().fit(train)
    fits = []
    for _ in range(refits):
        rows = balanced(group, draw)
        fits.append(logistic(standardised(rows), label[rows], classes, strength))
    weight, bias = (np.mean(values, axis=0) for values in zip(*fits, strict=True))
    weight = weight / scaler.scale_  # the scaler becomes part of the layer
    return LastLayer(weight, bias - weight @ scaler.mean_, strength, scores[strength])


def _groups(images: AnySet, classes: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    from antishortcut.data.groups import groups_of  # which needs Pillow; losses alone work without

    return groups_of(images, classes)


class DFR(KD):
    """KD; after the last step the student's last layer is replaced by one fitted to balanced groups.

    split: the images it is fitted to. "auto": "val", or "train" where nothing is held out.
    refits: fits to average; 0: 20, on the training images 10.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        split: str = "auto",
        refits: int = 0,
        weight: float = 1.0,
        temperature: float = 4.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__(sizes, weight=weight, temperature=temperature, task_weight=task_weight)
        check_groups(sizes)
        check_choice("split", split, ("auto", "train", "val", "validation"))
        check_settings(refits=refits)
        self.split, self.refits = split, refits

    def check_finish(self, network: nn.Module, data: DataSplits) -> None:
        if find_spec("sklearn") is None:
            raise ValueError("needs scikit-learn: pip install 'antishortcut[report]'")
        _head(network, data.image_size)
        name, images = self._images(data)
        own, needed = (_groups(each, data.classes)[1] for each in (images, data.train))
        if missing := [group for group in needed if group not in own]:
            raise ValueError(f"{name} has no image of the group {missing[0]!r}; hold out more, or set split to 'train'")
        if len(set(images.label.tolist())) < max(len(data.classes), 2):
            raise ValueError(f"needs images of two or more classes, and of every class, in {name}")

    def finish(self, network: nn.Module, data: DataSplits, embed: Callable[[AnySet], Tensor], seed: int) -> str:
        name, images = self._images(data)
        train = embed(data.train).numpy()  # (M, D)
        x = train if name == "train" else embed(images).numpy()  # (N, D)
        group = _groups(images, data.classes)[0].numpy()  # (N,)
        refits = self.refits or (REFITS_TRAIN if name == "train" else REFITS)
        layer = refit(train, x, images.label.numpy(), group, len(data.classes), refits, seed)
        head = _head(network, data.image_size)
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(layer.weight))
            head.bias.copy_(torch.from_numpy(layer.bias))
        return (
            f"last layer refitted on balanced groups of {name}: C {layer.strength:g}, "
            f"worst group {layer.worst:.3f} on the half that chose it"
        )

    def _images(self, data: DataSplits) -> tuple[str, AnySet]:
        """The name of the split and its images."""
        name = self.split if self.split != "auto" else "train" if data.val is None else "val"
        if name == "val" and data.val is None:
            raise ValueError("split is 'val', but no images are held out; set data.val_fraction")
        if name == "validation" and name not in data.tests:
            raise ValueError("split is 'validation', but the data have no set of that name; groups:PATH may have one")
        return name, data.split(name)


def _head(network: nn.Module, size: int) -> nn.Linear:
    """The layer that makes logits of embeddings; a ValueError if there is none."""
    head = getattr(network, "head", None)
    if isinstance(head, nn.Linear) and isinstance(head.weight, nn.Parameter) and head.bias is not None:
        with silent(network):
            outputs: Features = network(torch.zeros(2, 3, size, size, device=head.weight.device))
            fits = outputs.embedding.shape[1:] == (head.in_features,)
            if fits and torch.allclose(head(outputs.embedding), outputs.logits, rtol=1e-3, atol=1e-3):
                return head
    raise ValueError(LAYER)
