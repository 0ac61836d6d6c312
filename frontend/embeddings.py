"""POST /v1/embeddings: a prompt's last hidden states, pooled and divided by their length."""

import base64
import functools
from array import array
from collections.abc import Iterable

import msgspec
from aiohttp import web

from frontend import bodies, refusals
from frontend.access import CALLER
from frontend.completions import refuse_long_ids
from frontend.core import Core, read_body
from frontend.errors import ApiError, invalid
from frontend.json_response import json_response
from frontend.running import running
from frontend.schema import EmbeddingRequest
from frontend.streams import Event
from messages.request import Generate, Prompt
from messages.sampling import SamplingParams, StopRules
from messages.text import Ended

FIELD = "input"


class EmbeddingData(msgspec.Struct):
    """`embedding`: numbers, or (base64) their bytes as little-endian float32."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingBody(msgspec.Struct):
    object: str
    data: list[EmbeddingData]
    model: str
    usage: EmbeddingUsage


async def embeddings(core: Core, http: web.Request) -> web.Response:
    """One embedding for each prompt, in order."""
    request = bodies.decode(await read_body(core, http), EmbeddingRequest, refusals.EMBEDDING)
    core.check_model(request.model)
    if request.truncate_prompt_tokens == 0:
        raise invalid("truncate_prompt_tokens must be -1 or at least 1.", "truncate_prompt_tokens")
    prompts = bodies.prompts(request.input, request.add_special_tokens, FIELD)
    if request.truncate_prompt_tokens is None:
        refuse_long_ids(prompts, core.view.context(), FIELD)
    try:
        with running(core, http, "embd-", False, request.priority, core.timeout(request.timeout)) as entry:
            run = entry.run
            for prompt in prompts:
                make = functools.partial(_message, core, request, prompt, http[CALLER].tenant)
                run.generate(make(), make)
            vectors = _vectors(await run.everything())
    except ApiError as error:
        error.param = FIELD if error.param == "prompt" else error.param
        raise
    shape = _numbers if request.encoding_format == "float" else _base64
    data = [EmbeddingData("embedding", index, shape(vectors[index])) for index in range(len(prompts))]
    body = EmbeddingBody("list", data, run.model, EmbeddingUsage(run.prompt_tokens, run.prompt_tokens))
    return json_response(body)


def _message(core: Core, request: EmbeddingRequest, prompt: Prompt, tenant: str) -> Generate:
    """For the model that is served now. Raises ApiError when it is not the one asked for."""
    core.check_model(request.model)
    return Generate(
        frontend=core.args.name,
        incarnation=core.args.incarnation,
        keys=core.dispatcher.new_keys(1),
        seeds=[0],
        prompt=prompt,
        sampling=SamplingParams(),
        stop=StopRules(max_tokens=0),
        priority=request.priority,
        truncate=request.truncate_prompt_tokens,
        tenant=tenant,
        pooling=request.pooling,
    )


def _vectors(events: Iterable[Event]) -> dict[int, bytes]:
    return {index: event.embedding for index, event in events if isinstance(event, Ended)}


def _numbers(vector: bytes) -> list[float]:
    values = array("f")
    values.frombytes(vector)
    return values.tolist()


def _base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode("ascii")
