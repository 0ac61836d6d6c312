"""From prompts to an HTTP response: starts the run, then streams it or waits for the whole. Shared by chat and completions."""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from aiohttp import web

from frontend import bodies
from frontend.access import CALLER
from frontend.answers import Answer, Piece, Usage, usage
from frontend.chunks import Chunks
from frontend.core import Core
from frontend.json_response import json_response
from frontend.reading import Reading
from frontend.register import Entry
from frontend.running import running
from frontend.schema import GenerationRequest, StreamOptions
from frontend.sse import EventStream
from messages.constraint import Constraint
from messages.request import ChatPrompt, Generate, Prompt
from messages.sampling import Constraints, SamplingParams, StopRules

C = TypeVar("C")


@dataclass(frozen=True)
class Job:
    """A checked request. `sampling` is made of the model's defaults; `reading` says how its answers are read, `variables` are those of its chat
    template, and `calls` is a grammar that sees to its tool calls: all for the model that is served when they are called. They raise ApiError 400
    for what it cannot do."""

    request: GenerationRequest
    prompts: list[Prompt]
    sampling: Callable[[dict[str, float]], SamplingParams]
    stop: StopRules
    constraints: Constraints | None
    constraint: Constraint | None
    echo: bool = False
    reading: Callable[[], Reading | None] = lambda: None
    variables: Callable[[], dict[str, msgspec.Raw]] | None = None
    calls: Callable[[], Constraint | None] = lambda: None


class WholeBody(msgspec.Struct, Generic[C]):
    id: str
    object: str
    created: int
    model: str
    choices: list[C]
    usage: Usage


async def answer(core: Core, http: web.Request, job: Job, shapes: Answer) -> web.StreamResponse:
    """Run `job` to its end and answer `http`. Raises ApiError when it fails before anything was sent; cancels it when the client goes away."""
    job.request.check(job.stop.max_tokens)
    timeout = core.timeout(job.request.timeout)
    with running(core, http, shapes.id_prefix, job.request.stream, job.request.priority, timeout) as entry:
        for prompt in job.prompts:
            make = functools.partial(message_of, core, job, prompt, http[CALLER].tenant)
            entry.run.generate(make(), make, job.reading)
        if job.request.stream:
            choices = len(job.prompts) * job.request.n
            options, most = job.request.stream_options or StreamOptions(), core.args.security.max_unsent_bytes
            return await EventStream(http, entry.run, Chunks(entry, shapes, choices, options), most).send()
        return await _whole(core, job, shapes, entry)


def message_of(core: Core, job: Job, prompt: Prompt, tenant: str) -> Generate:
    """For the model that is served now. Raises ApiError when it is not the one asked for."""
    request = job.request
    core.check_model(request.model)
    message = Generate(
        frontend=core.args.name,
        incarnation=core.args.incarnation,
        keys=core.dispatcher.new_keys(request.n),
        seeds=bodies.seeds(request.seed, request.n),
        prompt=prompt,
        sampling=job.sampling(core.view.sampling_defaults()),
        stop=job.stop,
        priority=request.priority,
        skip_special_tokens=request.skip_special_tokens,
        echo=job.echo,
        tenant=tenant,
        cache_salt=request.cache_salt or "",
        constraints=job.constraints,
        truncate=request.truncate_prompt_tokens,
        with_ids=request.return_token_ids,
        score_first=not request.stream,
    )
    return fitted(job, message)


def fitted(job: Job, message: Generate) -> Generate:
    """With all that depends on the model that is served now: its template's variables, its markers, its notation of calls. Raises ApiError 400."""
    prompt = message.prompt
    if job.variables is not None and isinstance(prompt, ChatPrompt):
        prompt = msgspec.structs.replace(prompt, variables=job.variables())
    reading = job.reading()
    return msgspec.structs.replace(
        message,
        prompt=prompt,
        shown=reading.shown if reading is not None else [],
        opening=reading.opening if reading is not None else "",
        constraint=job.constraint or job.calls(),
    )


async def _whole(core: Core, job: Job, shapes: Answer, entry: Entry) -> web.Response:
    run = entry.run
    pieces = [Piece() for _ in range(len(job.prompts) * job.request.n)]
    for index, came in await run.everything():
        pieces[index].add(came)
    choices = []
    for index, piece in enumerate(pieces):
        piece.prompt = piece.prompt or pieces[index - index % job.request.n].prompt  # they are computed for the first choice alone
    for index, piece in enumerate(pieces):
        choices.append(msgspec.Raw(msgspec.json.encode(shapes.whole(index, piece))))
        if piece.prompt:  # the logprobs of a long prompt take long: others have their turn between two of them
            await asyncio.sleep(0)
    body = WholeBody(
        id=entry.id,
        object=shapes.whole_object,
        created=entry.created,
        model=run.model,
        choices=choices,
        usage=usage(run),
    )
    return json_response(body)
