"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API, as another shape of chat requests."""

import functools
from typing import TypeVar

import msgspec
from aiohttp import web

from frontend import bodies, conversation, tools
from frontend.access import CALLER
from frontend.anthropic_answer import CountBody, MessageBody, reason, usage, whole
from frontend.anthropic_request import NEUTRAL, CountRequest, MessagesRequest, to_chat
from frontend.anthropic_stream import MessageStream
from frontend.chat import job_of
from frontend.core import Core, read_body
from frontend.errors import ApiError
from frontend.field_names import ANTHROPIC
from frontend.generation import message_of
from frontend.json_response import json_response
from frontend.reading import ending_in, said_in
from frontend.register import Entry
from frontend.running import running
from frontend.sse import EventStream
from frontend.tokens import ask
from frontend.tool_choice import choice_of
from messages.request import Tokenize
from messages.text import Tokenized

ID_PREFIX = "msg_"
NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""What has the tool runner of Anthropic's client send whole conversations instead."""
R = TypeVar("R", bound=CountRequest)


async def messages(core: Core, http: web.Request) -> web.StreamResponse:
    request = await _request(core, http, MessagesRequest)
    job = job_of(core, *to_chat(request), ANTHROPIC)
    job.request.check(job.stop.max_tokens)
    with running(core, http, ID_PREFIX, request.stream, job.request.priority, core.timeout(job.request.timeout)) as entry:
        make = functools.partial(message_of, core, job, job.prompts[0], http[CALLER].tenant)
        entry.run.generate(make(), make, job.reading)
        if request.stream:
            wording = MessageStream(entry, lambda: core.view.call_id_length)
            return await EventStream(http, entry.run, wording, core.args.security.max_unsent_bytes).send()
        return await _whole(core, entry)


async def count_tokens(core: Core, http: web.Request) -> web.Response:
    """Of the prompt that the same request to /v1/messages would have."""
    chat, thinks = to_chat(await _request(core, http, CountRequest))
    told = choice_of(chat.tools, chat.tool_choice, ANTHROPIC).told
    prompt = conversation.chat_prompt(chat.messages, True, told)
    prompt = msgspec.structs.replace(prompt, variables=tools.variables(core, {}, thinks, ANTHROPIC.thinking))
    found = await ask(core, Tokenize(frontend=core.args.name, key=core.dispatcher.new_keys(1)[0], prompt=prompt), chat.model)
    if not isinstance(found, Tokenized):
        raise TypeError(f"{type(found).__name__} for a Tokenize")
    return json_response(CountBody(len(found.ids)))


async def _request(core: Core, http: web.Request, kind: type[R]) -> R:
    try:
        request = bodies.decode(await read_body(core, http), kind, NEUTRAL)
    except ApiError as error:
        if error.param == "thread":
            error.details = NO_THREADS
        raise
    core.check_model(request.model)
    return request


async def _whole(core: Core, entry: Entry) -> web.Response:
    came = [one for _, one in await entry.run.everything()]
    endings = [ending for one in came if (ending := ending_in(one)) is not None]
    why, found = reason(entry.run, *endings[-1])
    body = MessageBody(
        id=entry.id,
        model=entry.run.model,
        content=whole((event for one in came for event in said_in(one)), core.view.call_id_length),
        stop_reason=why,
        stop_sequence=found,
        usage=usage(entry.run, entry.run.completion_tokens),
    )
    return json_response(body)
