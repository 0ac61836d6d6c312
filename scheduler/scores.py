"""Logprobs and hidden states of prompts: which positions a step is to give, and what came back."""

from collections.abc import Iterator

from messages.plan import POOLED, Scores
from messages.result import ScoreColumns
from messages.tokens import PromptScores
from scheduler.errors import ContractError
from scheduler.plan import Chunk
from scheduler.requests import Request
from scheduler.slots import Slots
from transport.columns import ColumnError, pack_i32, view_f32, view_i32


def scores(slots: Slots, chunks: list[Chunk]) -> Scores | None:
    """Of the rows among `chunks` that want them: the positions that have not been delivered yet."""
    rows: list[tuple[int, int, int, int]] = []
    for chunk in chunks:
        request = slots.requests[chunk.slot]
        if request is not None and (request.pooling or request.top_scores >= 0):
            first, last = _wanted(request)
            first, last = max(first, chunk.start), min(last, chunk.start + chunk.count)
            if first < last:
                rows.append((chunk.slot, first, last - first, POOLED if request.pooling else request.top_scores))
    if not rows:
        return None
    slot, start, count, top = zip(*rows, strict=True)
    return Scores(
        slot=pack_i32(slot),
        start=pack_i32(start),
        count=pack_i32(count),
        top=pack_i32(top),
        tokens=b"".join(slots.history[row, first + 1 : first + number + 1].tobytes() for row, first, number, width in rows if width != POOLED),
    )


def _wanted(request: Request) -> tuple[int, int]:
    """From the first position that is still wanted to the one behind the last; nothing follows a prompt's last token that has a logprob."""
    if request.pooling:
        return max(request.scored, request.prompt_len - 1 if request.pooling == "last" else 0), request.prompt_len
    return request.scored, request.prompt_len - 1


def delivered(slots: Slots, planned: Scores | None, result: ScoreColumns | None) -> Iterator[tuple[int, PromptScores]]:
    """The messages (number of the tokenizer, message) for rows that have not ended meanwhile. Raises ContractError before any of them."""
    if planned is None or result is None:
        if planned is not None or result is not None:
            raise ContractError("scores that were not planned, or none where they were")
        return
    if (planned.slot, planned.start, planned.count, planned.top) != (result.slot, result.start, result.count, result.top):
        raise ContractError("scores of other positions than planned")
    slot, start, count, top = (view_i32(column).tolist() for column in (result.slot, result.start, result.count, result.top))
    scored = [0 if width == POOLED else number for number, width in zip(count, top, strict=True)]
    wide = [number * max(width, 0) for number, width in zip(count, top, strict=True)]
    hidden = _check(result, sum(scored), sum(wide), top.count(POOLED))
    place = entry = vector = 0
    for row, first, number, width, size, tops in zip(slot, start, count, top, scored, wide, strict=True):
        state = hidden if width == POOLED else 0
        request = slots.requests[row]
        if request is not None:
            request.scored = first + number
            yield request.tokenizer, PromptScores(
                key=request.key,
                start=first,
                top=max(width, 0),
                chosen=result.chosen[4 * place : 4 * (place + size)],
                ranks=result.ranks[4 * place : 4 * (place + size)],
                top_ids=result.top_ids[4 * entry : 4 * (entry + tops)],
                top_values=result.top_values[4 * entry : 4 * (entry + tops)],
                count=number,
                states=result.states[vector : vector + state],
            )
        place, entry, vector = place + size, entry + tops, vector + state


def _check(result: ScoreColumns, scored: int, wide: int, pooled: int) -> int:
    """Bytes of one vector of hidden states. Raises ContractError."""
    try:
        view_f32(result.chosen, scored)
        view_i32(result.ranks, scored)
        view_i32(result.top_ids, wide)
        view_f32(result.top_values, wide)
        values = view_f32(result.states).size
    except ColumnError as error:
        raise ContractError(f"scores: {error}") from error
    if not pooled:
        return 0
    if not values or values % pooled:
        raise ContractError(f"{values} hidden values for {pooled} rows")
    return 4 * values // pooled
