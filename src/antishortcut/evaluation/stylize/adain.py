"""Adaptive instance normalisation, Huang & Belongie 2017."""
# B batch, C channels, H × W places of a map; content and style maps may differ in size

from __future__ import annotations

from torch import Tensor

EPS = 1e-5  # beside the variance, as the reference has it


def statistics(maps: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every channel of every image. (B, C, H, W) → two (B, C, 1, 1).

    The variance is the unbiased one, as in the reference; at 28 × 28 places it hardly matters, at 8 × 8 it does.
    """
    mean = maps.mean(dim=(2, 3), keepdim=True)  # (B, C, 1, 1)
    return mean, (maps.var(dim=(2, 3), keepdim=True) + eps).sqrt()


def adain(content: Tensor, style: Tensor, eps: float = EPS) -> Tensor:
    """σ(style) · (content − μ(content)) / σ(content) + μ(style), channel by channel. (B, C, H, W) like content."""
    content_mean, content_std = statistics(content, eps)
    style_mean, style_std = statistics(style, eps)
    return style_std * ((content - content_mean) / content_std) + style_mean  # (B, C, H, W)


def blend(content: Tensor, style: Tensor, alpha: float, eps: float = EPS) -> Tensor:
    """(1 − α) · content + α · adain(content, style): what the decoder turns into an image. (B, C, H, W)."""
    return (1 - alpha) * content + alpha * adain(content, style, eps)
