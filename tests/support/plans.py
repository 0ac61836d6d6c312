"""Step plans for tests of the worker, from plain lists."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from messages.plan import POOLED, Admissions, Appends, Biases, Matches, Prefills, Scores, StepPlan
from transport.columns import pack_f32, pack_i32, pack_i64, pack_slots, pack_u8


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row to admit: its slot, prompt, blocks and sampling."""

    slot: int
    prompt: Sequence[int]
    blocks: Sequence[int]
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    logprobs: int = -1
    prompt_length: int | None = None
    seen: Sequence[int] = field(default_factory=list)
    bias: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Token to value, and the length before which it is not chosen."""
    closed: bool = False
    words: Sequence[Sequence[int]] = ()
    grammar: int | None = None


def admissions(rows: Sequence[Row]) -> Admissions:
    return Admissions(
        slot=pack_i32([row.slot for row in rows]),
        prompt_len=pack_i32([row.prompt_length or len(row.prompt) for row in rows]),
        seed=pack_i64([row.seed for row in rows]),
        temperature=pack_f32([row.temperature for row in rows]),
        top_p=pack_f32([row.top_p for row in rows]),
        top_k=pack_i32([row.top_k for row in rows]),
        min_p=pack_f32([row.min_p for row in rows]),
        presence_penalty=pack_f32([row.presence for row in rows]),
        frequency_penalty=pack_f32([row.frequency for row in rows]),
        repetition_penalty=pack_f32([row.repetition for row in rows]),
        logprobs=pack_i32([row.logprobs for row in rows]),
        seen_slot=pack_i32([row.slot for row in rows if row.seen]),
        seen_count=pack_i32([len(row.seen) for row in rows if row.seen]),
        seen_tokens=pack_i32([token for row in rows for token in row.seen]),
    )


def biases(rows: Sequence[Row]) -> Biases | None:
    chosen = [row for row in rows if row.bias or row.words]
    entries = [(token, *entry) for row in chosen for token, entry in row.bias.items()]
    words = [(row.slot, word) for row in chosen for word in row.words]
    if not chosen:
        return None
    return Biases(
        slot=pack_i32([row.slot for row in chosen]),
        closed=pack_u8([row.closed for row in chosen]),
        count=pack_i32([len(row.bias) for row in chosen]),
        token=pack_i32([token for token, _, _ in entries]),
        value=pack_f32([value for _, value, _ in entries]),
        since=pack_i32([since for _, _, since in entries]),
        word_slot=pack_i32([slot for slot, _ in words]),
        word_count=pack_i32([len(word) for _, word in words]),
        word_tokens=pack_i32([token for _, word in words for token in word]),
    )


def matches(rows: Sequence[Row]) -> Matches | None:
    chosen = [(row.slot, row.grammar) for row in rows if row.grammar is not None]
    if not chosen:
        return None
    return Matches(slot=pack_i32([slot for slot, _ in chosen]), grammar=pack_i32([number for _, number in chosen]))


def scores(slot: int, start: int, tokens: Sequence[int], top: int) -> Scores:
    """Logprobs of `tokens`, which follow the positions from `start` on."""
    return Scores(slot=pack_i32([slot]), start=pack_i32([start]), count=pack_i32([len(tokens)]), top=pack_i32([top]), tokens=pack_i32(list(tokens)))


def pooled(slot: int, start: int, count: int) -> Scores:
    """The sum of the hidden states at `count` positions from `start` on."""
    return Scores(slot=pack_i32([slot]), start=pack_i32([start]), count=pack_i32([count]), top=pack_i32([POOLED]), tokens=b"")


def appends(rows: Sequence[Row]) -> Appends:
    triples = [(row.slot, index, block) for row in rows for index, block in enumerate(row.blocks)]
    slot, index, block = zip(*triples, strict=True)
    return Appends(slot=pack_i32(slot), index=pack_i32(index), block=pack_i32(block))


@dataclass(frozen=True)
class Chunk:
    slot: int
    start: int
    tokens: Sequence[int]
    last: bool


def prefills(chunks: Sequence[Chunk]) -> Prefills:
    return Prefills(
        slot=pack_i32([chunk.slot for chunk in chunks]),
        start=pack_i32([chunk.start for chunk in chunks]),
        count=pack_i32([len(chunk.tokens) for chunk in chunks]),
        sample=pack_u8([chunk.last for chunk in chunks]),
        tokens=pack_i32([token for chunk in chunks for token in chunk.tokens]),
    )


class Planner:
    """Plans of one session with rising step numbers."""

    def __init__(self, session: int = 1) -> None:
        self.session = session
        self.step = 0

    def plan(
        self,
        *,
        admit: Sequence[Row] = (),
        chunks: Sequence[Chunk] = (),
        decode: Sequence[int] | None = (),
        release: Sequence[int] = (),
        scores: Scores | None = None,
    ) -> StepPlan:
        self.step += 1
        return StepPlan(
            session=self.session,
            step=self.step,
            release=pack_i32(list(release)),
            admit=admissions(admit) if admit else None,
            bias=biases(admit),
            match=matches(admit),
            append=appends(admit) if admit else None,
            prefill=prefills(chunks) if chunks else None,
            decode=None if decode is None else pack_slots(np.asarray(decode, dtype=np.int32)),
            scores=scores,
        )

    def start(self, row: Row) -> StepPlan:
        """Admit `row` and prefill its whole prompt at once."""
        return self.plan(admit=[row], chunks=[Chunk(row.slot, 0, row.prompt, True)])
