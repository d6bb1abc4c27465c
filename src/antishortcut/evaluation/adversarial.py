"""An ℓ∞ attack by projected gradient descent (Madry et al. 2018): accuracy under small adversarial noise."""
# B batch, C classes, H × W pixels

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from antishortcut.analysis.features import sample
from antishortcut.data import Loader
from antishortcut.data.segmentation import wants_labels
from antishortcut.evaluation.context import EvalContext, EvaluatedRun, Score
from antishortcut.types import AnySet

EPSILONS = (1 / 255, 2 / 255, 4 / 255, 8 / 255)  # radii of the balls; pixels are in [0, 1]
STEPS = 10
REACH = 2.5  # length of all steps in radii, so that they can cross the ball
ATTACKED = 1_000  # images of the first test set


def attack(context: EvalContext) -> Iterator[Score]:
    """An ℓ∞ attack, which the method is not designed for (supplement)."""
    yield Score("attack", context.sets.fingerprint, _attack)


def _attack(evaluated: EvaluatedRun) -> Mapping[str, Any]:
    images, _ = sample(evaluated.context.first_test[1], ATTACKED)
    size = evaluated.context.sets.image_size
    values = robust_accuracy(evaluated.network, images, size, device=evaluated.device)
    facts = {"attack": "PGD, ℓ∞", "epsilons": list(EPSILONS), "steps": STEPS}
    return {"count": len(images), "values": values, "facts": facts}


def robust_accuracy(
    network: nn.Module,
    images: AnySet,
    image_size: int,
    *,
    epsilons: Sequence[float] = EPSILONS,
    steps: int = STEPS,
    batch: int = 64,
    device: str = "cpu",
) -> dict[str, float]:
    """Accuracy without attack, "clean", and under attacks of rising radius: {"clean": …, "1/255": …, "2/255": …}.

    A ball contains the smaller ones, so a misclassified image stays misclassified and is not attacked again.
    """
    wants_labels("the attack", images, of="image")
    network.to(device)
    radii = sorted(epsilons)
    counts = dict.fromkeys(["clean", *(f"{radius * 255:.3g}/255" for radius in radii)], 0)
    for loaded in Loader.in_order(images, batch, image_size).epoch(0):
        image, label, index = loaded.image.to(device), loaded.label.to(device), loaded.index
        attacked = image
        for name, radius in zip(counts, [0.0, *radii], strict=True):
            if radius > 0:
                attacked = pgd(network, image, label, index, epsilon=radius, steps=steps)
            with torch.no_grad():
                correct = network(attacked).logits.argmax(dim=1) == label  # (B,)
            image, label, index = image[correct], label[correct], index[correct.cpu()]
            counts[name] += len(label)
            if len(label) == 0:
                break
    return {name: count / len(images) for name, count in counts.items()}


def pgd(
    network: nn.Module,
    image: Tensor,
    label: Tensor,
    index: Tensor,
    *,
    epsilon: float,
    steps: int = STEPS,
    seed: int = 0,
) -> Tensor:
    """x ← Π(x + step · sign ∇ₓ CE(network(x), label)), with Π onto |x − image| ≤ epsilon and [0, 1].

    image (B, 3, H, W) in [0, 1], label and index (B,); the network is in evaluation mode and normalises its input.
    The start is a random point of the ball, a function of (seed, index); `step` is 2.5 · epsilon / steps.
    """
    if network.training:
        raise ValueError("attack a network in evaluation mode: training mode would change its batch statistics")
    step = REACH * epsilon / steps
    with torch.inference_mode(False), torch.enable_grad():
        image, label = image.detach().clone(), label.clone()  # a clone is no inference tensor
        low, high = (image - epsilon).clamp(min=0), (image + epsilon).clamp(max=1)
        point = (image + epsilon * start(image.shape, index, seed).to(image)).clamp(low, high)  # (B, 3, H, W)
        for _ in range(steps):
            point.requires_grad_()
            (slope,) = torch.autograd.grad(margin(network(point).logits, label).sum(), point)
            point = (point.detach() + step * slope.sign()).clamp(low, high)
    return point


def margin(logits: Tensor, label: Tensor) -> Tensor:
    """m = log Σ_{c ≠ label} exp(z_c) − z_label, (B, C) → (B,).

    Cross-entropy is log(1 + eᵐ), so both gradients have the same sign; but that of m does not vanish in float32 where
    the network is certain.
    """
    own = label[:, None]  # (B, 1)
    rest = logits.scatter(1, own, -torch.inf)  # (B, C)
    return rest.logsumexp(dim=1) - logits.gather(1, own)[:, 0]


def start(shape: Sequence[int], index: Tensor, seed: int) -> Tensor:
    """Uniform in [−1, 1), the same for an image in any batch. (B, 3, H, W) float32."""
    rows = [np.random.default_rng([seed, at]).random(tuple(shape[1:]), dtype=np.float32) for at in index.tolist()]
    return torch.from_numpy(2 * np.stack(rows) - 1) if rows else torch.empty(tuple(shape))
