"""Batch norm for the heads of methods."""
# B batch, C channels, H × W pixels

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class BatchNorm(nn.BatchNorm2d):
    """Batch norm of maps (B, C, H, W) that takes a batch of one 1 × 1 map, too."""

    def forward(self, maps: Tensor) -> Tensor:
        if self.training and maps.numel() == maps.shape[1]:  # a single value has no variance: the running statistics
            return F.batch_norm(maps, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(maps)
