"""Products of a few rows with norm, activation or residual folded in, against float64."""

import pytest
import torch

from kernels import gemv
from tests.support.devices import DTYPES, assert_close, name, randn


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(("rows", "size", "count"), [(1, 64, 5), (2, 576, 40), (1, 1536, 9), (3, 1024, 8), (8, 65, 17)], ids=lambda n: str(n))
def test_products(rows: int, size: int, count: int, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    x, norm, weight = randn(rows, size, dtype=dtype), randn(size, dtype=dtype), randn(2 * count, size, dtype=dtype) / size**0.5
    bias, residual = randn(2 * count, dtype=dtype), randn(rows, 2 * count, dtype=dtype)
    wide = x.double()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * norm.double()
    product = normed @ weight.double().T
    assert_close(gemv.norm_linear(x, norm, 1e-5, weight), product)
    assert_close(gemv.norm_linear(x, norm, 1e-5, weight, bias), product + bias.double())
    logits = gemv.norm_logits(x, norm, 1e-5, weight)
    assert logits.dtype == torch.float32
    assert_close(logits, product)
    gate, up = product.chunk(2, -1)
    assert_close(gemv.norm_gate_up(x, norm, 1e-5, weight), gate * torch.sigmoid(gate) * up)
    expected = residual.double() + wide @ weight.double().T
    gemv.linear_add(residual, x, weight)
    assert_close(residual, expected)


def test_pieces_cover_a_row() -> None:
    assert [gemv.pieces(n) for n in (1, 576, 1024, 1536, 3072, 8192, 14336)] == [
        (1, 1), (1024, 1), (1024, 1), (512, 3), (1024, 3), (2048, 4), (2048, 7),
    ]  # fmt: skip
