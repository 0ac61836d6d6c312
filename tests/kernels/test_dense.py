"""Norms, the gated activation, linear layers and the embedding against float64."""

import pytest
import torch

from kernels.reference.embedding import embed
from kernels.reference.linear import Linear, padded
from kernels.reference.mlp import silu_mul
from kernels.reference.norm import add_rms_norm, rms_norm


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 15, 65], ids=lambda n: f"T{n}")
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_linear(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(96, 40), torch.randn(rows, 40)
    offset = torch.randn(96) if bias else None
    expected = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    torch.testing.assert_close(Linear(weight, offset)(x).double(), expected, rtol=1e-5, atol=1e-5)


def test_products_of_different_sizes_share_code() -> None:
    sizes = [padded(rows) for rows in range(1, 513)]
    assert all(rows <= size < 1.25 * rows + 2 for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) <= 50


def test_linear_without_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.reference.linear._can_pack", lambda weight: False)
    weight, x = torch.randn(7, 5), torch.randn(2, 5)
    linear = Linear(weight)
    assert not linear.packed
    torch.testing.assert_close(linear(x), x @ weight.T)


def test_norms() -> None:
    x, residual, weight = torch.randn(5, 64), torch.randn(5, 64), torch.randn(64)
    total = (residual + x).double()
    expected = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5) * weight
    torch.testing.assert_close(add_rms_norm(residual, x, weight, 1e-5).double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(residual.double(), total, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rms_norm(residual, weight, 1e-5).double(), expected, rtol=1e-5, atol=1e-6)


def test_silu_mul() -> None:
    x = torch.randn(3, 14)
    gate, up = x.double().chunk(2, -1)
    torch.testing.assert_close(silu_mul(x.clone()).double(), gate * torch.sigmoid(gate) * up, rtol=1e-5, atol=1e-6)


def test_embedding_pads_with_zeros() -> None:
    table = torch.randn(9, 4)
    out = embed(table, torch.tensor([8, 0]), 4)
    assert torch.equal(out[:2], table[[8, 0]])
    assert not out[2:].any()
