"""FP8 in Triton and in the library: the cache that rope_kv writes and attention reads, quantised rows, products of many rows."""

import pytest
import torch
from torch import Tensor

from checkpoint.config import ModelConfig
from checkpoint.shapes import SHAPES
from kernels import decode_row, fp8, narrow, products, skinny
from kernels.attention import attend, copy_blocks, plan_attention
from kernels.reference import fp8 as reference
from kernels.reference.fp8 import E4M3, LARGEST, converted
from kernels.reference.narrow import product as twin_product
from kernels.reference.rope import RopeSpec, rope_table, rotate
from kernels.rope_kv import rope_kv
from tests.kernels.test_triton_attention import BATCHES, dense, make_cache
from tests.support.devices import DEVICE, GPU, assert_close, name, poisoned, randn

WIDE = torch.bfloat16 if GPU else torch.float32
"""What a GPU computes in; Triton's interpreter multiplies bfloat16 matrices wrongly."""
CODE = 2**-4
"""The largest relative error of a normal code."""


def widened(cache: Tensor) -> Tensor:
    return cache.float().cpu()


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 64), (9, 3, 80), (16, 8, 128)], ids=lambda n: str(n))
def test_rope_kv_saturates(heads: int, kv_heads: int, size: int, normed: bool) -> None:
    """Keys and values are the rounded ones, too large ones the largest, NaN stays, and nothing else is written."""
    torch.manual_seed(heads)
    starts, counts, block_size = [14, 0, 40], [3, 2, 1], 16
    table = torch.tensor([[4, 2, -1], [6, -1, -1], [0, 5, 1]], device=DEVICE)
    plan = plan_attention(table, starts, counts, 1, heads, kv_heads, block_size)
    qkv = randn(6, (heads + 2 * kv_heads) * size, dtype=WIDE) * 10
    qkv[0, -3:] = torch.tensor([torch.nan, torch.inf, -1e4], device=DEVICE)
    qkv[1, -2:] = torch.tensor([LARGEST + 1, 2**-12], device=DEVICE)
    k_cache, v_cache = (poisoned(8, kv_heads, block_size, size, dtype=WIDE).to(E4M3) for _ in range(2))
    before = k_cache.clone()
    cos, sin = (x.to(DEVICE) for x in rope_table(RopeSpec(), size, 48))
    norms = (randn(size, dtype=WIDE), randn(size, dtype=WIDE)) if normed else None
    rope_kv(qkv, norms, 1e-6, (cos, sin), k_cache, v_cache, plan)
    _, k, v = qkv.double().view(6, -1, size).split((heads, kv_heads, kv_heads), 1)
    if norms is not None:
        k = k * torch.rsqrt(k.square().mean(-1, keepdim=True) + 1e-6) * norms[1].double()
    positions = torch.tensor([14, 15, 16, 0, 1, 40], device=DEVICE)
    blocks, offsets = torch.tensor([4, 4, 2, 6, 6, 1], device=DEVICE), positions % block_size
    rotated = rotate(k, cos.double()[positions], sin.double()[positions])
    torch.testing.assert_close(k_cache[blocks, :, offsets].double(), rotated.clamp(-LARGEST, LARGEST), rtol=CODE, atol=2**-10)
    expected = converted(v.float(), E4M3)
    assert torch.equal(widened(v_cache[blocks, :, offsets]).nan_to_num(7.0), widened(expected).nan_to_num(7.0))
    assert int(v_cache[4, -1, 14, -3:].float().isnan().sum()) == 1
    written = torch.zeros(8, block_size, dtype=torch.bool, device=DEVICE)
    written[blocks, offsets] = True
    kept = ~written[:, None].expand(-1, kv_heads, -1)
    assert torch.equal(k_cache.view(torch.uint8)[kept], before.view(torch.uint8)[kept])


@pytest.mark.parametrize(
    ("batch", "shape", "window"),
    [("odd-decodes", (9, 3, 64), None), ("long-and-short", (8, 1, 128), 100), ("prefills", (4, 2, 80), None), ("mixed", (16, 8, 128), 16)],
    ids=lambda n: str(n).replace(", ", "x"),
)
def test_attention_reads_what_was_rounded(batch: str, shape: tuple[int, int, int], window: int | None) -> None:
    (starts, counts, singles), (heads, kv_heads, size) = BATCHES[batch], shape
    torch.manual_seed(1)
    keys = [randn(2, start + count, kv_heads, size, dtype=WIDE).to(E4M3) for start, count in zip(starts, counts, strict=True)]
    wide = [key.to(WIDE) for key in keys]
    k_wide, v_wide, table = make_cache(wide, starts, window, 16, WIDE)
    q = randn(sum(counts), heads, size, dtype=WIDE)
    out = poisoned(*q.shape, dtype=WIDE)
    plan = plan_attention(table, starts, counts, singles, heads, kv_heads, 16, window)
    attend(q, k_wide.to(E4M3), v_wide.to(E4M3), plan, 0.2, out)
    first = 0
    for key, start, count in zip(wide, starts, counts, strict=True):
        assert_close(out[first : first + count], dense(q[first : first + count], key[0], key[1], start, 0.2, window))
        first += count


