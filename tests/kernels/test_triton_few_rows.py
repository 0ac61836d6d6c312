"""Products of a few rows by whole rows of the weight, with norm, activation or residual folded in, against float64."""

import pytest
import torch

from kernels import few_rows
from tests.support.devices import DEVICE, GPU, assert_close, randn

EPS = 1e-5
CASES = [(3, 96, 40, few_rows.Settings(16, 4, 4)), (8, 512, 33, few_rows.Settings(8, 8, 8)), (5, 1536, 24, few_rows.Settings(16, 4, 4))]
if GPU:
    SHAPES = [(1024, 4096), (2048, 1024), (3072, 1024)]
    CASES += [(rows, size, count, few_rows.settings_for(count, size)) for rows in (3, 8) for size, count in SHAPES]


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("rows", "size", "count", "settings"), CASES, ids=str)
def test_products(rows: int, size: int, count: int, settings: few_rows.Settings, normed: bool) -> None:
    torch.manual_seed(size)
    dtype = torch.bfloat16 if GPU else torch.float16  # Triton's interpreter has no products of bfloat16
    x, weight, bias = randn(rows, size, dtype=dtype), randn(2 * count, size, dtype=dtype) / size**0.5, randn(count, dtype=dtype)
    norm = randn(size, dtype=dtype) if normed else None
    wide = x.double()
    if norm is not None:
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * norm.double()
    gate, up = (wide @ weight.double().T).chunk(2, -1)
    residual = randn(rows, count, dtype=dtype)
    expected = residual.double() + gate
    few_rows.product(x, norm, EPS, weight[:count], None, residual, False, True, settings)
    assert_close(residual, expected, 2.0)
    out = torch.full((rows, count), torch.nan, dtype=dtype, device=DEVICE)
    few_rows.product(x, norm, EPS, weight[:count], bias, out, False, False, settings)
    assert_close(out, gate + bias.double(), 2.0)
    if not few_rows.wins(rows, count, size, True):
        return
    out.fill_(torch.nan)
    few_rows.product(x, norm, EPS, weight, None, out, True, False, settings)
    assert_close(out, gate * torch.sigmoid(gate) * up, 2.0)


def test_where_it_is_used() -> None:
    assert few_rows.wins(8, 4096, 1024, False)
    assert few_rows.wins(3, 1024, 3072, False)
    assert few_rows.wins(8, 3072, 1024, True)
    assert not few_rows.wins(9, 4096, 1024, False)
    assert not few_rows.wins(8, 151_936, 1024, False)
    assert not few_rows.wins(8, 2048, 2048, False)
    assert not few_rows.wins(8, 1024, 2048, True)
