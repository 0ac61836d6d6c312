"""Cases of the products of up to 256 rows, against the library's product with separate norm, activation and residual."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from bench.gpu.case import Case, normal, relative, sets_for
from kernels import few_rows, gemv, mlp, ring, skinny
from kernels.norm import rms_norm
from kernels.reference.linear import Linear

MODELS = {
    "qwen3-0.6b": (1024, 4096, 2048, 3072, 151_936),
    "llama-1b": (2048, 3072, 2048, 8192, 128_256),
    "llama-8b": (4096, 6144, 4096, 14_336, 128_256),
}
"""hidden, q + k + v, heads, MLP, vocabulary."""
EPS = 1e-6


def _one_row(columns: int, gated: bool) -> list[gemv.Settings]:
    """Settings with 32 to 130 elements of the weight for a thread."""
    shapes = [(rows, warps) for rows in (1, 2, 4, 8, 16) for warps in (1, 2, 4, 8)]
    return [gemv.Settings(*s) for s in shapes if 32 <= s[0] * columns * (2 if gated else 1) / (32 * s[1]) <= 130]


def _few_rows(kind: str, depth: int) -> list[skinny.Settings]:
    tiles = [(16, 128, 2, 4), (16, 256, 4, 3), (32, 128, 4, 4), (32, 256, 4, 3), (64, 64, 4, 4), (64, 128, 4, 3)]
    if kind == "head":
        tiles = [(32, 128, 4, 4), (64, 128, 4, 3), (64, 128, 4, 4), (128, 64, 4, 4), (128, 128, 8, 3)]
    if kind == "gate_up":
        tiles = [(16, 128, 4, 4), (16, 256, 4, 3), (32, 64, 4, 4), (32, 128, 4, 3), (64, 64, 4, 3)]
    parts = {"o": (2, 4, 8), "down": (2, 4, 8), "qkv": (1, 2)}.get(kind, (1,))
    return [skinny.Settings(*tile, part) for tile in tiles for part in parts if depth // part >= 2 * tile[1]]


def _whole_rows(depth: int, gated: bool) -> list[few_rows.Settings]:
    """Settings that fit the registers and the shared memory."""
    shapes = [(8, 4, 4), (8, 8, 8), (16, 4, 4), (16, 8, 4), (16, 8, 8)]
    return [few_rows.Settings(*s) for s in shapes if depth <= few_rows.DEEPEST and s[0] * depth * (2 if gated else 1) <= 16_384 * s[1]]


def _ring(kind: str, rows: int, columns: int, depth: int) -> list[ring.Settings]:
    """Settings whose programs are about as many as multiprocessors and whose rings fit."""
    found = []
    for tall in (64,) if rows <= 64 else (64, 128):
        for wide in (16, 32, 64, 128):
            for parts in (1, 2, 4, 8):
                programs = -(-columns // wide) * -(-rows // tall) * parts
                for deep, weights, inputs in ((128, 4, 4), (128, 8, 4), (128, 3, 3), (256, 2, 2)):
                    size = 2 * deep * (tall * inputs + wide * weights * (2 if kind == "gate_up" else 1))
                    if (80 <= programs <= 270 or (kind == "head" and parts == 1)) and size <= 220 << 10 and deep * parts <= depth:
                        found.append(ring.Settings(tall, wide, deep, weights, inputs, parts))
    return found


def product_case(model: str, kind: str, rows: int) -> Case:
    hidden, qkv, heads, inner, vocab = MODELS[model]
    shapes = {"qkv": (qkv, hidden), "o": (hidden, heads), "gate_up": (2 * inner, hidden), "down": (hidden, inner), "head": (vocab, hidden)}
    count, columns = shapes[kind]
    floor = 2.0 * count * columns
    sets = sets_for(int(floor), 16 if kind != "head" else 2)
    weight, x, gamma = normal(sets, count, columns, scale=columns**-0.5), normal(rows, columns), normal(columns)
    gated, add = kind == "gate_up", kind in ("o", "down")
    out = normal(rows, count // 2 if gated else count)
    start, linears = out.clone(), [Linear(w) for w in weight]
    norm = None if add else gamma

    def run(settings: Any, number: int) -> None:
        if rows == 1:
            gemv.product(x, norm, EPS, weight[number], None, out, gated, add, settings)
        elif isinstance(settings, ring.Settings):
            ring.product(x if norm is None else rms_norm(x, norm, EPS), weight[number], None, out, gated, add, settings)
        elif isinstance(settings, few_rows.Settings):
            few_rows.product(x, norm, EPS, weight[number], None, out, gated, add, settings)
        else:
            skinny.product(x if norm is None else rms_norm(x, norm, EPS), weight[number], None, out, gated, add, settings)

    def library(number: int) -> None:
        if add:
            out.addmm_(x, weight[number].T)
            return
        y = linears[number](rms_norm(x, gamma, EPS))
        out.copy_(mlp.silu_mul(y) if gated else y)

    def reset() -> None:
        out.copy_(start)

    def error() -> float:
        wide = x.double()
        if norm is not None:
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * gamma.double()
        expected = wide @ weight[0].double().T
        if gated:
            gate, up = expected.chunk(2, -1)
            expected = gate * torch.sigmoid(gate) * up
        return relative(out, expected + start.double() if add else expected)

    chosen: Any = None
    if ring.wins(rows, out.shape[1], columns):
        chosen = ring.settings_for(rows, out.shape[1], columns, gated)
    elif rows > 2 and few_rows.wins(rows, out.shape[1], columns, gated):
        chosen = few_rows.settings_for(out.shape[1], columns)
    variants: dict[str, Any] = {"default": partial(run, chosen), "library": library}
    if rows == 1:
        variants |= {f"rows {s.rows} warps {s.warps}": partial(run, s) for s in _one_row(columns, gated)}
    else:
        for s in _few_rows(kind, columns) if rows <= skinny.MOST_ROWS else []:
            variants[f"N{s.columns} K{s.depth} w{s.warps} s{s.stages} parts {s.parts}"] = partial(run, s)
        for f in _whole_rows(columns, gated) if 2 <= rows <= few_rows.MOST_ROWS else []:
            variants[f"whole rows {f.rows} warps {f.warps} slices {f.slices}"] = partial(run, f)
        for r in _ring(kind, rows, out.shape[1], columns):
            variants[f"ring {r.rows}x{r.columns}x{r.depth} {r.weights}/{r.inputs} parts {r.parts}"] = partial(run, r)
    return Case(name=f"{kind} T{rows} {model}", floor=floor, sets=sets, variants=variants, reset=reset, error=error, default="default")


def cases() -> Iterator[Case]:
    for model in MODELS:
        for kind in ("qkv", "o", "gate_up", "down", "head"):
            for rows in (1, 2, 8, 64, 128, 256):
                yield product_case(model, kind, rows)
