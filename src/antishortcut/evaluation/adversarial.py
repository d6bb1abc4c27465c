"""An ℓ∞ attack, projected gradient descent: Madry et al. 2018. Asks what a small, chosen noise does to a network."""
# B batch, C classes, H × W pixels

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from antishortcut.data import Loader
from antishortcut.data.segmentation import wants_labels
from antishortcut.types import AnySet, Features

EPSILONS = (1 / 255, 2 / 255, 4 / 255, 8 / 255)  # radii of the balls; pixels are in [0, 1]
STEPS = 10
REACH = 2.5  # the steps together are this many radii long, so that they can cross the ball

NetworkLike = Callable[[Tensor], Features]


def robust_accuracy(
    network: NetworkLike,
    images: AnySet,
    image_size: int,
    *,
    epsilons: Sequence[float] = EPSILONS,
    steps: int = STEPS,
    seed: int = 0,
    batch: int = 64,
    device: str = "cpu",
) -> dict[str, float]:
    """Accuracy without attack, "clean", and under attacks of rising radius: {"clean": …, "1/255": …, "2/255": …}.

    A ball holds the smaller ones, so an image that has fallen stays fallen and is not attacked again: the curve falls.
    """
    wants_labels("the attack", images, of="image")
    if isinstance(network, nn.Module):
        network.to(device)
    radii = sorted(epsilons)
    standing = dict.fromkeys(["clean", *(f"{radius * 255:.3g}/255" for radius in radii)], 0)
    loader = Loader(images, batch=batch, seed=0, image_size=image_size, augment="none", shuffle=False)
    for part in loader.epoch(0):
        image, label, index = part.image.to(device), part.label.to(device), part.index
        attacked = image
        for name, radius in zip(standing, [0.0, *radii], strict=True):
            if radius > 0:
                attacked = pgd(network, image, label, index, epsilon=radius, steps=steps, seed=seed)
            right = _right(network, attacked, label)  # (B,)
            image, label, index = image[right], label[right], index[right.cpu()]
            standing[name] += len(label)
            if len(label) == 0:
                break
    return {name: count / len(images) for name, count in standing.items()}


def pgd(
    network: NetworkLike,
    image: Tensor,
    label: Tensor,
    index: Tensor,
    *,
    epsilon: float,
    steps: int = STEPS,
    step: float | None = None,
    seed: int = 0,
) -> Tensor:
    """x ← Π(x + step · sign ∇ₓ CE(network(x), label)), with Π onto |x − image| ≤ epsilon and [0, 1].

    image (B, 3, H, W) in [0, 1], label and index (B,); the network is in evaluation mode and normalises by itself.
    The start is a random point of the ball that depends on (seed, index) alone; `step` is 2.5 · epsilon / steps.
    """
    if isinstance(network, nn.Module) and network.training:
        raise ValueError("attack a network in evaluation mode: training mode would change its batch statistics")
    if epsilon < 0 or steps < 1:
        raise ValueError(f"epsilon {epsilon} must not be negative, steps {steps} at least 1")
    step = REACH * epsilon / steps if step is None else step
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
    """m = log Σ_{c ≠ label} exp(z_c) − z_label, (B, C) → (B,): how far the others are ahead.

    Cross-entropy is log(1 + eᵐ), so both have gradients of the same sign; but m's does not vanish where the network is
    sure, and cross-entropy's does in float32.
    """
    own = label[:, None]  # (B, 1)
    rest = logits.scatter(1, own, -torch.inf)  # (B, C)
    return rest.logsumexp(dim=1) - logits.gather(1, own)[:, 0]


def start(shape: Sequence[int], index: Tensor, seed: int) -> Tensor:
    """Uniform in [−1, 1), each image's own whatever the batch it is in. (B, 3, H, W) float32."""
    rows = [np.random.default_rng([seed, at]).random(tuple(shape[1:]), dtype=np.float32) for at in index.tolist()]
    return torch.from_numpy(2 * np.stack(rows) - 1) if rows else torch.empty(tuple(shape))


@torch.no_grad()
def _right(network: NetworkLike, image: Tensor, label: Tensor) -> Tensor:
    return network(image).logits.argmax(dim=1) == label
