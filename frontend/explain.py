"""GET /v1/requests and GET, DELETE /v1/requests/{id}: where requests are and what they wait for."""

import asyncio
import time
from collections.abc import Iterable

import msgspec
from aiohttp import web

from frontend.access import CALLER
from frontend.cancelling import cancel_here
from frontend.cards import Card, card, sequences
from frontend.cluster import Route
from frontend.core import Core
from frontend.errors import ApiError, invalid
from frontend.json_response import json_response
from frontend.lives import with_lives
from frontend.middleware import request_id
from frontend.register import Entry
from frontend.streams import Run
from messages.explain import MAX_KEYS, MOST_LIVES, Explain, Explained
from messages.peers import FindRequests, FoundRequests

ANSWER_SECONDS = 2.0
DEFAULT_LISTED = 100
MAX_LISTED = 256
"""Requests in one list, and choices of them all together (one request with more of them is still listed)."""
NO_ANSWER = "The scheduler did not answer in time: this is what the frontend alone knows."


class CardList(msgspec.Struct, kw_only=True):
    """`has_more`: requests that are older run too. `unanswered`: the frontends that have not said in time which they have."""

    object: str = "list"
    data: list[Card]
    has_more: bool
    unanswered: list[str]


async def list_requests(core: Core, http: web.Request) -> web.Response:
    """The running requests of the caller's key, of all clients when it is an administrator's or none is needed; newest first."""
    limit, owner = _limit(http), http[CALLER].owner
    (mine, more), (theirs, silent) = await asyncio.gather(_running(core, limit, owner), core.peers.find(limit=limit, owner=owner))
    listed = sorted([*mine, *(card for found in theirs for card in _read(found))], key=lambda card: card.created, reverse=True)
    has_more = len(listed) > limit or more or any(found.more for found in theirs)
    return json_response(CardList(data=listed[:limit], has_more=has_more, unanswered=silent))


async def show_request(core: Core, http: web.Request) -> web.Response:
    """Raises ApiError 404 for a request that neither runs nor is remembered, or is another key's; 503 when a frontend that may have it is silent."""
    return json_response(await _card(core, http, cancel=False, lives=_wants_life(http)))


async def cancel_request(core: Core, http: web.Request) -> web.Response:
    """End it, if it runs, and answer what has become of it. Raises ApiError as `show_request` does: where it runs it ends nevertheless."""
    return json_response(await _card(core, http, cancel=True, lives=False))


async def answer_peer(core: Core, question: FindRequests) -> None:
    """Tell another frontend what this one knows, or has done."""
    cards: list[Card] = []
    more, cancelled = False, 0
    if question.name is not None:
        found = await _known(core, question.name, question.cancel, question.owner, question.lives)
        cards = [] if found is None else [found]
    elif question.cancel:
        cancelled = await cancel_here(core, question.owner)
    else:
        cards, more = await _running(core, question.limit, question.owner)
    core.peers.answer(question.frontend, FoundRequests(key=question.key, cards=msgspec.json.encode(cards), more=more, cancelled=cancelled))


async def _card(core: Core, http: web.Request, cancel: bool, lives: bool) -> Card:
    name, owner = request_id(http.match_info["id"]), http[CALLER].owner
    if (found := await _known(core, name, cancel, owner, lives)) is not None:
        return found
    answers, silent = await core.peers.find(name, cancel=cancel, owner=owner, lives=lives)
    for answer in answers:
        if theirs := _read(answer):
            return theirs[0]
    if silent:
        who = " and ".join(silent)
        raise ApiError(503, "not_ready", f"Request {name!r} may be one of {who}, which cannot be asked now; try again soon.", "id", retry_after=1.0)
    raise ApiError(404, "request_not_found", f"No request {name!r} is running or has ended lately.", "id")


async def _known(core: Core, name: str, cancel: bool, owner: str | None, lives: bool) -> Card | None:
    """What this frontend knows of the request, after ending it if that is asked for."""
    found = core.register.find(name, owner)
    if isinstance(found, Entry) and cancel:
        found.cancel()
        found = card(found, {}, time.monotonic())
    elif isinstance(found, Entry):
        (found,) = await _cards(core, [found])
    return found if found is None or not lives else await _with_lives(core, found)


async def _with_lives(core: Core, found: Card) -> Card:
    route = None if found.note else core.view.route()
    keys = [int(choice.sequence) for choice in found.choices[:MOST_LIVES]]
    answer = None if route is None else await _ask(core, route, keys, lives=True)
    return with_lives(found, {} if answer is None else {str(life.key): life for life in answer.lives})


async def _running(core: Core, limit: int, owner: str | None) -> tuple[list[Card], bool]:
    """The newest that run here, and whether there are more."""
    running = core.register.newest(owner)
    listed = _bounded(running, limit)
    return await _cards(core, listed), len(listed) < len(running)


def _read(found: FoundRequests) -> list[Card]:
    return msgspec.json.decode(found.cards, type=list[Card])


def _limit(http: web.Request) -> int:
    for name in http.query:
        if name != "limit":
            raise invalid(f"Unknown parameter {name[:64]!r}.", name[:64], "unknown_parameter")
    text = http.query.get("limit", str(DEFAULT_LISTED))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_LISTED):
        raise invalid(f"limit must be an integer from 1 to {MAX_LISTED}.", "limit")
    return int(text)


def _wants_life(http: web.Request) -> bool:
    for name in http.query:
        if name != "life":
            raise invalid(f"Unknown parameter {name[:64]!r}.", name[:64], "unknown_parameter")
    text = http.query.get("life", "false")
    if text not in ("true", "false"):
        raise invalid("life must be true or false.", "life")
    return text == "true"


def _bounded(entries: list[Entry], limit: int) -> list[Entry]:
    choices = 0
    for number, entry in enumerate(entries[:limit]):
        choices += sum(1 for _ in sequences(entry.run))
        if number and choices > MAX_LISTED:
            return entries[:number]
    return entries[:limit]


async def _cards(core: Core, entries: list[Entry]) -> list[Card]:
    """What is known of each once the scheduler has answered, or has not in ANSWER_SECONDS."""
    keys = _keys_by_route(entry.run for entry in entries)
    questions = [(route, asked[at : at + MAX_KEYS]) for route, asked in keys.items() for at in range(0, len(asked), MAX_KEYS)]
    answers = await asyncio.gather(*(_ask(core, route, asked) for route, asked in questions))
    standings = {standing.key: standing for answer in answers if answer is not None for standing in answer.standings}
    silent = {key for (_, asked), answer in zip(questions, answers, strict=True) if answer is None for key in asked}
    now = time.monotonic()
    return [card(entry, standings, now, NO_ANSWER if silent & entry.run.live.keys() else None) for entry in entries]


def _keys_by_route(runs: Iterable[Run]) -> dict[Route, list[int]]:
    """Of those that are on their way."""
    keys: dict[Route, list[int]] = {}
    for run in runs:
        if run.live and run.route is not None:
            keys.setdefault(run.route, []).extend(run.live)
    return keys


async def _ask(core: Core, route: Route, keys: list[int], lives: bool = False) -> Explained | None:
    """None when no answer came."""
    run = Run(core.dispatcher, route)
    question = Explain(key=core.dispatcher.new_keys(1)[0], frontend=core.args.name, keys=keys, lives=lives)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await run.ask(question)
    except (TimeoutError, ApiError):
        return None
    finally:
        run.close()
    return answer if isinstance(answer, Explained) else None
