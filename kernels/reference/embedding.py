"""Embedding gather."""

import torch
from torch import Tensor


def embed(table_VN: Tensor, ids_T: Tensor, rows: int) -> Tensor:
    """Rows of `table_VN` for the int64 `ids_T`, as [rows, N]; rows past the ids (padding to a faster batch size) are zero."""
    count = ids_T.shape[0]
    out = table_VN.new_empty(rows, table_VN.shape[1])
    torch.index_select(table_VN, 0, ids_T, out=out[:count])
    if rows > count:
        out[count:].zero_()
    return out
