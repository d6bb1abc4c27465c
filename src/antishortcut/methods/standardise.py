"""Logit standardisation, Sun, Ren, Li, Wang & Cao 2024: logits with mean 0 and standard deviation 1, row by row."""
# B batch, C classes

from torch import Tensor

LEAST = 0.01  # a smaller deviation is divided by this, or the gradient of equal logits would be of order 1 / eps


def standardised(logits: Tensor, eps: float = 1e-7) -> Tensor:
    """(z − mean) / (std + eps) of each row (B, C), the deviation as a sample's, with C − 1. A single class gives 0."""
    centred = logits - logits.mean(dim=1, keepdim=True)
    if logits.shape[1] < 2:
        return centred
    return centred / (logits.std(dim=1, keepdim=True) + eps).clamp(min=LEAST)
