"""POST /v1/chat/completions."""

from aiohttp import web

from frontend import bodies, conversation, refusals
from frontend.answers import ChatAnswer
from frontend.core import Core, read_body
from frontend.errors import invalid
from frontend.generation import Job, answer
from frontend.schema import ChatRequest


async def chat_completions(core: Core, http: web.Request) -> web.StreamResponse:
    """Without max_tokens an answer may run to the context limit."""
    request = bodies.decode(await read_body(core, http), ChatRequest, refusals.CHAT)
    core.check_model(request.model)
    logprobs = _logprobs(request)
    job = Job(
        request=request,
        prompts=[conversation.chat_prompt(request.messages, request.add_generation_prompt)],
        sampling=lambda defaults: request.sampling(defaults, logprobs),
        stop=request.stop_rules(_max_tokens(request)),
        constraints=request.constraints(),
        constraint=request.constraint(),
    )
    return await answer(core, http, job, ChatAnswer(request.logprobs, request.extras()))


def _logprobs(request: ChatRequest) -> int:
    if request.logprobs:
        return request.top_logprobs
    if request.top_logprobs:
        raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
    return -1


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise invalid("max_tokens and max_completion_tokens differ; leave one out.", "max_tokens")
    return old if new is None else new
