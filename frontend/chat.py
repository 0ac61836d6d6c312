"""POST /v1/chat/completions."""

import dataclasses

from aiohttp import web

from frontend import bodies, conversation, effort, refusals, tool_choice, tools
from frontend.answers import ChatAnswer
from frontend.core import Core, read_body
from frontend.errors import invalid
from frontend.field_names import CHAT, FieldNames
from frontend.generation import Job, answer
from frontend.schema import ChatRequest


async def chat_completions(core: Core, http: web.Request) -> web.StreamResponse:
    """Without max_tokens an answer may run to the context limit."""
    request = bodies.decode(await read_body(core, http), ChatRequest, refusals.CHAT)
    core.check_model(request.model)
    names = _limit_reasoning(request)
    shapes = ChatAnswer(request.logprobs, request.extras(), lambda: core.view.call_id_length)
    return await answer(core, http, job_of(core, request, effort.thinks(request.reasoning_effort), names), shapes)


def job_of(core: Core, request: ChatRequest, thinks: bool | None, names: FieldNames = CHAT) -> Job:
    """What is to be done for it. `thinks`: the model is told to reason, or not to. `names`: of the fields, for errors. Raises ApiError 400."""
    choice, form, logprobs = tool_choice.choice_of(request.tools, request.tool_choice, names), request.constraint(names.form), _logprobs(request)
    if form is not None and choice.told:
        raise invalid(f"{form.param} and tools cannot be had together: set tool_choice to none.", form.param, "unsupported_parameter")
    if form is not None and thinks:
        raise invalid(f"{names.thinking}: an answer of this form has no reasoning.", names.thinking, "unsupported_parameter")
    if request.thinking_budget is not None and request.logprobs:
        raise invalid(f"{names.budget}: a limited reasoning and logprobs cannot be had together.", names.budget, "unsupported_parameter")
    if choice.checked and request.ignore_eos:
        raise invalid("ignore_eos cannot go with tool calls that are checked.", "ignore_eos", "unsupported_parameter")
    parallel, given = request.parallel_tool_calls, request.chat_template_kwargs
    return Job(
        request=request,
        prompts=[conversation.chat_prompt(request.messages, request.add_generation_prompt, choice.told)],
        sampling=lambda defaults: request.sampling(defaults, logprobs),
        stop=request.stop_rules(_max_tokens(request)),
        constraints=request.constraints(),
        constraint=form,
        calls=lambda: tool_choice.constraint(core, choice, parallel, tools.switched(core, given, thinks, names.thinking)),
        reading=lambda: tools.reading(core, choice.callable, parallel, request.thinking_budget, form is None, names),
        variables=lambda: tools.variables(core, given, thinks, names.thinking),
    )


def _limit_reasoning(request: ChatRequest) -> FieldNames:
    """By its effort, where it names no budget: its field is the one at fault then."""
    limit = None if request.reasoning_effort is None else effort.BUDGETS[request.reasoning_effort]
    if limit is None or request.thinking_budget is not None:
        return CHAT
    request.thinking_budget = limit
    return dataclasses.replace(CHAT, budget=CHAT.thinking)


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
