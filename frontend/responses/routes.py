"""POST /v1/responses, and what can be asked of a response that is kept. One that another frontend keeps is asked for there."""

import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from secrets import token_hex

from aiohttp import web

from frontend import bodies, refusals
from frontend.access import CALLER
from frontend.core import Core, read_body
from frontend.errors import ApiError, invalid
from frontend.json_response import json_response
from frontend.keepers import STAY
from frontend.record import RECORD
from frontend.responses import background
from frontend.responses.asking import addressed, job_of
from frontend.responses.body import DeletedBody, ItemList, ResponseBody, usage
from frontend.responses.fields import wants_logprobs
from frontend.responses.input import read_input
from frontend.responses.items import ITEM_BYTES, MAX_ITEMS, Item, bare, memory
from frontend.responses.recorder import Recorder
from frontend.responses.request import ResponsesRequest
from frontend.responses.status import COMPLETED, INCOMPLETE
from frontend.responses.store import Kept
from frontend.responses.streaming import LiveStream, follow
from frontend.running import running
from messages.request import Generate

FORWARDED: web.RequestKey[bool] = web.RequestKey("forwarded", bool)
"""Another frontend has sent it here: it is not sent on."""
DEFAULT_LISTED, MAX_LISTED = 20, 100
_BOOLEANS = {"true": True, "false": False}
_INCLUDE = ("include", "include[]")
_FIELDS = {"prompt": "input", "messages": "input", "max_tokens": "max_output_tokens"}
"""The field of this route for one that chat or other processes name."""


@dataclass(frozen=True)
class Draft:
    """A checked request: the response as it begins, its whole input, and what is asked of the engine."""

    request: ResponsesRequest
    body: ResponseBody
    items: list[Item]
    work: Generate

    def named(self, name: str, created: int) -> ResponseBody:
        self.body.id, self.body.created_at = name, created
        return self.body


async def create(core: Core, http: web.Request) -> web.StreamResponse:
    """Raises ApiError: 404 for an earlier response that is not kept, 503 when a durable one cannot be written down, and what other routes do."""
    raw = await read_body(core, http)
    request = bodies.decode(raw, ResponsesRequest, refusals.RESPONSES)
    core.check_model(request.model)
    request.check()
    if request.background and core.responses.keeper not in ("", core.responses.name) and FORWARDED not in http:
        core.keepers.pass_on(http[STAY])
        return await core.responses.links.forward(core.responses.keeper, http, raw)
    items = await _items(core, http, request)
    try:
        body = request.body(request.model or core.view.model)
        draft = Draft(request, body, items, request.work(core, body, items, http[CALLER].tenant))
        return await (_in_background if request.background else _at_once)(core, http, draft)
    except ApiError as error:
        found = _FIELDS.get((error.param or "").partition("[")[0])
        if found is not None:
            error.param = found
        raise


async def _items(core: Core, http: web.Request, request: ResponsesRequest) -> list[Item]:
    earlier = [] if request.previous_response_id is None else await _conversation(core, http, request.previous_response_id)
    items = read_input(request.input, earlier)
    if len(items) > MAX_ITEMS or memory(items) > core.args.body_limit + MAX_ITEMS * ITEM_BYTES:
        raise invalid(f"The conversation is too long: it has more than {MAX_ITEMS} items or {core.args.body_limit} bytes.", "input")
    return items


async def _in_background(core: Core, http: web.Request, draft: Draft) -> web.StreamResponse:
    body = draft.named(core.responses.id_prefix + token_hex(16), int(time.time()))
    job = background.make_job(core, body, http[CALLER].name, draft.items, draft.work, http[RECORD])
    await background.accept(core, job, http[CALLER].limits, http.get(STAY))
    return await follow(http, job.kept.events(), 0) if draft.request.stream else json_response(job.kept.current())


async def _at_once(core: Core, http: web.Request, draft: Draft) -> web.StreamResponse:
    """A response is kept once it has ended well."""
    timeout = core.timeout(draft.request.timeout)
    with running(core, http, core.responses.id_prefix, draft.request.stream, draft.work.priority, timeout) as entry:
        body = draft.named(entry.id, entry.created)
        job = job_of(core, body)
        make = functools.partial(addressed, core, body.model, draft.work, job)
        entry.run.generate(make(), make, job.reading)

        def keep() -> None:
            if body.store:
                core.responses.store.end(Kept(body, http[CALLER].name, draft.items))

        if draft.request.stream:
            return await LiveStream(core, http, entry, body, keep).send()
        recorder = Recorder(body, _nowhere, lambda: core.view.call_id_length)
        recorder.take(await entry.run.everything())
        recorder.conclude(usage(entry.run))
        keep()
        return json_response(body)


def _nowhere(event: object) -> None:
    """Nobody reads the events of an answer that is not streamed."""


