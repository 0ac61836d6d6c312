"""Cases of FP8: attention over such keys and values, and products by such weights, beside the same products in bfloat16."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from bench.gpu import attention_cases
from bench.gpu.case import BF16, Case, normal, relative, sets_for
from bench.gpu.product_cases import MODELS
from kernels import decode_attention, fp8, prefill_attention, products
from kernels.decode_attention import WHOLE
from kernels.reference.fp8 import E4M3
from kernels.reference.linear import Linear

EPS = 1e-6
DECODE = [(16, 1, 3), (32, 1, 3), (32, 2, 2), (32, 2, 3), (64, 2, 2), (64, 2, 3), (64, 4, 3), (128, 4, 2), (128, 4, 3), (128, 8, 2)]
PREFILL = [(64, 4, 2), (64, 4, 3), (64, 8, 2), (64, 8, 3), (128, 8, 2), (128, 8, 3), (128, 4, 2)]


def decode_case(shape: str, lengths: list[int]) -> Case:
    """As of attention_cases; half the bytes."""
    _, kv_heads, size = attention_cases.SHAPES[shape]
    floor = sum(lengths) * kv_heads * size * 2.0
    sets = sets_for(int(floor), 16)
    problem = attention_cases.Problem(shape, lengths, [1] * len(lengths), len(lengths), sets)
    problem.k, problem.v = problem.k.to(E4M3), problem.v.to(E4M3)
    plan, longest = problem.plan, max(lengths)

    def run(settings: decode_attention.Settings | None, number: int) -> None:
        where = plan.table, plan.slot, plan.position, longest
        decode_attention.decode(problem.q, problem.k[number], problem.v[number], *where, None, problem.scale, problem.out, plan.balanced, settings)

    shares = (64, 128, 256) if len(lengths) < 16 else (512, WHOLE)
    candidates = [decode_attention.Settings(*tile, share) for tile in DECODE for share in shares if share >= tile[0]]
    variants: dict[str, Any] = {f"N{s.tile} w{s.warps} s{s.stages} share {s.share}": partial(run, s) for s in candidates}
    variants["default"] = partial(run, None)
    name = f"fp8 decode R{len(lengths)} S{longest} {shape}"
    return Case(name=name, floor=floor, sets=sets, variants=variants, outputs=[problem.out], error=problem.error, default="default")


def prefill_case(shape: str, prompts: int, length: int) -> Case:
    heads, _, size = attention_cases.SHAPES[shape]
    problem = attention_cases.Problem(shape, [length] * prompts, [length] * prompts, 0, 2)
    problem.k, problem.v = problem.k.to(E4M3), problem.v.to(E4M3)
    plan = problem.plan

    def run(settings: prefill_attention.Settings | None, number: int) -> None:
        where = plan.table, plan.slot, plan.position, plan.tiles
        prefill_attention.prefill(problem.q, problem.k[number], problem.v[number], *where, None, problem.scale, problem.out, settings)

    variants: dict[str, Any] = {f"N{s[0]} w{s[1]} s{s[2]}": partial(run, prefill_attention.Settings(*s)) for s in PREFILL}
    variants["default"] = partial(run, None)
    return Case(
        name=f"fp8 prefill {prompts} x {length} {shape}", floor=2.0 * prompts * length * (length + 1) * heads * size, operations=True, sets=2,
        variants=variants, outputs=[problem.out], error=problem.error, default="default",
    )  # fmt: skip


def product_case(model: str, kind: str, rows: int) -> Case:
    """rms_norm(x) @ weight.T, or with `add` x @ weight.T into the residual: as the product computes it in FP8 and in bfloat16."""
    hidden, qkv, heads, inner, _ = MODELS[model]
    count, columns = {"qkv": (qkv, hidden), "o": (hidden, heads), "gate_up": (2 * inner, hidden), "down": (hidden, inner)}[kind]
    sets = sets_for(count * columns, 8)
    wide = [Linear(weight) for weight in normal(sets, count, columns, scale=columns**-0.5)]
    narrow = [fp8.Fp8Linear(linear.weight) for linear in wide]
    x, gamma = normal(rows, columns), normal(columns)
    out: list[torch.Tensor] = []

    def run(linears: Sequence[Linear], number: int) -> None:
        if kind in ("qkv", "gate_up"):
            call = products.norm_linear if kind == "qkv" else products.norm_gate_up
            out[:] = [call(x, gamma, EPS, linears[number])]
        else:
            out[:] = [torch.zeros(rows, count, dtype=BF16, device=x.device)]
            products.linear_add(out[0], x, linears[number])

    def error() -> float:
        """Against unrounded weights: what FP8 costs is most of it, so a broken kernel stands out but not a slightly wrong one."""
        exact = x.double()
        if kind in ("qkv", "gate_up"):
            exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + EPS) * gamma.double()
        expected = exact @ wide[0].weight.double().T
        if kind == "gate_up":
            gate, up = expected.chunk(2, -1)
            expected = gate * torch.sigmoid(gate) * up
        return relative(out[0], expected) / 8

    variants = {"default": partial(run, narrow), "library": partial(run, wide)}  # the latter by whatever is fastest in bfloat16
    floor = float(count * columns) if rows <= 256 else 2.0 * rows * count * columns
    return Case(name=f"fp8 {kind} T{rows} {model}", floor=floor, operations=rows > 256, sets=sets, variants=variants, error=error, default="default")


def cases() -> Iterator[Case]:
    for shape in attention_cases.SHAPES:
        for rows, length in ((1, 512), (8, 1088), (64, 1088), (256, 800)):
            yield decode_case(shape, [length] * rows)
        yield prefill_case(shape, 16, 1024)
    for model in MODELS:
        for kind in ("qkv", "o", "gate_up", "down"):
            for rows in (1, 8, 64, 256, 8192):
                yield product_case(model, kind, rows)
