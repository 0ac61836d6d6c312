"""What GET /v1/requests says of a request: what the frontend knows, and the scheduler's standings where they are there."""

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from frontend.streams import ABORT, ERROR, REFUSED, Run, Sequence
from messages.explain import DECODE, PREFILL, WAITING, Moment, Standing

ENCODING, FINISHED, CANCELLED, FAILED = "encoding", "finished", "cancelled", "error"
CLIENT_CLOSED = "client_closed"
_PROGRESS = (DECODE, PREFILL, WAITING, ENCODING, FAILED, CANCELLED, FINISHED)
"""The state of a request is the first of these that one of its choices has."""


class ChoiceCard(msgspec.Struct, kw_only=True):
    """One choice. Numbers are null where they are not known.

    `place` (1 = next) and `waits_for` are set while it is in the scheduler's line. `age_seconds` counts from the arrival of the request to now
    or to the end. `start_seconds`, until it gets a slot, and `first_token_seconds` are predicted from now, null once it has one; `queued_seconds`
    and `prefill_seconds` are known then: how long it waited for its slot, and from there to its first token. `sequence` names it in the live page,
    in decimal. `reason` is set at the end: the finish reason, or the code of the error, or `client_closed`. `life` is there where it was asked for,
    null where it is not known: what has happened since it came into the scheduler's line. Of one that was `resumed`, sent again because a process
    died or its reasoning was closed, it is not known.
    """

    index: int
    state: str
    place: int | None = None
    waits_for: str | None = None
    preemptions: int | None = None
    priority: int
    age_seconds: float
    prompt_tokens: int | None
    cached_tokens: int | None = None
    computed_tokens: int | None = None
    generated_tokens: int
    start_seconds: float | None = None
    first_token_seconds: float | None = None
    queued_seconds: float | None = None
    prefill_seconds: float | None = None
    sequence: str
    resumed: bool = False
    reason: str | None = None
    life: list[Moment] | msgspec.UnsetType | None = msgspec.UNSET


class Card(msgspec.Struct, kw_only=True):
    """One request. `endpoint` is its path, `created` in UNIX seconds, `key` the name of the API key; `note` says what could not be found out."""

    id: str
    object: str = "request"
    request_id: str
    endpoint: str
    created: int
    stream: bool
    state: str
    choices: list[ChoiceCard]
    note: str | None = None
    key: str | None = None


class Described(Protocol):
    """What a card needs to know of a request (`frontend.register.Entry`)."""

    id: str
    request_id: str
    endpoint: str
    stream: bool
    priority: int
    run: Run
    key: str
    created: int


def card(entry: Described, standings: Mapping[int, Standing], now: float, note: str | None = None) -> Card:
    """`standings` by key; a live sequence that has none is described by what the frontend knows. `now`: monotonic seconds."""
    choices = [_choice(entry, sequence, standings.get(sequence.key), now) for sequence in sequences(entry.run)]
    states = {choice.state for choice in choices}
    return Card(
        id=entry.id,
        request_id=entry.request_id,
        endpoint=entry.endpoint,
        created=entry.created,
        stream=entry.stream,
        state=next((state for state in _PROGRESS if state in states), ENCODING),
        choices=choices,
        note=note,
        key=entry.key or None,
    )


def sequences(run: Run) -> Iterator[Sequence]:
    """All of a run, in order of their index."""
    return (sequence for group in run.groups for sequence in group.sequences)


def _choice(entry: Described, sequence: Sequence, standing: Standing | None, now: float) -> ChoiceCard:
    ended = sequence.end is not None
    state, reason = _ending(sequence) if ended else (_known_state(sequence), None)
    group = sequence.group
    choice = ChoiceCard(
        index=sequence.index,
        state=state,
        priority=entry.priority,
        age_seconds=round((sequence.ended if ended else now) - entry.run.arrived, 3),
        prompt_tokens=None if group is None else group.prompt_tokens,
        cached_tokens=group.cached_tokens if group is not None and sequence.end not in (None, ABORT, ERROR, REFUSED) else None,
        generated_tokens=sequence.tokens,
        queued_seconds=None if sequence.begun is None else round(sequence.queued, 3),
        prefill_seconds=None if sequence.begun is None else round(sequence.prefilled, 3),
        sequence=str(sequence.key),
        resumed=sequence.resumed,
        reason=reason,
    )
    if not ended and standing is not None:
        _fill(choice, standing)
    return choice


def _fill(choice: ChoiceCard, standing: Standing) -> None:
    choice.state = standing.state
    choice.place = standing.place
    choice.waits_for = standing.waits_for
    choice.preemptions = standing.preemptions
    choice.prompt_tokens = standing.prompt_tokens
    choice.cached_tokens = standing.cached_tokens
    choice.computed_tokens = standing.computed_tokens
    choice.generated_tokens = standing.generated_tokens
    if standing.start_seconds is not None:
        choice.start_seconds = round(standing.start_seconds, 3)
    if standing.first_token_seconds is not None:
        choice.first_token_seconds = round(standing.first_token_seconds, 3)


def _known_state(sequence: Sequence) -> str:
    if not sequence.started:
        return ENCODING
    return DECODE if sequence.tokens else WAITING


def _ending(sequence: Sequence) -> tuple[str, str | None]:
    problem = sequence.run.problem
    if sequence.end in (ERROR, REFUSED):
        return FAILED, problem.code if problem else None
    if sequence.end == ABORT:
        return CANCELLED, problem.code if problem else CLIENT_CLOSED
    return FINISHED, sequence.end