@pytest.mark.parametrize(("shape", "window"), [((4, 2, 80), None), ((9, 3, 64), 17), ((16, 8, 128), None)], ids=lambda n: str(n).replace(", ", "x"))
def test_one_row_in_one_kernel(shape: tuple[int, int, int], window: int | None) -> None:
    """Rotation, cache write and attention in one: the same cells as the separate kernels write, and attention that reads what was rounded."""
    (heads, kv_heads, size), at = shape, [40, 0]
    torch.manual_seed(size)
    qkv = randn(2, (heads + 2 * kv_heads) * size, dtype=WIDE) * 3
    keys = [randn(2, start + 1, kv_heads, size, dtype=WIDE) for start in at]
    k_cache, v_cache, table = make_cache(keys, at, window, 16, WIDE)
    rope = tuple(x.to(DEVICE) for x in rope_table(RopeSpec(), size, 64))
    norms = (randn(size, dtype=WIDE), randn(size, dtype=WIDE))
    plan = plan_attention(table, at, [1, 1], 2, heads, kv_heads, 16, window)
    apart, together = ([cache.to(E4M3) for cache in (k_cache, v_cache)] for _ in range(2))
    expected, found = (poisoned(2, heads, size, dtype=WIDE) for _ in range(2))
    q = rope_kv(qkv, norms, 1e-6, (rope[0], rope[1]), apart[0], apart[1], plan)
    attend(q, apart[0], apart[1], plan, 0.2, expected)
    decode_row.rope_decode(qkv, norms, 1e-6, (rope[0], rope[1]), together[0], together[1], plan, 0.2, found)
    for one, two in zip(apart, together, strict=True):
        assert float((one.view(torch.uint8) != two.view(torch.uint8)).double().sum()) <= 0.002 * qkv.numel(), "few sums end on another code"
    assert_close(found, expected.double(), 3.0)


