"""From prompts to an HTTP response: starts the run, then streams it or waits for the whole. Shared by chat and completions."""

import secrets
from dataclasses import dataclass

import msgspec
from aiohttp import web

from frontend import bodies
from frontend.answers import Answer, Piece, PromptTokensDetails, Usage
from frontend.core import Core
from frontend.errors import ApiError
from frontend.middleware import REQUEST_ID
from frontend.register import Entry
from frontend.schema import GenerationRequest
from frontend.streams import Event, Run
from messages.request import Generate, Prompt
from messages.sampling import SamplingParams, StopRules
from messages.text import Ended, TextDelta

STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
OPENING_GRACE_SECONDS = 0.25
"""How long an accepted stream waits for its first token before its headers go out: a refusal of the scheduler still gets its HTTP status."""


@dataclass(frozen=True)
class Job:
    """A checked request."""

    request: GenerationRequest
    prompts: list[Prompt]
    sampling: SamplingParams
    stop: StopRules
    echo: bool = False


class WholeBody(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[msgspec.Struct]
    usage: Usage


async def answer(core: Core, http: web.Request, job: Job, shapes: Answer) -> web.StreamResponse:
    """Run `job` to its end and answer `http`. Raises ApiError when it fails before anything was sent; cancels it when the client goes away."""
    job.request.check_stream_options()
    run = core.dispatcher.open()
    name = shapes.id_prefix + secrets.token_hex(16)
    entry = Entry(name, http[REQUEST_ID], http.path, job.request.stream, job.request.priority, run)
    core.register.enter(entry)
    try:
        for prompt in job.prompts:
            run.generate(_message(core, job, prompt))
        if job.request.stream:
            return await _Stream(core, http, job, shapes, entry).send()
        return await _whole(core, job, shapes, entry)
    finally:
        run.close()
        core.register.leave(entry)


def _message(core: Core, job: Job, prompt: Prompt) -> Generate:
    request = job.request
    return Generate(
        frontend=core.args.name,
        keys=core.dispatcher.new_keys(request.n),
        seeds=bodies.seeds(request.seed, request.n),
        prompt=prompt,
        sampling=job.sampling,
        stop=job.stop,
        priority=request.priority,
        skip_special_tokens=request.skip_special_tokens,
        echo=job.echo,
        cache_salt=request.cache_salt or "",
    )


def usage(run: Run) -> Usage:
    prompt, completion = run.prompt_tokens, run.completion_tokens
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(run.cached_tokens))


async def _whole(core: Core, job: Job, shapes: Answer, entry: Entry) -> web.Response:
    run = entry.run
    pieces = [Piece("", []) for _ in range(len(job.prompts) * job.request.n)]
    texts: list[list[str]] = [[] for _ in pieces]
    while not run.done:
        for index, message in await run.take():
            texts[index].append(message.text)
            _extend(pieces[index], message)
    for piece, parts in zip(pieces, texts, strict=True):
        piece.text = "".join(parts)
    body = WholeBody(
        id=entry.id,
        object=shapes.whole_object,
        created=entry.created,
        model=core.args.model_name,
        choices=[shapes.whole(index, piece) for index, piece in enumerate(pieces)],
        usage=usage(run),
    )
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def _extend(piece: Piece, message: TextDelta | Ended) -> None:
    piece.logprobs.extend(message.logprobs)
    if isinstance(message, Ended):
        piece.finish, piece.stop_reason = message.finish, message.stop_reason


class _Stream:
    """One server-sent event stream. The parts of a chunk that never change are encoded once."""

    def __init__(self, core: Core, http: web.Request, job: Job, shapes: Answer, entry: Entry) -> None:
        self._http = http
        self._run = entry.run
        self._shapes = shapes
        self._choices = len(job.prompts) * job.request.n
        self._with_usage = job.request.with_usage
        head = {
            "id": entry.id,
            "object": shapes.chunk_object,
            "created": entry.created,
            "model": core.args.model_name,
        }
        self._head = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self._with_usage else b"]}\n\n"
        self._encode = msgspec.json.Encoder().encode

    async def send(self) -> web.StreamResponse:
        await self._run.opened(OPENING_GRACE_SECONDS)
        response = web.StreamResponse(headers=STREAM_HEADERS)
        await response.prepare(self._http)
        openings = [self._shapes.opening(index) for index in range(self._choices)]
        if first := b"".join(self._event(choice) for choice in openings if choice is not None):
            await response.write(first)
        try:
            await self._pass_on(response)
        except ApiError as error:
            await response.write(b"data: " + error.body() + b"\n\n" + b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _pass_on(self, response: web.StreamResponse) -> None:
        while not self._run.done:
            events = await self._run.take()
            pieces = _merged(events) if self._congested() else [(index, _piece(message)) for index, message in events]
            await response.write(b"".join(self._event(self._shapes.chunk(index, piece)) for index, piece in pieces))
        last = b"data: [DONE]\n\n"
        if self._with_usage:
            last = self._head + b'],"usage":' + self._encode(usage(self._run)) + b"}\n\n" + last
        await response.write(last)

    def _event(self, choice: msgspec.Struct) -> bytes:
        return self._head + self._encode(choice) + self._tail

    def _congested(self) -> bool:
        """The client has not read what was written before."""
        transport = self._http.transport
        return transport is not None and transport.get_write_buffer_size() > 0


def _piece(message: TextDelta | Ended) -> Piece:
    if isinstance(message, Ended):
        return Piece(message.text, message.logprobs, message.finish, message.stop_reason)
    return Piece(message.text, message.logprobs)


def _merged(events: list[Event]) -> list[tuple[int, Piece]]:
    """One piece per choice: a slow reader gets fewer, longer chunks."""
    texts: dict[int, list[str]] = {}
    pieces: dict[int, Piece] = {}
    for index, message in events:
        texts.setdefault(index, []).append(message.text)
        _extend(pieces.setdefault(index, Piece("", [])), message)
    for index, piece in pieces.items():
        piece.text = "".join(texts[index])
    return list(pieces.items())
