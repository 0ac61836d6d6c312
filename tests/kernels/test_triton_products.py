"""Products of a few rows with norm, activation or residual folded in, against float64: the one-row kernel, the tensor-core kernel, the library."""

import pytest
import torch

from kernels import gemv, products, skinny
from kernels.reference import gemv as reference
from kernels.reference.linear import Linear
from tests.support.devices import DEVICE, DTYPES, GPU, assert_close, name, randn

FEW = [(1, 64, 5), (1, 1536, 9), (2, 65, 17), (3, 576, 40), (17, 1024, 33), (64, 320, 8)]
MANY = [(1, 14_336, 64), (2, 2048, 1000), (8, 4096, 4096), (64, 3072, 1024), (33, 8192, 500)] if GPU else []


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(("rows", "size", "count"), [*FEW, *MANY], ids=lambda n: str(n))
def test_products(rows: int, size: int, count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.reference.linear._can_pack", lambda weight: False)
    monkeypatch.setitem(products.FEW, torch.float32, skinny.MOST_ROWS)
    torch.manual_seed(size)
    x, norm, weight = randn(rows, size, dtype=dtype), randn(size, dtype=dtype), randn(2 * count, size, dtype=dtype) / size**0.5
    bias, residual = randn(2 * count, dtype=dtype), randn(rows, 2 * count, dtype=dtype)
    wide, plain = x.double(), Linear(weight)
    product = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * norm.double()) @ weight.double().T
    assert_close(products.norm_linear(x, norm, 1e-5, plain), product)
    assert_close(products.norm_linear(x, norm, 1e-5, Linear(weight, bias)), product + bias.double())
    gate, up = product.chunk(2, -1)
    assert_close(products.norm_gate_up(x, norm, 1e-5, plain), gate * torch.sigmoid(gate) * up, 2.0)
    expected = residual.double() + wide @ weight.double().T
    products.linear_add(residual, x, plain)
    assert_close(residual, expected)


def test_type_of_the_result() -> None:
    x, norm, weight = (randn(*shape, dtype=torch.float16) for shape in ((3, 64), (64,), (8, 64)))
    found = products.norm_linear(x, norm, 1e-5, Linear(weight), torch.float32)
    assert found.dtype == torch.float32
    wide = x.double()
    assert_close(found, (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * norm.double()) @ weight.double().T, 100.0)


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_many_rows_use_the_library(bias: bool) -> None:
    dtype, rows = torch.float16, skinny.MOST_ROWS + 1
    x, norm, weight, residual = (randn(*shape, dtype=dtype) for shape in ((rows, 64), (64,), (8, 64), (rows, 8)))
    linear = Linear(weight, randn(8, dtype=dtype) if bias else None)
    offset = 0.0 if linear.bias is None else linear.bias.double()
    wide = x.double()
    product = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * norm.double()) @ weight.double().T + offset
    assert_close(products.norm_linear(x, norm, 1e-5, linear), product, 2.0)
    gate, up = product.chunk(2, -1)
    assert_close(products.norm_gate_up(x, norm, 1e-5, linear), gate * torch.sigmoid(gate) * up, 2.0)
    expected = residual.double() + wide @ weight.double().T + offset
    products.linear_add(residual, x, linear)
    assert_close(residual, expected, 2.0)


def test_parts_leave_the_counters_at_zero() -> None:
    for _ in range(2):
        x, weight, residual = (randn(*shape, dtype=torch.float16) for shape in ((5, 512), (40, 512), (5, 40)))
        expected = residual.double() + x.double() @ weight.double().T
        skinny.product(x, weight, None, residual, add=True, settings=skinny.Settings(columns=16, depth=64, parts=4))
        assert_close(residual, expected)
        assert not skinny.scratch_on(DEVICE)[1].any()


def test_pieces_cover_a_row() -> None:
    assert [gemv.pieces(n, 2) for n in (1, 576, 1024, 1536, 3072)] == [(1, 1), (1024, 1), (512, 2), (512, 3), (512, 6)]
    assert [gemv.pieces(n, 8) for n in (768, 1024, 3072, 8192, 14336)] == [(256, 3), (1024, 1), (1024, 3), (2048, 4), (2048, 7)]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(("size", "count"), [(64, 5), (1536, 8), (576, 9)], ids=lambda n: str(n))
def test_a_row_by_scaled_weights_of_eight_bits(size: int, count: int, gated: bool, rows: int) -> None:
    torch.manual_seed(size + count)
    height = 2 * count if gated else count
    x, norm, out = randn(rows, size, dtype=torch.float16), randn(size, dtype=torch.float16), randn(rows, count, dtype=torch.float16)
    weight, scale = randn(height, size, dtype=torch.float32).to(torch.float8_e4m3fn), randn(height, dtype=torch.float32).abs() / size**0.5
    wide = weight.double() * scale.double()[:, None]
    for normed, add in ((norm, False), (None, True)):
        found, twin = out.clone(), out.clone()
        gemv.product(x, normed, 1e-5, weight, None, found, gated, add, scale=scale)
        reference.product(x, normed, 1e-5, weight, None, twin, gated, add, scale)
        assert_close(found, twin.double())
        row = x.double()
        y = (row if normed is None else row * torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-5) * norm.double()) @ wide.T
        if gated:
            y = torch.sigmoid(y[:, :count]) * y[:, :count] * y[:, count:]
        assert_close(found, out.double() + y if add else y)


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_a_sum_and_the_product_of_its_norm(rows: int) -> None:
    dtype = DTYPES[-1]
    x, residual, norm = randn(rows, 96, dtype=dtype), randn(rows, 64, dtype=dtype), randn(64, dtype=dtype)
    weight, then = randn(64, 96, dtype=dtype) / 10, randn(32, 64, dtype=dtype) / 8
    ready = products.linear_add(residual, x, Linear(weight), norm)
    wide = residual.double()
    expected = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * norm.double()) @ then.double().T
    gate, up = expected.chunk(2, -1)
    assert_close(products.norm_linear(residual, norm, 1e-5, Linear(then), ready=ready), expected, 2.0)
    assert_close(products.norm_gate_up(residual, norm, 1e-5, Linear(then), ready), gate * torch.sigmoid(gate) * up, 2.0)