def test_blocks_are_copied() -> None:
    cache = torch.arange(4.0, device=DEVICE)[None, :, None, None, None].repeat(2, 1, 1, 2, 2).to(E4M3)
    copy_blocks(cache, torch.tensor([0, 1], device=DEVICE), torch.tensor([1, 2], device=DEVICE))
    assert cache.float()[1, :, 0, 0, 0].tolist() == [0.0, 0.0, 1.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name)
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (3, 65), (4, 1024), (2, 4097)], ids=lambda n: str(n))
def test_quantised_rows(rows: int, size: int, normed: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    x, weight = randn(rows, size, dtype=dtype) * 3, randn(size, dtype=dtype)
    x[0] = 0
    wide = x.float()
    if normed:
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.float()
    codes, scale = fp8.quantise_rows(x, weight if normed else None, 1e-5)
    twin_codes, twin_scale = reference.quantise_rows(wide)
    assert codes.dtype == E4M3
    torch.testing.assert_close(scale, twin_scale, rtol=1e-5, atol=0.0)
    assert float((widened(codes) != widened(twin_codes)).double().mean()) <= 0.002, "a sum in another order moves few values to the next code"
    torch.testing.assert_close(codes.float() * scale[:, None], wide, rtol=CODE, atol=2**-10 * float(scale.max()))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_row_that_is_not_finite_stays_so() -> None:
    x = randn(3, 64, dtype=WIDE)
    x[0, 3], x[1, 7] = torch.nan, torch.inf
    linear = fp8.Fp8Linear(randn(32, 64, dtype=WIDE))
    y = linear(x)
    assert bool((~y[:2].isfinite()).all())
    assert bool(y[2].isfinite().all())


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("rows", "size", "count"), [(65, 64, 48), (130, 576, 96), (70, 72, 40)], ids=lambda n: str(n))
def test_products_of_many_rows(rows: int, size: int, count: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64: of the rounded weights within the error of rounded inputs, and exactly that of the rounded inputs."""
    monkeypatch.setitem(products.FEW, torch.float32, 64)
    torch.manual_seed(size)
    x, norm, weight = randn(rows, size, dtype=WIDE), randn(size, dtype=WIDE), randn(2 * count, size, dtype=WIDE) / size**0.5
    linear = fp8.Fp8Linear(weight, randn(2 * count, dtype=WIDE) if bias else None)
    offset = 0.0 if linear.bias is None else linear.bias.double()
    matrix = linear.weight.double() * linear.scale.double()[:, None]
    exact = not size % 16 and not 2 * count % 16

    def rounded(x: Tensor) -> Tensor:
        codes, scale = reference.quantise_rows(x.float())
        return codes.double() * scale.double()[:, None] if exact else x.double()

    wide = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * norm.double()
    product = rounded(wide) @ matrix.T + offset
    assert_close(products.norm_linear(x, norm, 1e-5, linear), product, 10.0)
    assert float((product - (wide @ matrix.T + offset)).norm() / product.norm()) < 0.04
    gate, up = product.chunk(2, -1)
    assert_close(products.norm_gate_up(x, norm, 1e-5, linear), gate * torch.sigmoid(gate) * up, 20.0)
    residual = randn(rows, 2 * count, dtype=WIDE)
    expected = residual.double() + rounded(x) @ matrix.T + offset
    products.linear_add(residual, x, linear)
    assert_close(residual, expected, 10.0)


@pytest.mark.parametrize("parts", [1, 3], ids=lambda n: f"parts-{n}")
@pytest.mark.parametrize("gated", [False, True], ids=["added", "gated"])
@pytest.mark.parametrize(("rows", "size", "count"), [(1, 64, 5), (3, 200, 40), (17, 1024, 33), (64, 576, 96)], ids=lambda n: str(n))
def test_quantised_rows_by_quantised_weights(rows: int, size: int, count: int, gated: bool, parts: int) -> None:
    torch.manual_seed(size + count)
    x, x_scale = reference.quantise_rows(randn(rows, size, dtype=torch.float32))
    weight, scale = reference.quantise_rows(randn(2 * count if gated else count, size, dtype=torch.float32) / size**0.5)
    bias = None if gated else randn(count, dtype=WIDE)
    start = randn(rows, count, dtype=WIDE)
    product = (x.double() * x_scale.double()[:, None]) @ (weight.double() * scale.double()[:, None]).T
    if gated:
        gate, up = product.chunk(2, -1)
        expected = gate * torch.sigmoid(gate) * up
    else:
        expected = product + (0.0 if bias is None else bias.double()) + start.double()
    found, twin = start.clone(), start.clone()
    narrow.product(x, x_scale, weight, scale, bias, found, gated, not gated, narrow.Settings(columns=64, depth=64, stages=2, parts=parts))
    twin_product(x, x_scale, weight, scale, bias, twin, gated, not gated)
    assert_close(found, expected, 10.0)
    assert_close(twin, expected, 10.0)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_products_of_few_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row leaves the input as it is; more are quantised like many."""
    monkeypatch.setitem(products.FEW, torch.float32, 64)
    torch.manual_seed(rows)
    x, norm, weight = randn(rows, 80, dtype=WIDE), randn(80, dtype=WIDE), randn(96, 80, dtype=WIDE) / 9
    linear = fp8.Fp8Linear(weight)
    matrix = linear.weight.double() * linear.scale.double()[:, None]

    def rounded(x: Tensor) -> Tensor:
        codes, scale = reference.quantise_rows(x.float())
        return x.double() if rows == 1 else codes.double() * scale.double()[:, None]

    product = rounded(x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * norm.double()) @ matrix.T
    assert_close(products.norm_linear(x, norm, 1e-5, linear), product, 10.0)
    gate, up = product.chunk(2, -1)
    assert_close(products.norm_gate_up(x, norm, 1e-5, linear), gate * torch.sigmoid(gate) * up, 20.0)
    residual = randn(rows, 96, dtype=WIDE)
    expected = residual.double() + rounded(x) @ matrix.T
    products.linear_add(residual, x, linear)
    assert_close(residual, expected, 10.0)


def test_parts_that_do_not_fit() -> None:
    x, weight = torch.zeros(64, 64, device=DEVICE).to(E4M3), torch.zeros(1, 64, device=DEVICE).to(E4M3).expand(1 << 17, 64)
    out = torch.empty(64, 1 << 17, device=DEVICE)
    with pytest.raises(ValueError, match="do not fit"):
        narrow.product(x, out[:, 0], weight, out[0], None, out, settings=narrow.Settings(parts=2))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_settings_fit(shape: ModelConfig) -> None:
    """Shared memory of an H200 and the scratch memory, at the most rows; every part of the depth has something to do."""
    width = shape.heads * shape.head_dim
    sides = [(width + 2 * shape.kv_heads * shape.head_dim, shape.hidden), (shape.hidden, width), (shape.mlp, shape.hidden), (shape.hidden, shape.mlp)]
    for (columns, depth), gated in zip(sides, (False, False, True, False), strict=True):
        found = narrow.settings_for(columns, depth, gated)
        assert (found.columns + 64) * found.depth * found.stages < 227 * 1024
        assert columns * found.parts * 64 <= skinny.SCRATCH_PARTS
        assert found.parts * found.depth <= depth
