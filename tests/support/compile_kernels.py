"""Compiles every Triton kernel for an H100/H200 without a GPU: what the interpreter accepts the compiler may not.

Run as a script, without TRITON_INTERPRET. Prints one line a kernel: name, registers spilled, shared memory.
"""

import time
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels import (
    attention,
    decode_attention,
    decode_row,
    few_rows,
    fp8,
    gemv,
    mask,
    mlp,
    narrow,
    norm,
    prefill_attention,
    products,
    resident,
    ring,
    rope_kv,
    sampling,
    skinny,
)
from kernels.launch import MOST_DEPENDENT_ROWS
from kernels.reference import linear
from kernels.reference.linear import Linear
from kernels.reference.sampling import Penalties, SamplingBatch
from worker.resident.arena import Arena

TYPES = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
}  # fmt: skip
SEEN: set[str] = set()


def compile_kernel(kernel: Any, grid: tuple[int, ...], rows: int, *arguments: Any, **settings: Any) -> None:
    """Stands in for `kernels.launch.launch`."""
    names = kernel.arg_names
    values = {**dict(zip(names, arguments, strict=False)), **{k: v for k, v in settings.items() if k in names}, "PDL": rows <= MOST_DEPENDENT_ROWS}
    options = {k: v for k, v in settings.items() if k not in names or k == "num_warps"}  # a Gluon kernel also wants to know its warps
    signature, constants, attributes = {}, {}, {}
    for index, name in enumerate(names):
        value = values[name]
        if isinstance(value, TensorDescriptor):
            signature[name] = f"tensordesc<{TYPES[value.base.dtype][1:]}{list(value.block_shape)},{value.layout!r}>"
        elif isinstance(value, Tensor):
            signature[name] = TYPES[value.dtype]
            if name not in ("slot_ptr", "position_ptr", "tile_ptr"):
                attributes[(index,)] = [["tt.divisibility", 16]]
        elif name in kernel_constants(kernel) or value is None:
            signature[name] = "constexpr"
            constants[(index,)] = value
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    key = f"{kernel.fn.__name__} {signature} {constants} {options}"
    if key in SEEN:
        return
    SEEN.add(key)
    began = time.perf_counter()
    source = (GluonASTSource if kernel.is_gluon() else ASTSource)(kernel, signature, constants, attributes)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={**options, "launch_pdl": rows <= MOST_DEPENDENT_ROWS})
    found = {k: v for k, v in constants.items() if isinstance(v, int)}
    seconds = time.perf_counter() - began
    print(f"{kernel.fn.__name__:14} shared {built.metadata.shared:6} {seconds:4.1f} s {list(found.values())} {options}", flush=True)


def kernel_constants(kernel: Any) -> set[str]:
    return {parameter.name for parameter in kernel.params if parameter.is_constexpr}


