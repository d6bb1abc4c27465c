"""Batch norm that takes a single value per channel in training, by its running statistics: one has no variance."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class _SingleValue(nn.modules.batchnorm._BatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() == x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class BatchNorm1d(_SingleValue, nn.BatchNorm1d):
    """Of rows (B, C)."""


class BatchNorm2d(_SingleValue, nn.BatchNorm2d):
    """Of maps (B, C, H, W)."""
