"""The gated activation of the MLP."""

from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for `gate_up` [T, 2N], gate first; gives [T, N]. The input is used up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
