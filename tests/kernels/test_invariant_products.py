"""Products of `--deterministic`: the same bits for a row whatever is beside it, and close to float64."""

import pytest
import torch
from torch import Tensor

from kernels.invariant import hopper_product, products
from kernels.launch import on_hopper
from kernels.norm import rms_norm
from kernels.reference.linear import Linear
from tests.support.devices import DEVICE, DTYPES, GPU, assert_close, name, randn

COUNTS = [1, 2, 7, 16, 17, 63, 64, 65, 200, 256] if GPU else [1, 7, 64, 65, 70]
MOST = 1500 if GPU else 70
SHAPES = [(576, 192), (1024, 3072), (3072, 1024), (2048, 40)] if GPU else [(64, 40)]
"""Depth and columns."""
on_a_hopper = pytest.mark.skipif(not GPU or not on_hopper(DEVICE), reason="needs an H100 or H200")


def make(size: int, count: int, dtype: torch.dtype, height: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(size + count)
    return randn(MOST, size, dtype=dtype), randn(height * count, size, dtype=dtype) / size**0.5, randn(MOST, count, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(("size", "count"), SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["plain", "bias", "add", "gated"])
def test_a_row_is_the_same_beside_any_others(size: int, count: int, kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.reference.linear._can_pack", lambda weight: False)
    x, weight, residual = make(size, count, dtype, 2 if kind == "gated" else 1)
    linear = Linear(weight, residual[0] if kind == "bias" else None)

    def of(first: int, rows: int) -> Tensor:
        out = residual[first : first + rows].clone() if kind == "add" else torch.full((rows, count), torch.nan, dtype=dtype, device=DEVICE)
        products.product(x[first : first + rows], linear, out, gated=kind == "gated", add=kind == "add")
        return out

    whole, expected = of(0, MOST), x.double() @ weight.double().T
    if kind == "gated":
        gate, up = expected.chunk(2, -1)
        expected = gate * torch.sigmoid(gate) * up
    if kind in ("bias", "add"):
        expected = expected + (residual[0] if kind == "bias" else residual).double()
    assert_close(whole, expected, 2.0)
    places = [(rows, first) for rows in COUNTS for first in {0, 1, MOST - rows} if first + rows <= MOST]
    assert [place for place in places if not torch.equal(of(place[1], place[0]), whole[place[1] : sum(place)])] == []


@on_a_hopper
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_no_setting_changes_a_bit(gated: bool) -> None:
    x, weight, residual = make(1024, 192, torch.bfloat16, 2 if gated else 1)
    found = []
    for rows, columns, depth in [(64, 8, 128), (64, 16, 256), (64, 64, 128), (128, 32, 64), (128, 128, 64), (128, 64, 128), (256, 64, 64)]:
        out = torch.full_like(residual, torch.nan)
        hopper_product.product(x, weight, None, out, gated=gated, settings=hopper_product.Settings(rows, columns, depth, 3))
        found.append(out)
    assert all(torch.equal(out, found[0]) for out in found)


def test_types_and_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.reference.linear._can_pack", lambda weight: False)
    x, weight, residual = make(64, 40, torch.float16, 2)
    norm, bias = randn(64, dtype=torch.float16), randn(80, dtype=torch.float16)
    normed = rms_norm(x, norm, 1e-5).double()
    found = products.norm_linear(x, norm, 1e-5, Linear(weight), torch.float32)
    assert found.dtype == torch.float32
    assert_close(found, normed @ weight.double().T, 100.0)
    for given in (None, bias):
        gate, up = (normed @ weight.double().T + (0 if given is None else given.double())).chunk(2, -1)
        assert_close(products.norm_gate_up(x, norm, 1e-5, Linear(weight, given)), gate * torch.sigmoid(gate) * up, 2.0)
    expected = residual.double() + x.double() @ weight[:40].double().T
    products.linear_add(residual, x, Linear(weight[:40].contiguous()))
    assert_close(residual, expected)


def test_quantised_weights_are_refused() -> None:
    x, weight, residual = make(64, 40, torch.float16)
    linear = Linear(weight)
    linear.scale = torch.ones(40)
    with pytest.raises(ValueError, match="leave out --weights fp8 or --deterministic"):
        products.product(x, linear, residual)
