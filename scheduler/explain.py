"""Where sequences are and what they wait for, read from the engine's state. Nothing is changed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from messages.explain import DECODE, MOST_LIVES, PREFILL, TURN, WAITING, WORKER, Explain, Explained, Life, Standing
from scheduler.forecast import Forecast
from scheduler.live import Live
from scheduler.requests import WAITING as IN_LINE
from scheduler.requests import Request
from scheduler.session import Session
from scheduler.waiting import Waiting, seniority

Ahead = tuple[int, int]


@dataclass(frozen=True)
class Scene:
    """What is looked at. `blocked`: what the next in line waited for when the last step was composed, or ""."""

    live: Live
    waiting: Waiting
    session: Session | None
    forecast: Forecast
    blocked: str


def explain(question: Explain, scene: Scene) -> Explained:
    """The standings of those keys that are live, and the lives of those that are or were lately."""
    requests = [request for key in question.keys if (request := scene.live.get(key)) is not None]
    line = ahead(scene.waiting.all()) if any(request.slot == IN_LINE for request in requests) else {}
    lives = _lives(question.keys[:MOST_LIVES], scene.live) if question.lives else []
    return Explained(key=question.key, frontend=question.frontend, standings=standings(requests, line, scene), lives=lives)


def _lives(keys: list[int], live: Live) -> list[Life]:
    known = {key: live[key].moments if key in live else live.ended.find(key) for key in keys}
    return [moments.life(key) for key, moments in known.items() if moments is not None]


def ahead(waiting: list[Request]) -> dict[int, Ahead]:
    """By key: how many are likely to be admitted before a waiting request, and their tokens.

    Those that return come first, then of each tenant as many as of its own; so the first requests of all tenants have nobody ahead.
    """
    turns: dict[int, list[Request]] = {}
    next_turn: Counter[str | None] = Counter({None: -sum(request.ran for request in waiting)})
    for request in sorted(waiting, key=seniority):
        line = None if request.ran else request.tenant
        turns.setdefault(next_turn[line], []).append(request)
        next_turn[line] += 1
    found: dict[int, Ahead] = {}
    number = tokens = 0
    for turn in sorted(turns):
        found |= {request.key: (number, tokens) for request in turns[turn]}
        number += len(turns[turn])
        tokens += sum(request.tokens.size for request in turns[turn])
    return found


def standings(requests: list[Request], line: Mapping[int, Ahead], scene: Scene) -> list[Standing]:
    """Of live requests, in their order. `line` has what is ahead of each of those that wait."""
    session = scene.session
    if session is None:
        return [_in_line(request, 1 + line[request.key][0], WORKER) for request in requests]
    slots = session.slots
    unfinished = sum(int(slots.target[slot] - slots.planned[slot]) for slot in session.prefilling)
    return [
        _waiting(request, line[request.key], scene, session)
        if request.slot == IN_LINE
        else _running(request, scene.forecast, session, unfinished)
        for request in requests
    ]


def _waiting(request: Request, before: Ahead, scene: Scene, session: Session) -> Standing:
    place = 1 + before[0]
    start = scene.forecast.turn(session, place, before[1], scene.blocked)
    first = scene.forecast.first_token_after(session, start, request.tokens.size)
    return _in_line(request, place, (place == 1 and scene.blocked) or TURN, start, first)


def _in_line(request: Request, place: int, waits_for: str, start: float | None = None, first: float | None = None) -> Standing:
    generated = request.tokens.size - request.prompt_len
    return Standing(
        key=request.key,
        state=WAITING,
        prompt_tokens=request.prompt_len,
        generated_tokens=generated,
        cached_tokens=request.cached,
        preemptions=request.preemptions,
        place=place,
        waits_for=waits_for,
        start_seconds=start,
        first_token_seconds=None if generated else first,
    )


def _running(request: Request, forecast: Forecast, session: Session, unfinished: int) -> Standing:
    """`unfinished` prompt tokens are left of it and of those before it."""
    slots, slot = session.slots, request.slot
    generated = int(slots.length[slot]) - request.prompt_len
    return Standing(
        key=request.key,
        state=DECODE if slots.decoding[slot] else PREFILL,
        prompt_tokens=request.prompt_len,
        generated_tokens=generated,
        computed_tokens=int(slots.planned[slot]),
        cached_tokens=request.cached,
        preemptions=request.preemptions,
        first_token_seconds=None if generated else forecast.reading(session, unfinished),
    )
