"""Cases of products by FP8 weights, beside the same products in bfloat16."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from bench.gpu.case import BF16, Case, normal, relative, sets_for
from bench.gpu.product_cases import MODELS
from kernels import fp8, products
from kernels.reference.linear import Linear

EPS = 1e-6


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
    return Case(name=f"{kind} T{rows} {model}", floor=floor, operations=rows > 256, sets=sets, variants=variants, error=error, default="default")


def cases() -> Iterator[Case]:
    for model in MODELS:
        for kind in ("qkv", "o", "gate_up", "down"):
            for rows in (1, 8, 64, 256, 8192):
                yield product_case(model, kind, rows)
