"""The products of a layer with what surrounds them folded in, for steps of a few rows. A device set has fast kernels for these."""

from torch import Tensor
from torch.nn import functional

from kernels.reference.mlp import silu_mul
from kernels.reference.norm import rms_norm


def norm_linear(x_TM: Tensor, norm_M: Tensor, eps: float, weight_NM: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """rms_norm(x) @ weight.T + bias, [T, N]."""
    return functional.linear(rms_norm(x_TM, norm_M, eps), weight_NM, bias_N)


def linear_add(residual_TN: Tensor, x_TM: Tensor, weight_NM: Tensor, bias_N: Tensor | None = None) -> None:
    """Add x @ weight.T + bias into `residual_TN` in place."""
    residual_TN.add_(functional.linear(x_TM, weight_NM, bias_N))


def norm_gate_up(x_TM: Tensor, norm_M: Tensor, eps: float, weight_NM: Tensor) -> Tensor:
    """silu(gate) * up, [T, N / 2], of the product of rms_norm(x) with `weight_NM`, whose first half of rows is the gate."""
    return silu_mul(functional.linear(rms_norm(x_TM, norm_M, eps), weight_NM))


def norm_logits(x_TM: Tensor, norm_M: Tensor, eps: float, weight_VM: Tensor) -> Tensor:
    """rms_norm(x) @ weight.T in float32, [T, V]."""
    return functional.linear(rms_norm(x_TM, norm_M, eps), weight_VM).float()