async def _conversation(core: Core, http: web.Request, name: str) -> list[Item]:
    """What was said up to and with the response `name`. Raises ApiError 404 and 400."""
    if (peer := core.responses.elsewhere(name)) is not None:
        return await core.responses.links.conversation(peer, name, http)
    return conversation(core, http, name)


def conversation(core: Core, http: web.Request, name: str) -> list[Item]:
    """Of a response that this frontend keeps: its input and its output. Raises ApiError 404, and 400 for one that has not ended well."""
    kept = core.responses.store.find(name, http[CALLER].owner)
    if kept is None:
        message = f"The response {name[:64]!r} is not kept: it was never stored, has been deleted, or others have taken its place."
        raise ApiError(404, "previous_response_not_found", message, "previous_response_id")
    if kept.body.status not in (COMPLETED, INCOMPLETE):
        message = f"The response {kept.id!r} is {kept.body.status}: only one that has ended well can be gone on from."
        raise invalid(message, "previous_response_id", "previous_response_unusable")
    return [*kept.items, *map(bare, kept.body.output)]


async def retrieve(core: Core, http: web.Request) -> web.StreamResponse:
    """The response as it is now; with `stream=true` the events of one in background mode, those after `starting_after` alone if that is there."""
    options = _query(http, ("stream", "starting_after", "include_obfuscation", *_INCLUDE))
    stream = _boolean(options, "stream")
    if _boolean(options, "include_obfuscation"):
        raise invalid("include_obfuscation is not supported; leave it out.", "include_obfuscation", "unsupported_parameter")
    if "starting_after" in options and not stream:
        raise invalid("starting_after needs stream to be true.", "starting_after")
    after = _number(options, "starting_after", -1, 0, 2**31 - 1)
    if (peer := _elsewhere(core, http)) is not None:
        return await core.responses.links.forward(peer, http)
    kept = _find(core, http)
    if not stream:
        return json_response(kept.current())
    if not kept.body.background:
        raise invalid("Only responses in background mode can be streamed again.", "stream")
    return await follow(http, kept.events(), after + 1)


async def delete(core: Core, http: web.Request) -> web.StreamResponse:
    if (peer := _elsewhere(core, http)) is not None:
        return await core.responses.links.forward(peer, http)
    kept = _find(core, http)
    await background.delete(core, kept)
    return json_response(DeletedBody(kept.id))


async def cancel(core: Core, http: web.Request) -> web.StreamResponse:
    """End one in background mode. One that has ended stays as it is."""
    if (peer := _elsewhere(core, http)) is not None:
        return await core.responses.links.forward(peer, http)
    kept = _find(core, http)
    if not kept.body.background:
        raise invalid("Only responses in background mode can be cancelled.", "id")
    await background.cancel(core, kept)
    return json_response(kept.body)


async def input_items(core: Core, http: web.Request) -> web.StreamResponse:
    """What the model was given, earlier turns included, instructions not; the newest first unless `order` is asc."""
    options = _query(http, ("limit", "order", "after", *_INCLUDE))
    limit, order = _number(options, "limit", DEFAULT_LISTED, 1, MAX_LISTED), options.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order must be asc or desc.", "order")
    if (peer := _elsewhere(core, http)) is not None:
        return await core.responses.links.forward(peer, http)
    kept = _find(core, http)
    items = kept.items if order == "asc" else kept.items[::-1]
    if "after" in options:
        place = next((number for number, item in enumerate(items) if item.id == options["after"]), None)
        if place is None:
            raise invalid("after names no item of this response.", "after")
        items = items[place + 1 :]
    listed = items[:limit]
    ends = (listed[0].id, listed[-1].id) if listed else (None, None)
    return json_response(ItemList(data=listed, first_id=ends[0], last_id=ends[1], has_more=len(listed) < len(items)))


def _elsewhere(core: Core, http: web.Request) -> str | None:
    return None if FORWARDED in http else core.responses.elsewhere(http.match_info["id"])


def _find(core: Core, http: web.Request) -> Kept:
    """Raises ApiError 404 for a response that is not kept, or is another key's."""
    name = http.match_info["id"]
    kept = core.responses.store.find(name, http[CALLER].owner)
    if kept is None:
        raise ApiError(404, "response_not_found", f"No response {name[:64]!r} is kept.", "id")
    return kept


def _query(http: web.Request, known: Iterable[str]) -> dict[str, str]:
    for name in http.query:
        if name not in known:
            raise invalid(f"Unknown parameter {name[:64]!r}.", name[:64], "unknown_parameter")
    for name in _INCLUDE:
        wants_logprobs(http.query.getall(name, []))  # which a response has as it was made
    return dict(http.query)


def _boolean(options: dict[str, str], name: str) -> bool:
    value = _BOOLEANS.get(options.get(name, "false").lower())
    if value is None:
        raise invalid(f"{name} must be true or false.", name)
    return value


def _number(options: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and low <= int(text[:11]) <= high):
        raise invalid(f"{name} must be an integer from {low} to {high}.", name)
    return int(text[:11])
