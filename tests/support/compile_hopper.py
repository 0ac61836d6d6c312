"""Compiles the Gluon kernels for an H100/H200 without a GPU, as tests.support.compile_kernels does the others. Prints one line a kernel."""

from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels import decode_attention, hopper_decode, hopper_prefill, launch
from kernels.attention import plan_attention
from kernels.invariant import hopper_product, hopper_rows
from tests.support.compile_kernels import TYPES, kernel_constants

SHAPES = [(16, 8, 128), (32, 8, 64), (8, 1, 128)]
BLOCK = 16


class Compiled:
    """Stands in for a kernel: compiled where it would be launched."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._compile

    def _compile(self, *arguments: Any, **settings: Any) -> None:
        names = self._kernel.arg_names
        values = dict(zip(names, arguments, strict=False)) | settings
        signature, constants, attributes = {}, {}, {}
        for index, name in enumerate(names):
            value = values[name] if name == "num_warps" else values.pop(name)  # also an option of the compiler
            if isinstance(value, Tensor):
                signature[name] = TYPES[value.dtype]
                if name not in ("slot_ptr", "position_ptr", "tile_ptr"):
                    attributes[(index,)] = [["tt.divisibility", 16]]
            elif isinstance(value, TensorDescriptor):
                signature[name] = f"tensordesc<{TYPES[value.base.dtype][1:]}{list(value.block_shape)},{value.layout!r}>"
            elif name in kernel_constants(self._kernel):
                signature[name] = "constexpr"
                constants[(index,)] = value
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
        source = GluonASTSource(self._kernel, signature, constants, attributes)
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=values)
        print(f"{self._kernel.fn.__name__:16} shared {built.metadata.shared:6} {list(constants.values())}", flush=True)


def main() -> None:
    assert not triton.knobs.runtime.interpret
    setattr(launch, "_architecture", lambda: launch.HOPPER)  # noqa: B010
    setattr(hopper_prefill, "_hopper_prefill", Compiled(hopper_prefill._hopper_prefill))  # noqa: B010
    setattr(hopper_decode, "_hopper_decode", Compiled(hopper_decode._hopper_decode))  # noqa: B010
    setattr(hopper_rows, "_hopper_rows", Compiled(hopper_rows._hopper_rows))  # noqa: B010
    setattr(hopper_product, "_in_order", Compiled(hopper_product._in_order))  # noqa: B010
    words, parts = torch.empty(9, decode_attention.WORDS, dtype=torch.int32), torch.empty(9)
    for heads, kv_heads, size in SHAPES:
        q, cache = torch.empty(7, heads, size, dtype=torch.bfloat16), torch.empty(9, kv_heads, BLOCK, size, dtype=torch.bfloat16)
        plan = plan_attention(torch.zeros(1, 9, dtype=torch.int32), [9], [7], 0, heads, kv_heads, BLOCK)
        where = plan.table, plan.slot, plan.position
        hopper_prefill.prefill(q, cache, cache, *where, plan.tiles, 0.1, q)
        chosen = decode_attention.settings_for(64, kv_heads, size, True)
        for merging, early in ((False, False), (False, True), (True, True)):
            hopper_decode.decode(q, cache, cache, *where, words, words[0], parts, parts, 0.1, q, chosen.tile, chosen.stages, merging, early)
            hopper_rows.attend_rows(q, cache, cache, plan.table, words, 0.1, q, 64, 3, early)
    for rows, columns, gated, add in ((1, 1024, False, True), (64, 4096, False, False), (200, 3072, True, False), (3000, 4096, False, False)):
        x, weight = torch.empty(rows, 1024, dtype=torch.bfloat16), torch.empty(columns * (2 if gated else 1), 1024, dtype=torch.bfloat16)
        hopper_product.product(x, weight, None, torch.empty(rows, columns, dtype=torch.bfloat16), gated, add)


if __name__ == "__main__":
    main()
