"""Cases of the products of a few rows, against the library's product with separate norm, activation and residual."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from bench.gpu.case import Case, normal, relative, sets_for
from kernels import gemv, mlp, norm

MODELS = {
    "qwen3-0.6b": (1024, 4096, 2048, 3072, 151_936),
    "llama-1b": (2048, 3072, 2048, 8192, 128_256),
    "llama-8b": (4096, 6144, 4096, 14_336, 128_256),
}
"""hidden, q + k + v, heads, MLP, vocabulary."""
EPS = 1e-6


def _candidates(columns: int, gated: bool) -> list[gemv.Settings]:
    """Settings with 16 to 160 elements of the weight for a thread."""
    found = []
    for rows in (1, 2, 4, 8, 16):
        for warps in (1, 2, 4, 8):
            if 32 <= rows * columns * (2 if gated else 1) / (32 * warps) <= 130:
                found.append(gemv.Settings(rows, warps))
    return found


def product_case(model: str, kind: str, rows: int) -> Case:
    hidden, qkv, heads, inner, vocab = MODELS[model]
    count, columns = {"qkv": (qkv, hidden), "o": (hidden, heads), "gate_up": (2 * inner, hidden), "down": (hidden, inner), "head": (vocab, hidden)}[
        kind
    ]
    floor = 2.0 * count * columns
    sets = sets_for(int(floor), 16 if kind != "head" else 2)
    weight, x, gamma, residual = normal(sets, count, columns, scale=columns**-0.5), normal(rows, columns), normal(columns), normal(rows, count)
    start, out = residual.clone(), [residual]

    def run(settings: gemv.Settings | None, number: int) -> None:
        w = weight[number]
        if kind in ("o", "down"):
            gemv.linear_add(residual, x, w, settings=settings)
        elif kind == "gate_up":
            out[0] = gemv.norm_gate_up(x, gamma, EPS, w, settings=settings)
        elif kind == "head":
            out[0] = gemv.norm_logits(x, gamma, EPS, w, settings=settings)
        else:
            out[0] = gemv.norm_linear(x, gamma, EPS, w, settings=settings)

    def library(number: int) -> None:
        w = weight[number]
        if kind in ("o", "down"):
            residual.addmm_(x, w.T)
            return
        y = functional.linear(norm.rms_norm(x, gamma, EPS), w)
        out[0] = mlp.silu_mul(y) if kind == "gate_up" else y

    def reset() -> None:
        residual.copy_(start)

    def error() -> float:
        wide = x.double()
        if kind in ("o", "down"):
            expected = start.double() + wide @ weight[0].double().T
        else:
            normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * gamma.double()
            expected = normed @ weight[0].double().T
            if kind == "gate_up":
                gate, up = expected.chunk(2, -1)
                expected = gate * torch.sigmoid(gate) * up
        return relative(out[0], expected)

    variants: dict[str, Any] = {f"rows {s.rows} warps {s.warps}": partial(run, s) for s in _candidates(columns, kind == "gate_up")}
    variants |= {"default": partial(run, None), "library": library}
    return Case(name=f"{kind} T{rows} {model}", floor=floor, sets=sets, variants=variants, reset=reset, error=error, default="default")


def cases() -> Iterator[Case]:
    for model in MODELS:
        for kind in ("qkv", "o", "gate_up", "down", "head"):
            for rows in (1, 2, 4, 8):
                yield product_case(model, kind, rows)