def main() -> None:
    attending = decode_attention, decode_row, prefill_attention, rope_kv
    for module in (*attending, few_rows, fp8, gemv, mask, mlp, narrow, norm, resident, ring, sampling, skinny):
        setattr(module, "launch", compile_kernel)  # noqa: B010
    setattr(linear, "_can_pack", lambda weight: False)  # noqa: B010
    assert not triton.knobs.runtime.interpret
    dtype = torch.bfloat16
    x, weight = torch.randn(2, 1024, dtype=dtype), torch.randn(1024, dtype=dtype)
    norm.rms_norm(x, weight, 1e-5)
    norm.add_rms_norm(x, x, weight, 1e-5)
    mlp.silu_mul(x)
    matrix = torch.empty(64, 1024, dtype=dtype)
    for rows in (1, 8, 64):
        x, deep = torch.empty(rows, 1024, dtype=dtype), torch.empty(rows, 3072, dtype=dtype)
        products.norm_linear(x, weight, 1e-5, Linear(matrix, matrix[0]), torch.float32)
        products.norm_gate_up(x, weight, 1e-5, Linear(matrix))
        products.linear_add(torch.empty(rows, 64, dtype=dtype), deep, Linear(torch.empty(64, 3072, dtype=dtype)))
    row_weight, scale = torch.empty(128, 1024).to(torch.float8_e4m3fn), torch.empty(128)
    for depth, gated in ((1024, True), (576, False)):
        cut = row_weight.view(-1)[: 128 * depth].view(128, depth)
        gemv.product(torch.empty(1, depth, dtype=dtype), weight, 1e-5, cut, None, torch.empty(1, 64), gated, False, scale=scale)
    for tile in (ring.Settings(64, 32, 128, 8, 4), ring.Settings(128, 64, 64, 3, 3, 4)):
        for gated, gamma in ((True, None), (False, matrix[0, :64])):
            squares = torch.empty(64, 24) if gated else None
            ring.product(x, matrix, None, torch.empty(64, 32 if gated else 64, dtype=dtype), gated, not gated, tile, squares, 1e-5, gamma)
    for heads, kv_heads, size, window in ((16, 8, 128, None), (9, 3, 64, 50), (4, 2, 80, None)):
        plan = attention.plan_attention(torch.zeros(3, 9, dtype=torch.int32), [0, 9, 500], [5, 1, 1], 2, heads, kv_heads, 16, window)
        cache = torch.empty(9, kv_heads, 16, size, dtype=dtype)
        table = torch.empty(10, size)
        norms = (weight[:size], weight[:size]) if size == 128 else None
        q = rope_kv.rope_kv(torch.empty(7, (heads + 2 * kv_heads) * size, dtype=dtype), norms, 1e-5, (table, table), cache, cache, plan)
        attention.attend(q, cache, cache, plan, 0.1, torch.empty_like(q))
        small = cache.to(torch.float8_e4m3fn)
        rope_kv.rope_kv(torch.empty(7, (heads + 2 * kv_heads) * size, dtype=dtype), norms, 1e-5, (table, table), small, small, plan)
        attention.attend(q, small, small, plan, 0.1, torch.empty_like(q))
        plan = attention.plan_attention(torch.zeros(1, 33, dtype=torch.int32), [500], [1], 1, heads, kv_heads, 16, window)
        qkv, out = torch.empty(1, (heads + 2 * kv_heads) * size, dtype=dtype), torch.empty(1, heads, size, dtype=dtype)
        decode_row.rope_attend(qkv, norms, 1e-6, (table, table), cache, cache, plan, 0.1, out)
        decode_row.rope_attend(qkv, norms, 1e-6, (table, table), small, small, plan, 0.1, out)
    fp8.quantise_rows(x)
    codes, factors = fp8.quantise_rows(x, weight, 1e-5)
    narrow.product(codes[:3], factors[:3], row_weight, scale, None, torch.empty(3, 64, dtype=dtype), gated=True)
    narrow.product(codes, factors, row_weight, scale, None, torch.empty(64, 128, dtype=dtype), add=True, settings=narrow.Settings(parts=4))
    columns = Arena(8, 4, 99, torch.device("cpu")).columns
    slot = torch.zeros(3, dtype=torch.int32)
    resident.write_words(slot, torch.stack((slot, slot)))
    resident.begin_rows(columns, slot, slot, slot)
    resident.start_rows(columns, slot, slot, slot)
    resident.sampling_columns(columns, slot)
    resident.finish_rows(columns, slot, slot.long(), slot > 0)
    resident.finish_rows(columns, slot, slot.long(), slot > 0, torch.zeros(4, 40, dtype=torch.int32))
    for logits in (torch.randn(3, 20_000), torch.randn(3, 20_000, dtype=dtype)):
        mask.apply_mask(logits, slot, torch.zeros(3, 625, dtype=torch.int32))
    zeros, ints = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    one = zeros[:1]
    some = Penalties(row=ints[:1], counts=zeros[None], seen=ints[None] > 0, repetition=one, presence=one, frequency=one)
    for penalties in (None, some):
        for filtered in ([], [0]):
            batch = SamplingBatch(
                temperature=zeros, top_p=zeros, top_k=ints, min_p=zeros, seed=ints, position=ints,
                random=[0], filtered=filtered, penalties=penalties,
            )  # fmt: skip
            sampling.sample(torch.randn(2, 20_000, dtype=dtype), batch)


if __name__ == "__main__":
    main()
