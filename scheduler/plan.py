"""Columns of a StepPlan."""

from dataclasses import dataclass, field

import numpy as np

from messages.plan import Admissions, Appends, Copies, Matches, Prefills
from messages.sampling import SamplingParams
from scheduler.blocks import Columns
from scheduler.requests import Request
from scheduler.slots import Slots
from transport.columns import I32, pack_f32, pack_i32, pack_i64, pack_u8


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` tokens of `slot` from position `start`; `last`: the row samples after it."""

    slot: int
    start: int
    count: int
    last: bool


@dataclass(slots=True)
class Composition:
    """What the policy chose for one step: rows admitted, chunks, decode rows (ascending slots), the table columns and block copies they need.

    `admitted`: requests with the number of their tokens whose KV is there. `copies`: (source, target).
    """

    decode: I32
    admitted: list[tuple[Request, int]] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    appends: list[Columns] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


def _has_penalties(sampling: SamplingParams) -> bool:
    return sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0 or sampling.repetition_penalty != 1.0


def _has_spoken(row: Request, cached: int) -> bool:
    """Its bad words may have begun among its `cached` tokens, and its grammar has."""
    return cached > row.prompt_len and (row.grammar is not None or (row.bias is not None and bool(row.bias.words)))


def admissions(admitted: list[tuple[Request, int]]) -> Admissions | None:
    """Columns of rows that have just been given their slots."""
    if not admitted:
        return None
    rows = [row for row, _ in admitted]
    sampling = [row.sampling for row in rows]
    seen = [(row, cached) for row, cached in admitted if cached and (_has_penalties(row.sampling) or _has_spoken(row, cached))]
    return Admissions(
        slot=pack_i32([row.slot for row in rows]),
        prompt_len=pack_i32([row.prompt_len for row in rows]),
        seed=pack_i64([row.seed for row in rows]),
        temperature=pack_f32([s.temperature for s in sampling]),
        top_p=pack_f32([s.top_p for s in sampling]),
        top_k=pack_i32([s.top_k for s in sampling]),
        min_p=pack_f32([s.min_p for s in sampling]),
        presence_penalty=pack_f32([s.presence_penalty for s in sampling]),
        frequency_penalty=pack_f32([s.frequency_penalty for s in sampling]),
        repetition_penalty=pack_f32([s.repetition_penalty for s in sampling]),
        logprobs=pack_i32([s.logprobs for s in sampling]),
        seen_slot=pack_i32([row.slot for row, _ in seen]),
        seen_count=pack_i32([cached for _, cached in seen]),
        seen_tokens=b"".join(row.tokens[:cached].tobytes() for row, cached in seen),
    )


def matches(admitted: list[tuple[Request, int]]) -> Matches | None:
    """Grammars of rows that have just been given their slots."""
    rows = [(row.slot, row.grammar.number) for row, _ in admitted if row.grammar is not None]
    if not rows:
        return None
    return Matches(slot=pack_i32([slot for slot, _ in rows]), grammar=pack_i32([number for _, number in rows]))


def copies(pairs: list[tuple[int, int]]) -> Copies | None:
    if not pairs:
        return None
    return Copies(source=pack_i32([source for source, _ in pairs]), target=pack_i32([target for _, target in pairs]))


def appends(columns: list[Columns]) -> Appends | None:
    slot, index, block = ([part[which] for part in columns if part[0].size] for which in range(3))
    if not slot:
        return None
    return Appends(slot=np.concatenate(slot).tobytes(), index=np.concatenate(index).tobytes(), block=np.concatenate(block).tobytes())


def prefills(slots: Slots, chunks: list[Chunk]) -> Prefills | None:
    if not chunks:
        return None
    return Prefills(
        slot=pack_i32([chunk.slot for chunk in chunks]),
        start=pack_i32([chunk.start for chunk in chunks]),
        count=pack_i32([chunk.count for chunk in chunks]),
        sample=pack_u8([chunk.last for chunk in chunks]),
        tokens=b"".join(slots.history[chunk.slot, chunk.start : chunk.start + chunk.count].tobytes() for chunk in chunks),
    )
