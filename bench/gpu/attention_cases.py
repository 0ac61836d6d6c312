"""Cases of paged attention: decode rows and prompt chunks, at the shapes of Qwen3-0.6B (16/8 x 128), Llama-1B (32/8 x 64) and 8B (32/8 x 128)."""

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from bench.gpu.case import BF16, BUILDING, DEVICE, Case, normal, relative, sets_for
from kernels import decode_attention, hopper, prefill_attention
from kernels.attention import AttentionBatch, plan_attention

BLOCK = 16
SHAPES = {"qwen3-0.6b": (16, 8, 128), "llama-1b": (32, 8, 64), "llama-8b": (32, 8, 128)}


def dense(q: Tensor, k: Tensor, v: Tensor, start: int, scale: float) -> Tensor:
    """float64 attention of q [C, H, D] at positions start.. over k and v [S, K, D]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("chd,shd->hcs", q, k) * scale
    hidden = torch.arange(k.shape[0], device=DEVICE)[None] > torch.arange(start, start + len(q), device=DEVICE)[:, None]
    return torch.einsum("hcs,shd->chd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


class Problem:
    """Rows of given lengths in shuffled blocks, the last `counts` tokens of each to be computed; `sets` caches."""

    def __init__(self, shape: str, lengths: list[int], counts: list[int], singles: int, sets: int, kind: torch.dtype = BF16) -> None:
        self.heads, self.kv_heads, self.size = SHAPES[shape]
        self.lengths, self.counts = lengths, counts
        self.starts = [length - count for length, count in zip(lengths, counts, strict=True)]
        per_row = [-(-length // BLOCK) for length in lengths]
        order = torch.randperm(sum(per_row) + 8, generator=torch.Generator().manual_seed(5))
        table = torch.full((len(lengths), max(per_row)), -1)
        first = 0
        for row, count in enumerate(per_row):
            table[row, :count] = order[first : first + count]
            first += count
        self.table = table.to(DEVICE)
        cache = (sets, len(order), self.kv_heads, BLOCK, self.size)
        self.k, self.v = normal(*cache).to(kind), normal(*cache).to(kind)
        self.q = normal(sum(counts), self.heads, self.size)
        self.out = torch.empty_like(self.q)
        self.scale = self.size**-0.5
        self.plan: AttentionBatch = plan_attention(self.table, self.starts, counts, singles, self.heads, self.kv_heads, BLOCK)

    @cached_property
    def expected(self) -> list[tuple[slice, Tensor]]:
        """The tokens of a few rows and what must come out."""
        found = []
        ends = torch.tensor(self.counts).cumsum(0).tolist()
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        for row in {order[0], order[-1], 0, len(order) - 1}:
            last = min(self.counts[row], 300)
            tokens = slice(ends[row] - last, ends[row])
            blocks = self.table[row, : -(-self.lengths[row] // BLOCK)]
            own = (cache[0][blocks].to(BF16).transpose(1, 2) for cache in (self.k, self.v))
            k, v = (cache.reshape(-1, self.kv_heads, self.size)[: self.lengths[row]] for cache in own)
            found.append((tokens, dense(self.q[tokens], k, v, self.lengths[row] - last, self.scale)))
        return found

    def error(self) -> float:
        """The worst of those rows."""
        worst = max(relative(self.out[tokens], expected) for tokens, expected in self.expected)
        return worst if bool(torch.isfinite(self.out).all()) else float("nan")


def decode_case(name: str, shape: str, lengths: list[int], cache: torch.dtype = BF16) -> Case:
    _, kv_heads, size = SHAPES[shape]
    floor = sum(lengths) * kv_heads * size * 2.0 * cache.itemsize
    sets = sets_for(int(floor), 16)
    problem = Problem(shape, lengths, [1] * len(lengths), len(lengths), sets, cache)
    plan = problem.plan

    def run(settings: decode_attention.Settings, number: int) -> None:
        """With the shares of one step before, as all layers but the first have them."""
        if settings not in shares:
            shares[settings] = decode_attention.share_out(plan.slot, plan.position, None, kv_heads, settings)
        where = plan.table, plan.slot, plan.position, shares[settings]
        decode_attention.decode(problem.q, problem.k[number], problem.v[number], *where, None, problem.scale, problem.out)

    shares: dict[decode_attention.Settings, decode_attention.Shares] = {}
    own = decode_attention.settings_for(len(lengths), kv_heads, size, hopper.fits(problem.q, problem.k[0], None))
    ways = {"line": decode_attention.LINE, "items": decode_attention.ITEMS, "either": decode_attention.EITHER}
    variants: dict[str, Any] = {}
    for label, way in ways.items():
        for tile, stages, programs in ((16, 3, 6), (16, 3, 9), (16, 4, 6), (32, 3, 4), (32, 3, 6)):
            changed = own._replace(tile=tile, stages=stages, programs=programs, way=way)
            variants[f"{label} N{tile} s{stages} x{programs}"] = partial(run, changed)
    variants["default"] = partial(run, own)
    return Case(
        name=f"decode {name} {shape}", floor=floor, sets=sets, variants=variants, outputs=[problem.out], error=problem.error, default="default"
    )


def prefill_case(name: str, shape: str, lengths: list[int], counts: list[int]) -> Case:
    heads, _, size = SHAPES[shape]
    pairs = sum(count * (length - count) + count * (count + 1) / 2 for length, count in zip(lengths, counts, strict=True))
    problem = Problem(shape, lengths, counts, 0, 2)
    plan = problem.plan

    def run(settings: prefill_attention.Settings | None, number: int) -> None:
        prefill_attention.prefill(
            problem.q,
            problem.k[number],
            problem.v[number],
            plan.table,
            plan.slot,
            plan.position,
            plan.tiles,
            None,
            problem.scale,
            problem.out,
            settings,
        )

    candidates = [prefill_attention.Settings(*s) for s in ((64, 4, 2), (64, 4, 3), (64, 8, 2), (64, 8, 3), (128, 8, 2), (32, 4, 3), (128, 4, 2))]
    variants: dict[str, Any] = {f"N{s.tile} w{s.warps} s{s.stages}": partial(run, s) for s in candidates}
    variants["default"] = partial(run, None)
    return Case(
        name=f"prefill {name} {shape}", floor=4.0 * pairs * heads * size, operations=True, sets=2, variants=variants, outputs=[problem.out],
        error=problem.error, default="default",
    )  # fmt: skip


def _ragged(rows: int, mean: int) -> list[int]:
    return torch.randint(mean // 8, 2 * mean - mean // 8, (rows,), generator=torch.Generator().manual_seed(5)).tolist()


def cases() -> Iterator[Case]:
    assert BUILDING or torch.cuda.is_available()
    for shape in SHAPES:
        yield decode_case("R1 S512", shape, [512])
    yield decode_case("R1 S16000", "llama-8b", [16_000])
    yield decode_case("R8 S1088", "qwen3-0.6b", [1088] * 8)
    for shape in SHAPES:
        yield decode_case("R64 S1088", shape, [1088] * 64)
        yield decode_case("R64 ragged", shape, _ragged(64, 1088))
    for shape in ("qwen3-0.6b", "llama-1b"):
        yield decode_case("R256 ragged", shape, _ragged(256, 800))
    yield decode_case("R256 S800", "qwen3-0.6b", [800] * 256)
    for shape in SHAPES:
        yield prefill_case("16 x 1024", shape, [1024] * 16, [1024] * 16)
    yield prefill_case("8192", "llama-8b", [8192], [8192])
    yield prefill_case("512 after 7680", "llama-8b", [8192], [512])
