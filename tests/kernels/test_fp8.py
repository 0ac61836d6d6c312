"""The reference of FP8: conversion, quantised rows, the product, and a cache of keys and values."""

import pytest
import torch

from kernels.reference.attention import attend, copy_blocks, plan_attention, write_kv
from kernels.reference.fp8 import E4M3, LARGEST, Fp8Linear, converted, quantise_rows

CODE = 2**-4
"""The largest relative error of a normal code."""


def test_conversion_saturates_and_keeps_nan() -> None:
    found = converted(torch.tensor([1e4, -torch.inf, LARGEST + 1, 3.3, 2.0**-9, 2.0**-12, torch.nan]), E4M3).float()
    assert found[:6].tolist() == [LARGEST, -LARGEST, LARGEST, 3.25, 2.0**-9, 0.0]
    assert bool(found[6].isnan())
    assert converted(torch.tensor([1e4]), torch.float32).item() == 1e4


def test_quantised_rows() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 65) * torch.tensor([[1e-6], [1.0], [1e6], [0.0], [1.0]])
    x[4, 1] = torch.nan
    codes, scale = quantise_rows(x)
    assert codes[:3].float().abs().amax(1).tolist() == [LARGEST] * 3
    torch.testing.assert_close(codes[:4].float() * scale[:4, None], x[:4], rtol=CODE, atol=float(2**-10 * scale[2]))
    assert bool(codes[4].float().isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_product(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.reference.fp8.ROWS", 7)
    torch.manual_seed(1)
    weight, bias, x = (torch.randn(*shape).to(dtype) for shape in ((40, 24), (40,), (3, 24)))
    weight[2] = 0
    linear = Fp8Linear(weight, bias)
    assert linear.weight.dtype == E4M3
    assert linear.weight.shape == weight.shape
    matrix = linear.weight.double() * linear.scale.double()[:, None]
    assert float((matrix - weight.double()).norm() / weight.double().norm()) < 0.03
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(linear(x).double(), x.double() @ matrix.T + bias.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kept", [E4M3, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("starts", "counts", "singles"), [([0, 17], [20, 3], 0), ([33, 7, 129], [1, 1, 1], 3), ([5, 40], [4, 1], 1)], ids=str)
def test_attention_is_that_of_the_rounded_keys(starts: list[int], counts: list[int], singles: int, kept: torch.dtype) -> None:
    torch.manual_seed(2)
    blocks = 40
    shape = blocks + 1, 2, 16, 8
    table = torch.randperm(blocks)[: 13 * len(starts)].view(len(starts), 13)
    plan = plan_attention(table, starts, counts, singles, 4, 2, 16)
    new = torch.randn(2, sum(counts), 2, 8) * 3
    q, found, expected = torch.randn(sum(counts), 4, 8), torch.empty(sum(counts), 4, 8), torch.empty(sum(counts), 4, 8)
    old = torch.randn(2, *shape)
    narrow = [converted(x, kept) for x in old]
    wide = [x.float() for x in narrow]
    write_kv(narrow[0], narrow[1], new[0], new[1], plan)
    attend(q, narrow[0], narrow[1], plan, 0.3, found)
    plan = plan_attention(table, starts, counts, singles, 4, 2, 16)
    rounded = converted(new, kept).float()
    write_kv(wide[0], wide[1], rounded[0], rounded[1], plan)
    attend(q, wide[0], wide[1], plan, 0.3, expected)
    assert torch.equal(narrow[0].float(), wide[0])
    torch.testing.assert_close(found, expected)


def test_blocks_are_copied() -> None:
    cache = torch.arange(4.0)[None, :, None, None, None].repeat(2, 1, 1, 2, 2).to(E4M3)
    copy_blocks(cache, torch.tensor([0, 1]), torch.tensor([1, 2]))
    assert cache.float()[1, :, 0, 0, 0].tolist() == [0.0, 0.0, 1.0, 3.0]
