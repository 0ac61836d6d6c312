"""Cases of the kernels between the products: norms, activation, rotation with its cache write, sampling, embedding."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.gpu.case import DEVICE, Case, normal, relative, sets_for
from kernels import decode_row, mlp, norm, rope_kv, sampling
from kernels.attention import plan_attention
from kernels.reference import sampling as sampling_reference
from kernels.reference.embedding import embed
from kernels.reference.rope import RopeSpec, rope_table, rotate
from kernels.reference.sampling import SamplingBatch

VOCAB = 151_936


def norm_case(rows: int, size: int) -> Case:
    sets = sets_for(rows * size * 8)
    residual, x, weight = normal(sets, rows, size), normal(rows, size), normal(size)
    start, out = residual[0].clone(), [x]

    def run(number: int) -> None:
        out[0] = norm.add_rms_norm(residual[number], x, weight, 1e-6)

    def reset() -> None:
        residual[0] = start

    def error() -> float:
        total = (start + x).double()
        return relative(out[0], total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight.double())

    return Case(name=f"add_rms_norm T{rows} N{size}", floor=rows * size * 8.0, sets=sets, variants={"triton": run}, reset=reset, error=error)


def silu_case(rows: int, size: int) -> Case:
    sets = sets_for(rows * size * 6)
    x, out = normal(sets, rows, 2 * size), [normal(rows, size)]

    def run(number: int) -> None:
        out[0] = mlp.silu_mul(x[number])

    def error() -> float:
        gate, up = x[0].double().chunk(2, -1)
        return relative(out[0], gate * torch.sigmoid(gate) * up)

    return Case(name=f"silu_mul T{rows} N{size}", floor=rows * size * 6.0, sets=sets, variants={"triton": run}, error=error)


def embed_case(rows: int) -> Case:
    table, ids = normal(VOCAB, 1024), torch.randint(VOCAB, (8, rows), device=DEVICE)
    out = [table]

    def run(number: int) -> None:
        out[0] = embed(table, ids[number], rows)

    return Case(name=f"embed T{rows} N1024", floor=rows * 4096.0, sets=8, variants={"torch": run}, error=lambda: relative(out[0], table[ids[0]]))


def rope_case(rows: int, heads: int, kv_heads: int, size: int, normed: bool) -> Case:
    width = (heads + 2 * kv_heads) * size
    sets = sets_for(rows * width * 4)
    qkv, blocks = normal(sets, rows, width), rows + 8
    k_cache, v_cache = normal(sets, blocks, kv_heads, 16, size), normal(sets, blocks, kv_heads, 16, size)
    cos, sin = (x.to(DEVICE) for x in rope_table(RopeSpec(), size, 2048))
    norms = (normal(size), normal(size)) if normed else None
    table = torch.randperm(blocks, device=DEVICE)[:rows, None].repeat(1, 64)
    starts = [(row * 37) % 1000 for row in range(rows)]
    plan = plan_attention(table, starts, [1] * rows, rows, heads, kv_heads, 16)
    out = [qkv]

    def variant(settings: rope_kv.Settings | None, number: int) -> None:
        out[0] = rope_kv.rope_kv(qkv[number], norms, 1e-6, (cos, sin), k_cache[number], v_cache[number], plan, settings)

    def error() -> float:
        q, k, v = qkv[0].double().view(rows, -1, size).split((heads, kv_heads, kv_heads), 1)
        if norms is not None:
            q, k = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w.double() for x, w in zip((q, k), norms, strict=True))
        at = torch.tensor(starts, device=DEVICE)
        turned = rotate(torch.cat((q, k), 1), cos[at].double(), sin[at].double())
        found = torch.cat((out[0], k_cache[0][table[:, 0], :, at % 16], v_cache[0][table[:, 0], :, at % 16]), 1)
        return relative(found, torch.cat((turned, v), 1))

    shapes = [(4, 1), (4, 2), (8, 1), (8, 2), (8, 4), (16, 2), (16, 4), (16, 8), (32, 4), (32, 8)]
    return Case(
        name=f"rope_kv T{rows} {heads}/{kv_heads}x{size}{' norm' if normed else ''}",
        floor=rows * width * 4.0,
        sets=sets,
        variants={"default": partial(variant, None)} | {f"heads {h} warps {w}": partial(variant, rope_kv.Settings(h, w)) for h, w in shapes},
        outputs=[k_cache, v_cache],
        error=error,
        default="default",
    )


def decode_row_case(length: int, heads: int, kv_heads: int, size: int, normed: bool) -> Case:
    """Rotation, cache write and attention of one row in one kernel."""
    width, blocks = (heads + 2 * kv_heads) * size, length // 16
    sets = sets_for(length * kv_heads * size * 4)
    qkv, k_cache, v_cache = normal(sets, 1, width), normal(sets, blocks, kv_heads, 16, size), normal(sets, blocks, kv_heads, 16, size)
    cos, sin = (x.to(DEVICE) for x in rope_table(RopeSpec(), size, length))
    norms = (normal(size), normal(size)) if normed else None
    table, at = torch.randperm(blocks, device=DEVICE)[None], length - 1
    plan, out = plan_attention(table, [at], [1], 1, heads, kv_heads, 16), normal(1, heads, size)

    def variant(settings: decode_row.Settings, number: int) -> None:
        decode_row.rope_decode(qkv[number], norms, 1e-6, (cos, sin), k_cache[number], v_cache[number], plan, size**-0.5, out, settings)

    def error() -> float:
        q, k, v = qkv[0].double().view(1, -1, size).split((heads, kv_heads, kv_heads), 1)
        if norms is not None:
            q, k = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w.double() for x, w in zip((q, k), norms, strict=True))
        q, k = (rotate(x, cos[at:].double(), sin[at:].double()) for x in (q, k))
        keys, values = (cache[0][table[0]].double().transpose(1, 2).reshape(length, kv_heads, size) for cache in (k_cache, v_cache))
        keys[at], values[at] = k[0], v[0]
        keys, values = (x.repeat_interleave(heads // kv_heads, 1) for x in (keys, values))
        weights = (torch.einsum("hd,shd->hs", q[0], keys) * size**-0.5).softmax(-1)
        return relative(out[0], torch.einsum("hs,shd->hd", weights, values))

    shapes = [(8, 1, 32), (16, 1, 16), (16, 1, 32), (16, 1, 64), (16, 2, 32), (32, 1, 16), (32, 2, 16), (32, 4, 16), (64, 4, 8)]
    return Case(
        name=f"decode_row S{length} {heads}/{kv_heads}x{size}",
        floor=length * kv_heads * size * 4.0,
        sets=sets,
        variants={f"N{s[0]} w{s[1]} shares {s[2]}": partial(variant, decode_row.Settings(*s)) for s in shapes},
        outputs=[out],
        error=error,
        default="N16 w1 shares 32",
    )


def _batch(rows: int, temperature: float, top_k: int, top_p: float) -> SamplingBatch:
    def column(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((rows,), value, device=DEVICE, dtype=dtype)

    chosen = list(range(rows))
    return SamplingBatch(
        temperature=column(temperature), top_p=column(top_p), top_k=column(top_k, torch.int64), min_p=column(0.0),
        seed=torch.arange(rows, device=DEVICE), position=column(7, torch.int64), random=chosen if temperature > 0 else [],
        filtered=chosen if top_k or top_p < 1 else [],
    )  # fmt: skip


def _first(batch: SamplingBatch, rows: int) -> SamplingBatch:
    """The first rows of a batch, on the CPU."""
    fields: dict[str, Any] = {}
    for key, value in vars(batch).items():
        fields[key] = value[:rows].cpu() if isinstance(value, Tensor) else [row for row in value if row < rows] if value else value
    return SamplingBatch(**fields)


def sampling_case(rows: int, label: str, temperature: float, top_k: int, top_p: float) -> Case:
    sets = sets_for(rows * VOCAB * 2, 8)
    logits, batch = normal(sets, rows, VOCAB, scale=3.0), _batch(rows, temperature, top_k, top_p)
    out = [logits]

    def run(number: int) -> None:
        out[0] = sampling.sample(logits[number], batch).token

    def argmax(number: int) -> None:
        out[0] = logits[number].argmax(-1)

    def error() -> float:
        """Share of the first rows whose token is not the reference's."""
        some = min(rows, 16)
        expected = sampling_reference.sample(logits[0, :some].float().cpu(), _first(batch, some)).token
        return float((expected != out[0][:some].cpu()).double().mean())

    variants: dict[str, Any] = {"triton": run} | ({"torch argmax": argmax} if label == "greedy" else {})
    return Case(name=f"sample R{rows} {label}", floor=rows * VOCAB * 2.0, sets=sets, variants=variants, error=error, default="triton")


def cases() -> Iterator[Case]:
    for rows, size in ((1, 1024), (64, 1024), (256, 1024), (256, 4096), (8192, 4096)):
        yield norm_case(rows, size)
    for rows, size in ((64, 3072), (256, 3072), (4096, 14336)):
        yield silu_case(rows, size)
    for rows in (1, 256):
        yield embed_case(rows)
    for shape in ((1, 16, 8, 128, True), (64, 16, 8, 128, True), (256, 16, 8, 128, True), (256, 32, 8, 64, False), (256, 32, 8, 128, False),
                  (8192, 16, 8, 128, True)):  # fmt: skip
        yield rope_case(*shape)
    for length in (512, 4096):
        for heads, kv_heads, size, normed in ((16, 8, 128, True), (32, 8, 64, False)):
            yield decode_row_case(length, heads, kv_heads, size, normed)
    for rows in (1, 64, 256):
        for label, settings in {"greedy": (0.0, 0, 1.0), "temperature": (0.6, 0, 1.0), "k20 p0.95": (0.6, 20, 0.95), "p0.9": (1.0, 0, 0.9)}.items():
            yield sampling_case(rows, label, *settings)
