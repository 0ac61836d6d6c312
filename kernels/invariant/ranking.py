"""The largest numbers of a row in one order, equal ones too."""

import torch
from torch import Tensor


def largest(values_NV: Tensor, most: int) -> Tensor:
    """Ids [N, most] of the largest of float32 `values_NV`, largest first; of equal ones the lower id comes first."""
    vocab = values_NV.shape[1]
    bits = values_NV.contiguous().view(torch.int32)
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    keys = torch.topk(order + torch.arange(vocab - 1, -1, -1, device=order.device), min(most, vocab), sorted=True).values
    return vocab - 1 - (keys & 0xFFFFFFFF)
