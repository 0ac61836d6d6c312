"""Logprobs of prompts: which positions a step is to give, and what came back."""

from collections.abc import Iterator

from messages.plan import Scores
from messages.result import ScoreColumns
from messages.tokens import PromptScores
from scheduler.errors import ContractError
from scheduler.plan import Chunk
from scheduler.slots import Slots
from transport.columns import ColumnError, pack_i32, view_f32, view_i32


def scores(slots: Slots, chunks: list[Chunk]) -> Scores | None:
    """Of the rows among `chunks` that want them: the positions that have not been delivered yet."""
    rows: list[tuple[int, int, int, int]] = []
    for chunk in chunks:
        request = slots.requests[chunk.slot]
        if request is not None and request.top_scores >= 0:
            first, last = max(chunk.start, request.scored), min(chunk.start + chunk.count, request.prompt_len - 1)
            if first < last:
                rows.append((chunk.slot, first, last - first, request.top_scores))
    if not rows:
        return None
    slot, start, count, top = zip(*rows, strict=True)
    return Scores(
        slot=pack_i32(slot),
        start=pack_i32(start),
        count=pack_i32(count),
        top=pack_i32(top),
        tokens=b"".join(slots.history[row, first + 1 : first + number + 1].tobytes() for row, first, number, _ in rows),
    )


def delivered(slots: Slots, planned: Scores | None, result: ScoreColumns | None) -> Iterator[tuple[int, PromptScores]]:
    """The messages (number of the tokenizer, message) for rows that have not ended meanwhile. Raises ContractError before any of them."""
    if planned is None or result is None:
        if planned is not None or result is not None:
            raise ContractError("scores that were not planned, or none where they were")
        return
    if (planned.slot, planned.start, planned.count, planned.top) != (result.slot, result.start, result.count, result.top):
        raise ContractError("scores of other positions than planned")
    slot, start, count, top = (view_i32(column).tolist() for column in (result.slot, result.start, result.count, result.top))
    tops = [number * width for number, width in zip(count, top, strict=True)]
    try:
        view_f32(result.chosen, sum(count))
        view_i32(result.top_ids, sum(tops))
        view_f32(result.top_values, sum(tops))
    except ColumnError as error:
        raise ContractError(f"scores: {error}") from error
    place = wide = 0
    for row, first, number, width, size in zip(slot, start, count, top, tops, strict=True):
        request = slots.requests[row]
        if request is not None:
            request.scored = first + number
            yield request.tokenizer, PromptScores(
                key=request.key,
                start=first,
                top=width,
                chosen=result.chosen[4 * place : 4 * (place + number)],
                top_ids=result.top_ids[4 * wide : 4 * (wide + size)],
                top_values=result.top_values[4 * wide : 4 * (wide + size)],
            )
        place, wide = place + number, wide + size
