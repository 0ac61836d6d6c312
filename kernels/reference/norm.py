"""RMSNorm (Zhang and Sennrich, 2019), alone and with the residual addition before it."""

from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, whose size is that of `weight`."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` into `residual` in place and give the norm of the sum."""
    residual.add_(x)
    return functional.rms_norm(residual, weight.shape, weight, eps)
