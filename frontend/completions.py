"""POST /v1/completions."""

from aiohttp import web

from frontend import bodies, refusals
from frontend.answers import CompletionAnswer
from frontend.core import Core, read_body
from frontend.errors import invalid
from frontend.generation import Job, answer
from frontend.schema import DEFAULT_COMPLETION_TOKENS, CompletionRequest
from messages.request import Prompt, TokenPrompt


async def completions(core: Core, http: web.Request) -> web.StreamResponse:
    """Choice index = position of the prompt x n + number of the sample. Without max_tokens 16 tokens are generated, as OpenAI does."""
    request = bodies.decode(await read_body(core, http), CompletionRequest, refusals.COMPLETION)
    core.check_model(request.model)
    _refuse(request)
    job = Job(
        request=request,
        prompts=bodies.prompts(request.prompt, request.add_special_tokens),
        sampling=lambda defaults: request.sampling(defaults, _alternatives(request), _alternatives(request) if request.echo else -1),
        stop=request.stop_rules(DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens),
        constraints=request.constraints(),
        constraint=request.constraint(),
        echo=request.echo,
    )
    if request.truncate_prompt_tokens is None:
        refuse_long_ids(job.prompts, core.view.context())
    if len(job.prompts) * request.n > bodies.MAX_PROMPTS:
        raise invalid(f"n times the number of prompts must not be above {bodies.MAX_PROMPTS} in one request.", "n")
    return await answer(core, http, job, CompletionAnswer(request.logprobs, request.echo, request.extras()))


def _alternatives(request: CompletionRequest) -> int:
    return -1 if request.logprobs is None else request.logprobs


def _refuse(request: CompletionRequest) -> None:
    if request.max_tokens == 0 and not request.echo and request.prompt_logprobs is None:
        raise invalid("max_tokens must be at least 1 without echo or prompt_logprobs.", "max_tokens")
    if request.best_of is not None and request.best_of != request.n:
        raise invalid("best_of is supported only when it equals n.", "best_of", "unsupported_parameter")


def refuse_long_ids(prompts: list[Prompt], context: int | None, field: str = "prompt") -> None:
    """Prompts of ids are refused here, before megabytes of them travel; texts are measured where they are encoded."""
    for prompt in prompts:
        if isinstance(prompt, TokenPrompt) and context is not None and len(prompt.ids) >= context:
            message = (
                f"This model's maximum context length is {context} tokens. However, your prompt resulted in {len(prompt.ids)} tokens, and at least "
                "one more is needed for the answer. Please reduce the length of the prompt."
            )
            raise invalid(message, field, "context_length_exceeded")
